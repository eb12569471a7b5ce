/* Element types, conversions between them, and views. */
#include "core/tensor.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    int size;
    const char *name, *torch;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F64] = {8, "F64", "float64"},
    [DTYPE_F32] = {4, "F32", "float32"},
    [DTYPE_F16] = {2, "F16", "float16"},
    [DTYPE_BF16] = {2, "BF16", "bfloat16"},
    [DTYPE_I64] = {8, "I64", "int64"},
    [DTYPE_I32] = {4, "I32", "int32"},
    [DTYPE_I16] = {2, "I16", "int16"},
    [DTYPE_I8] = {1, "I8", "int8"},
    [DTYPE_U64] = {8, "U64", "uint64"},
    [DTYPE_U32] = {4, "U32", "uint32"},
    [DTYPE_U16] = {2, "U16", "uint16"},
    [DTYPE_U8] = {1, "U8", "uint8"},
    [DTYPE_BOOL] = {1, "BOOL", "bool"},
    [DTYPE_F8_E4M3] = {1, "F8_E4M3", "float8_e4m3fn"},
    [DTYPE_F8_E5M2] = {1, "F8_E5M2", "float8_e5m2"},
};

int64_t dtype_size(enum dtype t) {
    return dtypes[t].size;
}

const char *dtype_name(enum dtype t) {
    return dtypes[t].name;
}

const char *dtype_torch(enum dtype t) {
    return dtypes[t].torch;
}

bool dtype_is_float(enum dtype t) {
    return t == DTYPE_F64 || t == DTYPE_F32 || t == DTYPE_F16 || t == DTYPE_BF16;
}

bool dtype_parse(const char *name, enum dtype *out) {
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (!strcasecmp(name, dtypes[t].name) || !strcasecmp(name, dtypes[t].torch)) {
            *out = (enum dtype)t;
            return true;
        }
    return false;
}

float f16_to_f32(uint16_t v) {
    union {
        uint32_t u;
        float f;
    } x;
    uint32_t sign = (uint32_t)(v & 0x8000u) << 16, exp = (v >> 10) & 0x1fu, frac = v & 0x3ffu;
    if (exp == 0x1f) {
        x.u = sign | 0x7f800000u | (frac << 13);
    } else if (exp) {
        x.u = sign | ((exp + 112u) << 23) | (frac << 13);
    } else {
        x.f = (float)frac * 0x1p-24f; /* subnormal: exact in f32 */
        x.u |= sign;
    }
    return x.f;
}

uint16_t f32_to_f16(float v) {
    union {
        float f;
        uint32_t u;
    } x = {v};
    uint32_t sign = (x.u >> 16) & 0x8000u, mag = x.u & 0x7fffffffu;
    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (mag >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (mag < 0x38800000u) { /* subnormal or zero: let the FPU round at 2^-24 */
        union {
            float f;
            uint32_t u;
        } y = {.u = mag};
        y.f += 0.5f;
        return (uint16_t)(sign | (y.u - 0x3f000000u));
    }
    mag += 0xfffu + ((mag >> 13) & 1u);
    return (uint16_t)(sign | ((mag - 0x38000000u) >> 13));
}

static double load(const void *p, enum dtype t, int64_t i) {
    switch (t) {
    case DTYPE_F64:
        return ((const double *)p)[i];
    case DTYPE_F32:
        return (double)((const float *)p)[i];
    case DTYPE_F16:
        return (double)f16_to_f32(((const uint16_t *)p)[i]);
    default:
        return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    }
}

bool dtype_convert(const void *src, enum dtype from, void *dst, enum dtype to, int64_t n) {
    if (!dtype_is_float(from) || !dtype_is_float(to))
        return false;
    if (from == to) {
        memcpy(dst, src, (size_t)(n * dtype_size(from)));
        return true;
    }
    /* The pairs that move whole checkpoints get a loop the compiler can vectorise. */
    if (from == DTYPE_BF16 && to == DTYPE_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)dst)[i] = bf16_to_f32(((const uint16_t *)src)[i]);
    } else if (from == DTYPE_F32 && to == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)dst)[i] = f32_to_bf16(((const float *)src)[i]);
    } else if (from == DTYPE_F16 && to == DTYPE_F32) {
        for (int64_t i = 0; i < n; i++)
            ((float *)dst)[i] = f16_to_f32(((const uint16_t *)src)[i]);
    } else {
        for (int64_t i = 0; i < n; i++) {
            double v = load(src, from, i);
            if (to == DTYPE_F64)
                ((double *)dst)[i] = v;
            else if (to == DTYPE_F32)
                ((float *)dst)[i] = (float)v;
            else if (to == DTYPE_F16)
                ((uint16_t *)dst)[i] = f32_to_f16((float)v);
            else
                ((uint16_t *)dst)[i] = f32_to_bf16((float)v);
        }
    }
    return true;
}

struct tensor tensor_1d(enum dtype t, void *data, int64_t n) {
    return (struct tensor){.dtype = t, .rank = 1, .shape = {n}, .data = data};
}

struct tensor tensor_2d(enum dtype t, void *data, int64_t rows, int64_t cols) {
    return (struct tensor){.dtype = t, .rank = 2, .shape = {rows, cols}, .data = data};
}

struct tensor tensor_reshape(struct tensor t, int64_t rows, int64_t cols) {
    assert(tensor_count(&t) == rows * cols);
    return tensor_2d(t.dtype, t.data, rows, cols);
}

struct tensor tensor_rows(struct tensor t, int64_t first, int64_t n) {
    assert((t.rank == 1 || t.rank == 2) && first >= 0 && n >= 0 && first + n <= t.shape[0]);
    int64_t row = (t.rank == 2 ? t.shape[1] : 1) * dtype_size(t.dtype);
    t.shape[0] = n;
    t.data = (char *)t.data + first * row;
    return t;
}

void *tensor_at(const struct tensor *t, int64_t i) {
    assert(i >= 0 && i <= tensor_count(t));
    return (char *)t->data + i * dtype_size(t->dtype);
}

int64_t tensor_count(const struct tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

int64_t tensor_bytes(const struct tensor *t) {
    return tensor_count(t) * dtype_size(t->dtype);
}

char *tensor_shape_text(int rank, const int64_t *shape, char *out, int64_t n_out) {
    int64_t used = snprintf(out, (size_t)n_out, "[");
    for (int i = 0; i < rank && used < n_out; i++)
        used += snprintf(out + used, (size_t)(n_out - used), i ? ", %lld" : "%lld",
                         (long long)shape[i]);
    if (used < n_out)
        snprintf(out + used, (size_t)(n_out - used), "]");
    return out;
}
