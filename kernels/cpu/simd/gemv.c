/* One row times W^T, the product of decoding: W is read once, so memory decides the speed. Four
 * rows of W at a time keep several streams of loads going. (oneDNN, which serves every other shape,
 * reaches about half of this here.) */
#include "core/memory.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/simd/simd.h"

enum { GEMV_ROWS = 4 };

/* out[i] = a . row first + i of b; `rows` and `bf16` are constants. */
INLINE void dots(int rows, const struct matmul_args *m, int64_t first, float *out, bool bf16) {
    int64_t k = m->b.shape[1], i = 0;
    const void *a = m->a.data, *b = m->b.data;
    vf sum[GEMV_ROWS][2];
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = vf_set(0);
    for (; i + 2 * VF_LEN <= k; i += 2 * VF_LEN) {
        vf x = vf_get(a, i, bf16), y = vf_get(a, i + VF_LEN, bf16);
        _Pragma("GCC unroll 4") for (int r = 0; r < rows; r++) {
            int64_t at = (first + r) * k + i;
            sum[r][0] = vf_fma(x, vf_get(b, at, bf16), sum[r][0]);
            sum[r][1] = vf_fma(y, vf_get(b, at + VF_LEN, bf16), sum[r][1]);
        }
    }
    for (; i < k; i += VF_LEN) {
        int64_t n = size_min(VF_LEN, k - i);
        bool whole = n == VF_LEN;
        vf x = whole ? vf_get(a, i, bf16) : vf_get_n(a, i, n, bf16);
        for (int r = 0; r < rows; r++) {
            int64_t at = (first + r) * k + i;
            sum[r][0] =
                vf_fma(x, whole ? vf_get(b, at, bf16) : vf_get_n(b, at, n, bf16), sum[r][0]);
        }
    }
    for (int r = 0; r < rows; r++)
        out[r] = vf_hsum(sum[r][0] + sum[r][1]);
}

static float element(const struct tensor *t, int64_t i) {
    return t->dtype == DTYPE_BF16 ? bf16_to_f32(((const uint16_t *)t->data)[i])
                                  : ((const float *)t->data)[i];
}

static void store(const struct matmul_args *m, int64_t i, float v) {
    if (m->beta != 0)
        v += element(&m->c, i);
    if (m->bias.data)
        v += element(&m->bias, i);
    if (m->c.dtype == DTYPE_BF16)
        ((uint16_t *)m->c.data)[i] = f32_to_bf16(v);
    else
        ((float *)m->c.data)[i] = v;
}

enum status ISA(gemv)(struct backend *be, const struct matmul_args *m) {
    (void)be;
    int64_t n = m->c.shape[1], blocks = (n + GEMV_ROWS - 1) / GEMV_ROWS;
    bool bf16 = m->b.dtype == DTYPE_BF16;
#pragma omp parallel for schedule(static) if (tensor_count(&m->b) >= 4 * PARALLEL_MIN)
    for (int64_t j = 0; j < blocks; j++) {
        int64_t first = j * GEMV_ROWS, rows = size_min(GEMV_ROWS, n - first);
        float out[GEMV_ROWS];
        if (rows == GEMV_ROWS && bf16)
            dots(GEMV_ROWS, m, first, out, true);
        else if (rows == GEMV_ROWS)
            dots(GEMV_ROWS, m, first, out, false);
        for (int64_t r = 0; r < rows; r++) {
            if (rows < GEMV_ROWS && bf16)
                dots(1, m, first + r, out + r, true);
            else if (rows < GEMV_ROWS)
                dots(1, m, first + r, out + r, false);
            store(m, first + r, out[r]);
        }
    }
    return STATUS_OK;
}
