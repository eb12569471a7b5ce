/* Ops without a reduction along rows: add, difference, AdamW, conversions, copies; and the sum of
 * squares. Work is cut into blocks of fixed size, so results do not depend on the thread
 * count. */
#include "core/memory.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/simd/simd.h"

#include <string.h>

enum { BLOCK = 4096 };

/* Runs body(first, n) over [0, count) in blocks; `n` is the block's length. */
#define FOR_BLOCKS(count, first, n, body)                                                          \
    do {                                                                                           \
        int64_t count_ = (count), blocks_ = (count_ + BLOCK - 1) / BLOCK;                          \
        _Pragma(                                                                                   \
            "omp parallel for schedule(static) if (count_ >= PARALLEL_MIN)") for (int64_t block_ = \
                                                                                      0;           \
                                                                                  block_ <         \
                                                                                  blocks_;         \
                                                                                  block_++) {      \
            int64_t first = block_ * BLOCK, n = size_min(BLOCK, count_ - first);                   \
            body;                                                                                  \
        }                                                                                          \
    } while (0)

INLINE void add_range(const struct add_args *a, int64_t i, int64_t n, bool bf16) {
    int64_t end = i + n;
    for (; i + VF_LEN <= end; i += VF_LEN)
        vf_put(a->out.data, i, vf_get(a->a.data, i, bf16) + vf_get(a->b.data, i, bf16), bf16);
    if (i < end)
        vf_put_n(a->out.data, i,
                 vf_get_n(a->a.data, i, end - i, bf16) + vf_get_n(a->b.data, i, end - i, bf16),
                 end - i, bf16);
}

enum status ISA(add)(struct backend *be, const struct add_args *a) {
    (void)be;
    bool bf16 = a->out.dtype == DTYPE_BF16;
    FOR_BLOCKS(tensor_count(&a->out), first, n, if (bf16) add_range(a, first, n, true);
               else add_range(a, first, n, false));
    return STATUS_OK;
}

INLINE void difference_range(const struct difference_args *a, float scale, int64_t i, int64_t n,
                             bool bf16) {
    int64_t end = i + n;
    for (; i + VF_LEN <= end; i += VF_LEN)
        vf_put(a->out.data, i, scale * (vf_get(a->a.data, i, bf16) - vf_get(a->b.data, i, bf16)),
               bf16);
    if (i < end)
        vf_put_n(
            a->out.data, i,
            scale * (vf_get_n(a->a.data, i, end - i, bf16) - vf_get_n(a->b.data, i, end - i, bf16)),
            end - i, bf16);
}

enum status ISA(difference)(struct backend *be, const struct difference_args *a) {
    (void)be;
    float scale = (float)cpu_difference_scale(a);
    bool bf16 = a->out.dtype == DTYPE_BF16;
    FOR_BLOCKS(tensor_count(&a->out), first, n,
               if (bf16) difference_range(a, scale, first, n, true);
               else difference_range(a, scale, first, n, false));
    return STATUS_OK;
}

struct adamw_factors {
    float grad_scale, beta1, beta2, rest1, rest2, inv_c1, inv_c2, eps, lr, decay;
    uint64_t seed; /* of stochastic rounding to BF16; 0: to nearest */
};

INLINE vu mix(vu x) { /* adamw_mix, lane by lane */
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* What rounding down to BF16 makes of it is v rounded stochastically. A vector starts at a multiple
 * of its length, so that the upper half of the index is one number. */
INLINE vf add_random(vf v, uint64_t seed, int64_t i) {
    vu lane;
    for (int k = 0; k < VF_LEN; k++)
        lane[k] = (uint32_t)i + (uint32_t)k;
    vu r = mix(lane ^ (uint32_t)seed);
    r = mix(r ^ ((uint32_t)(i >> 32) + (uint32_t)(seed >> 32))) >> 16;
    vf moved = (vf)(((vu)v + r) & 0xffff0000u);
    return vf_select((vu)(v == v), moved, v);
}

/* n elements at i, n <= VF_LEN; `whole` says n == VF_LEN at compile time. */
INLINE void adamw_vector(const struct adamw_args *a, const struct adamw_factors *f, int64_t i,
                         int64_t n, bool whole, bool bf16) {
    const bool stochastic = bf16 && f->seed;
#define GET(t)                                                                                     \
    (whole ? vf_load((const float *)(t).data + i) : vf_load_n((const float *)(t).data + i, n))
    vf g = GET(a->grad) * f->grad_scale, p = GET(a->master);
    vf m = GET(a->m) * f->beta1 + g * f->rest1, v = GET(a->v) * f->beta2 + g * g * f->rest2;
#undef GET
    p -= f->lr * (m * f->inv_c1 / (vf_sqrt(v * f->inv_c2) + f->eps) + f->decay * p);
    if (whole) {
        vf_put(a->m.data, i, m, false);
        vf_put(a->v.data, i, v, false);
        vf_put(a->master.data, i, p, false);
        vf_put(a->param.data, i, stochastic ? add_random(p, f->seed, i) : p, bf16);
    } else {
        vf_put_n(a->m.data, i, m, n, false);
        vf_put_n(a->v.data, i, v, n, false);
        vf_put_n(a->master.data, i, p, n, false);
        vf_put_n(a->param.data, i, stochastic ? add_random(p, f->seed, i) : p, n, bf16);
    }
}

INLINE void adamw_range(const struct adamw_args *a, const struct adamw_factors *f, int64_t i,
                        int64_t n, bool bf16) {
    int64_t end = i + n;
    for (; i + VF_LEN <= end; i += VF_LEN)
        adamw_vector(a, f, i, VF_LEN, true, bf16);
    if (i < end)
        adamw_vector(a, f, i, end - i, false, bf16);
}

enum status ISA(adamw)(struct backend *be, const struct adamw_args *a) {
    (void)be;
    double grad_scale;
    if (!cpu_adamw_scale(a, &grad_scale))
        return STATUS_OK;
    const struct adamw_factors f = {
        .grad_scale = (float)grad_scale,
        .beta1 = (float)a->beta1,
        .beta2 = (float)a->beta2,
        .rest1 = (float)(1 - a->beta1),
        .rest2 = (float)(1 - a->beta2),
        .inv_c1 = (float)(1 / (1 - pow(a->beta1, (double)a->step))),
        .inv_c2 = (float)(1 / (1 - pow(a->beta2, (double)a->step))),
        .eps = (float)a->eps,
        .lr = (float)a->lr,
        .decay = (float)a->weight_decay,
        .seed = a->rounding_seed,
    };
    bool bf16 = a->param.dtype == DTYPE_BF16;
    FOR_BLOCKS(tensor_count(&a->param), first, n, if (bf16) adamw_range(a, &f, first, n, true);
               else adamw_range(a, &f, first, n, false));
    return STATUS_OK;
}

typedef double vd __attribute__((vector_size(VF_LEN * 4)));
typedef float vf_half __attribute__((vector_size(VF_LEN * 2)));
INLINE vd widen(const float *p) {
    vf_half x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vd);
}

INLINE double squares_range(const struct tensor *x, int64_t i, int64_t n, bool bf16) {
    int64_t end = i + n, half = VF_LEN / 2;
    vd sum[4] = {{0}, {0}, {0}, {0}};
    float wide[2 * VF_LEN];
    for (; i < end; i += 2 * VF_LEN) {
        const float *p = (const float *)x->data + i;
        if (bf16 || end - i < 2 * VF_LEN) {
            p = wide;
            for (int64_t k = 0; k < 2 * VF_LEN; k += VF_LEN)
                vf_store(wide + k, i + k + VF_LEN <= end ? vf_get(x->data, i + k, bf16)
                                   : i + k < end ? vf_get_n(x->data, i + k, end - i - k, bf16)
                                                 : vf_set(0));
        }
        for (int k = 0; k < 4; k++) {
            vd v = widen(p + k * half);
            sum[k] += v * v;
        }
    }
    vd all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double total = 0;
    for (int k = 0; k < VF_LEN / 2; k++)
        total += all[k];
    return total;
}

enum status ISA(sum_squares)(struct backend *be, const struct sum_squares_args *a) {
    int64_t count = tensor_count(&a->x), blocks = (count + BLOCK - 1) / BLOCK;
    bool bf16 = a->x.dtype == DTYPE_BF16;
    double *partial, total = 0;
    TRY(cpu_scratch(be, SCRATCH_OP, blocks * (int64_t)sizeof *partial, &partial));
    FOR_BLOCKS(count, first, n,
               partial[first / BLOCK] = bf16 ? squares_range(&a->x, first, n, true)
                                             : squares_range(&a->x, first, n, false));
    for (int64_t i = 0; i < blocks; i++)
        total += partial[i];
    *(double *)a->out.data = total;
    return STATUS_OK;
}

/* F32 <-> BF16 by vectors, every other pair by core's loop. */
INLINE void convert(const void *x, bool from_bf16, void *y, bool to_bf16, int64_t n) {
    int64_t i = 0;
    for (; i + VF_LEN <= n; i += VF_LEN)
        vf_put(y, i, vf_get(x, i, from_bf16), to_bf16);
    if (i < n)
        vf_put_n(y, i, vf_get_n(x, i, n - i, from_bf16), n - i, to_bf16);
}

static void convert_run(const char *x, enum dtype from, char *y, enum dtype to, int64_t n) {
    if (from == DTYPE_F32 && to == DTYPE_BF16)
        convert(x, false, y, true, n);
    else if (from == DTYPE_BF16 && to == DTYPE_F32)
        convert(x, true, y, false, n);
    else
        dtype_convert(x, from, y, to, n);
}

enum status ISA(cast)(struct backend *be, const struct cast_args *a) {
    (void)be;
    int64_t in = dtype_size(a->x.dtype), out = dtype_size(a->out.dtype);
    FOR_BLOCKS(tensor_count(&a->out), first, n,
               convert_run((const char *)a->x.data + first * in, a->x.dtype,
                           (char *)a->out.data + first * out, a->out.dtype, n));
    return STATUS_OK;
}

enum status ISA(copy_heads)(struct backend *be, const struct copy_heads_args *a) {
    (void)be;
    int64_t in = dtype_size(a->from_dtype), out = dtype_size(a->to_dtype);
    int64_t rows = a->n_batch * a->n_row;
#pragma omp parallel for schedule(static) if (rows * a->n_head * a->head_dim >= PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        int64_t b = r / a->n_row, t = r % a->n_row;
        for (int64_t h = 0; h < a->n_head; h++)
            convert_run((const char *)a->from.data +
                            (b * a->from.batch + t * a->from.row + h * a->from.head) * in,
                        a->from_dtype,
                        (char *)a->to.data +
                            (b * a->to.batch + t * a->to.row + h * a->to.head) * out,
                        a->to_dtype, a->head_dim);
    }
    return STATUS_OK;
}
