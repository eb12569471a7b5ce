/* Counting NaN and infinities at memory speed: the largest magnitude bits of a block tell whether
 * the block needs a closer look. */
#include "checkpoints/checkpoint.h"

enum { BLOCK = 4096 };

static void look16(const uint16_t *p, int64_t n, uint16_t inf, struct nonfinite *out) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t magnitude = p[i] & 0x7fffu;
        out->n_inf += magnitude == inf;
        out->n_nan += magnitude > inf;
    }
}

static void scan16(const uint16_t *p, int64_t n, uint16_t inf, struct nonfinite *out) {
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = size_min(n - i, BLOCK);
        int16_t most = 0;
        for (int64_t k = 0; k < m; k++) {
            int16_t magnitude = (int16_t)(p[i + k] & 0x7fffu);
            most = magnitude > most ? magnitude : most;
        }
        if (most >= (int16_t)inf)
            look16(p + i, m, inf, out);
    }
}

static void scan32(const uint32_t *p, int64_t n, struct nonfinite *out) {
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t m = size_min(n - i, BLOCK);
        int32_t most = 0;
        for (int64_t k = 0; k < m; k++) {
            int32_t magnitude = (int32_t)(p[i + k] & 0x7fffffffu);
            most = magnitude > most ? magnitude : most;
        }
        for (int64_t k = 0; most >= 0x7f800000 && k < m; k++) {
            uint32_t magnitude = p[i + k] & 0x7fffffffu;
            out->n_inf += magnitude == 0x7f800000u;
            out->n_nan += magnitude > 0x7f800000u;
        }
    }
}

void nonfinite_scan(const void *data, enum dtype t, int64_t n, struct nonfinite *out) {
    switch (t) {
    case DTYPE_BF16:
        scan16(data, n, 0x7f80, out);
        break;
    case DTYPE_F16:
        scan16(data, n, 0x7c00, out);
        break;
    case DTYPE_F32:
        scan32(data, n, out);
        break;
    case DTYPE_F64:
        for (int64_t i = 0; i < n; i++) {
            uint64_t magnitude = ((const uint64_t *)data)[i] & 0x7fffffffffffffffu;
            out->n_inf += magnitude == 0x7ff0000000000000u;
            out->n_nan += magnitude > 0x7ff0000000000000u;
        }
        break;
    default: /* integers have none */
        break;
    }
}

enum status checkpoint_scan(const struct checkpoint_tensor *t, void *buffer, int64_t n_buffer,
                            struct nonfinite *out) {
    *out = (struct nonfinite){0};
    for (int64_t at = 0; dtype_is_float(t->dtype) && at < t->n_byte;) {
        int64_t n = size_min(t->n_byte - at, n_buffer & ~(int64_t)7);
        TRY(checkpoint_read(t, at, n, buffer));
        nonfinite_scan(buffer, t->dtype, n / dtype_size(t->dtype), out);
        at += n;
    }
    return STATUS_OK;
}
