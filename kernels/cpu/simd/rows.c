/* Ops that go row by row: norms, the embedding, RoPE, and sums over rows. Sums over rows are
 * taken per block of rows, then over the blocks in order, whatever the thread count. */
#include "core/memory.h"
#include "core/parallel.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/simd/simd.h"

#include <string.h>

enum { ROW_BLOCK = 32, MAX_PAIRS = 512 };

/* Loops over one row in vectors: `n` lanes at `i`, `whole` a constant in each of the two copies. */
#define FOR_ROW(width, i, ...)                                                                     \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + VF_LEN <= (width); i += VF_LEN) {                                               \
            const bool whole = true;                                                               \
            const int64_t n = VF_LEN;                                                              \
            __VA_ARGS__                                                                            \
        }                                                                                          \
        if (i < (width)) {                                                                         \
            const bool whole = false;                                                              \
            const int64_t n = (width)-i;                                                           \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)

INLINE vf get(const void *p, int64_t i, int64_t n, bool whole, bool bf16) {
    return whole ? vf_get(p, i, bf16) : vf_get_n(p, i, n, bf16);
}
INLINE void put(void *p, int64_t i, vf v, int64_t n, bool whole, bool bf16) {
    if (whole)
        vf_put(p, i, v, bf16);
    else
        vf_put_n(p, i, v, n, bf16);
}

INLINE float row_mean(const void *x, int64_t at, int64_t width, bool bf16) {
    vf sum = vf_set(0);
    FOR_ROW(width, i, { sum += get(x, at + i, n, whole, bf16); });
    return vf_hsum(sum) / (float)width;
}

INLINE void norm_row(const struct norm_args *a, int64_t r, bool center, bool bf16) {
    int64_t width = a->out.shape[1], at = r * width;
    const void *x = a->x.data, *w = a->weight.data, *b = a->bias.data;
    vf squares = vf_set(0);
    if (a->residual.data) {
        FOR_ROW(width, i, {
            vf s = get(x, at + i, n, whole, bf16) + get(a->residual.data, at + i, n, whole, bf16);
            put(a->sum.data, at + i, s, n, whole, bf16);
            s = get(a->sum.data, at + i, n, whole, bf16); /* as stored: what the backward sees */
            squares = vf_fma(s, s, squares);
        });
        x = a->sum.data;
    } else if (!center) {
        FOR_ROW(width, i, {
            vf v = get(x, at + i, n, whole, bf16);
            squares = vf_fma(v, v, squares);
        });
    }
    float mean = 0;
    if (center) { /* in two steps: the square's mean less the mean's square would cancel */
        mean = row_mean(x, at, width, bf16);
        squares = vf_set(0);
        FOR_ROW(width, i, {
            vf v = get(x, at + i, n, whole, bf16) - mean;
            if (!whole)
                v = vf_first(v, n);
            squares = vf_fma(v, v, squares);
        });
    }
    float rstd = (float)(1 / sqrt((double)vf_hsum(squares) / (double)width + a->eps));
    FOR_ROW(width, i, {
        vf v = get(x, at + i, n, whole, bf16);
        if (center)
            v -= mean;
        v *= rstd;
        if (w)
            v *= get(w, i, n, whole, bf16);
        if (b)
            v += get(b, i, n, whole, bf16);
        put(a->out.data, at + i, v, n, whole, bf16);
    });
    if (a->rstd.data)
        ((float *)a->rstd.data)[r] = rstd;
}

enum status ISA(norm)(struct backend *be, const struct norm_args *a) {
    (void)be;
    bool bf16 = a->out.dtype == DTYPE_BF16;
#pragma omp parallel for schedule(static) if (tensor_count(&a->out) >= PARALLEL_MIN)
    for (int64_t r = 0; r < a->out.shape[0]; r++) {
        if (a->center && bf16)
            norm_row(a, r, true, true);
        else if (a->center)
            norm_row(a, r, true, false);
        else if (bf16)
            norm_row(a, r, false, true);
        else
            norm_row(a, r, false, false);
    }
    return STATUS_OK;
}

/* d_w, d_b: this block's partial sums of dy xh and of dy, or NULL. */
INLINE void norm_bwd_row(const struct norm_bwd_args *a, int64_t r, float *d_w, float *d_b,
                         bool center, bool bf16) {
    int64_t width = a->x.shape[1], at = r * width;
    float rstd = ((const float *)a->rstd.data)[r], mean = 0, mean_g = 0;
    const void *x = a->x.data, *dy = a->d_out.data, *w = a->weight.data, *dr = a->d_residual.data;
    vf dot = vf_set(0), sum = vf_set(0);
    if (center)
        mean = row_mean(x, at, width, bf16);
    FOR_ROW(width, i, {
        vf g = get(dy, at + i, n, whole, bf16), v = get(x, at + i, n, whole, bf16);
        if (w)
            g *= get(w, i, n, whole, bf16);
        if (center) {
            v -= mean;
            sum += g;
        }
        dot = vf_fma(g, v, dot);
    });
    float mean_gx = vf_hsum(dot) * rstd / (float)width;
    if (center)
        mean_g = vf_hsum(sum) / (float)width;
    FOR_ROW(width, i, {
        vf v = get(dy, at + i, n, whole, bf16), xh = get(x, at + i, n, whole, bf16);
        if (center)
            xh -= mean;
        xh *= rstd;
        if (d_w)
            put(d_w, i, vf_fma(v, xh, get(d_w, i, n, whole, false)), n, whole, false);
        if (d_b)
            put(d_b, i, v + get(d_b, i, n, whole, false), n, whole, false);
        vf less = center ? xh * mean_gx + mean_g : xh * mean_gx;
        v = rstd * (w ? vf_fma(v, get(w, i, n, whole, bf16), -less) : v - less);
        if (dr)
            v += get(dr, at + i, n, whole, bf16);
        put(a->d_x.data, at + i, v, n, whole, bf16);
    });
}

/* out[c] += sum of partial[block, c], columns shared out among the threads. */
static void add_blocks(float *out, const float *partial, int64_t blocks, int64_t width) {
    int64_t n_vector = (width + VF_LEN - 1) / VF_LEN;
#pragma omp parallel for schedule(static) if (blocks * width >= PARALLEL_MIN)
    for (int64_t j = 0; j < n_vector; j++) {
        int64_t c = j * VF_LEN, n = size_min(VF_LEN, width - c);
        bool whole = n == VF_LEN;
        vf sum = vf_set(0);
        for (int64_t b = 0; b < blocks; b++)
            sum += get(partial, b * width + c, n, whole, false);
        put(out, c, get(out, c, n, whole, false) + sum, n, whole, false);
    }
}

/* The partial sums of d_w, of every block, and behind them those of d_b, as far as wanted. */
enum status ISA(norm_bwd)(struct backend *be, const struct norm_bwd_args *a) {
    int64_t n_row = a->x.shape[0], width = a->x.shape[1];
    int64_t blocks = (n_row + ROW_BLOCK - 1) / ROW_BLOCK;
    int64_t n_sum = (a->d_weight.data != NULL) + (a->d_bias.data != NULL);
    bool bf16 = a->x.dtype == DTYPE_BF16;
    float *partial = NULL, *partial_b = NULL;
    if (n_sum)
        TRY(cpu_scratch(be, SCRATCH_OP, n_sum * blocks * width * (int64_t)sizeof *partial,
                        &partial));
    if (a->d_bias.data)
        partial_b = partial + (n_sum - 1) * blocks * width;
#pragma omp parallel for schedule(static) if (n_row * width >= PARALLEL_MIN)
    for (int64_t b = 0; b < blocks; b++) {
        float *d_w = a->d_weight.data ? partial + b * width : NULL;
        float *d_b = partial_b ? partial_b + b * width : NULL;
        if (d_w)
            memset(d_w, 0, (size_t)width * sizeof *d_w);
        if (d_b)
            memset(d_b, 0, (size_t)width * sizeof *d_b);
        for (int64_t r = b * ROW_BLOCK; r < size_min(n_row, (b + 1) * ROW_BLOCK); r++) {
            if (a->center && bf16)
                norm_bwd_row(a, r, d_w, d_b, true, true);
            else if (a->center)
                norm_bwd_row(a, r, d_w, d_b, true, false);
            else if (bf16)
                norm_bwd_row(a, r, d_w, d_b, false, true);
            else
                norm_bwd_row(a, r, d_w, d_b, false, false);
        }
    }
    if (a->d_weight.data)
        add_blocks(a->d_weight.data, partial, blocks, width);
    if (a->d_bias.data)
        add_blocks(a->d_bias.data, partial_b, blocks, width);
    return STATUS_OK;
}

INLINE void sum_rows(const struct bias_bwd_args *a, int64_t first, int64_t end, float *sum,
                     bool bf16) {
    memset(sum, 0, (size_t)a->n_col * sizeof *sum);
    for (int64_t r = first; r < end; r++)
        FOR_ROW(a->n_col, i, {
            vf v = get(a->d_out, r * a->row_stride + i, n, whole, bf16);
            put(sum, i, get(sum, i, n, whole, false) + v, n, whole, false);
        });
}

enum status ISA(bias_bwd)(struct backend *be, const struct bias_bwd_args *a) {
    int64_t blocks = (a->n_row + ROW_BLOCK - 1) / ROW_BLOCK;
    bool bf16 = a->dtype == DTYPE_BF16;
    float *partial;
    TRY(cpu_scratch(be, SCRATCH_OP, blocks * a->n_col * (int64_t)sizeof *partial, &partial));
#pragma omp parallel for schedule(static) if (a->n_row * a->n_col >= PARALLEL_MIN)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t first = b * ROW_BLOCK, end = size_min(a->n_row, first + ROW_BLOCK);
        if (bf16)
            sum_rows(a, first, end, partial + b * a->n_col, true);
        else
            sum_rows(a, first, end, partial + b * a->n_col, false);
    }
    add_blocks(a->d_bias.data, partial, blocks, a->n_col);
    return STATUS_OK;
}

enum status ISA(embed)(struct backend *be, const struct embed_args *a) {
    (void)be;
    int64_t row = a->out.shape[1] * dtype_size(a->out.dtype);
    TRY(cpu_check_embed("embed", a));
#pragma omp parallel for schedule(static) if (tensor_count(&a->out) >= PARALLEL_MIN)
    for (int64_t r = 0; r < a->out.shape[0]; r++)
        memcpy((char *)a->out.data + r * row, (const char *)a->table.data + a->ids[r] * row,
               (size_t)row);
    return STATUS_OK;
}

INLINE void embed_bwd_row(const struct embed_args *a, int64_t r, bool bf16) {
    int64_t width = a->out.shape[1];
    float *d = (float *)a->table.data + a->ids[r] * width;
    FOR_ROW(width, i, {
        vf v = get(a->out.data, r * width + i, n, whole, bf16);
        put(d, i, get(d, i, n, whole, false) + v, n, whole, false);
    });
}

/* Each thread takes the ids that are its own modulo the number of threads, in row order. */
enum status ISA(embed_bwd)(struct backend *be, const struct embed_args *a) {
    (void)be;
    int parts = tensor_count(&a->out) >= PARALLEL_MIN ? parallel_threads() : 1;
    bool bf16 = a->out.dtype == DTYPE_BF16;
    TRY(cpu_check_embed("embed_bwd", a));
#pragma omp parallel for schedule(static) if (parts > 1)
    for (int part = 0; part < parts; part++)
        for (int64_t r = 0; r < a->out.shape[0]; r++) {
            if (a->ids[r] % parts != part)
                continue;
            if (bf16)
                embed_bwd_row(a, r, true);
            else
                embed_bwd_row(a, r, false);
        }
    return STATUS_OK;
}

/* cos and sin of position * inv_freq: the angle reduced to [-pi/4, pi/4] in double (late positions
 * would lose their fraction in float), then Taylor series exact to 3e-9. */
static void angles(double position, const float *inv_freq, int64_t n, bool inverse, float *cosine,
                   float *sine) {
    for (int64_t i = 0; i < n; i++) {
        double angle = position * (double)inv_freq[i];
        double k = __builtin_nearbyint(angle * 0.63661977236758134308);
        double r = __builtin_fma(-k, 1.57079632679489655800, angle);
        r = __builtin_fma(-k, 6.123233995736766036e-17, r);
        double quadrant = k - 4 * __builtin_floor(k * 0.25), t = r * r;
        double s = r * (1 + t * (-1.0 / 6 + t * (1.0 / 120 + t * (-1.0 / 5040 + t / 362880))));
        double c =
            1 + t * (-0.5 + t * (1.0 / 24 + t * (-1.0 / 720 + t * (1.0 / 40320 - t / 3628800))));
        bool odd = quadrant == 1 || quadrant == 3;
        double sin_angle = odd ? c : s, cos_angle = odd ? s : c;
        sine[i] = (float)((quadrant >= 2) != inverse ? -sin_angle : sin_angle);
        cosine[i] = (float)(quadrant == 1 || quadrant == 2 ? -cos_angle : cos_angle);
    }
}

INLINE void rope_split(void *x, int64_t at, int64_t half, const float *cosine, const float *sine,
                       bool bf16) {
    FOR_ROW(half, i, {
        vf c = get(cosine, i, n, whole, false), s = get(sine, i, n, whole, false);
        vf u = get(x, at + i, n, whole, bf16), v = get(x, at + half + i, n, whole, bf16);
        put(x, at + i, u * c - v * s, n, whole, bf16);
        put(x, at + half + i, v * c + u * s, n, whole, bf16);
    });
}

/* Pairs side by side are rare (converted checkpoints are half-split): one at a time. */
INLINE void rope_interleaved(void *x, int64_t at, int64_t half, const float *cosine,
                             const float *sine, bool bf16) {
    for (int64_t i = 0; i < half; i++) {
        vf pair = vf_get_n(x, at + 2 * i, 2, bf16), turned = vf_set(0);
        turned[0] = pair[0] * cosine[i] - pair[1] * sine[i];
        turned[1] = pair[1] * cosine[i] + pair[0] * sine[i];
        vf_put_n(x, at + 2 * i, turned, 2, bf16);
    }
}

enum status ISA(rope)(struct backend *be, const struct rope_args *a) {
    int64_t half = a->rotary / 2;
    bool bf16 = a->dtype == DTYPE_BF16;
    if (half > MAX_PAIRS)
        return ((struct cpu_state *)be->state)->reference.rope(be, a);
#pragma omp parallel for schedule(static) if (a->n_row * a->n_head * a->rotary >= PARALLEL_MIN)
    for (int64_t r = 0; r < a->n_row; r++) {
        float cosine[MAX_PAIRS], sine[MAX_PAIRS];
        angles((double)(a->first_position + r % a->n_seq), a->inv_freq, half, a->inverse, cosine,
               sine);
        for (int64_t h = 0; h < a->n_head; h++) {
            int64_t at = r * a->row_stride + h * a->head_dim;
            if (a->interleaved && bf16)
                rope_interleaved(a->x, at, half, cosine, sine, true);
            else if (a->interleaved)
                rope_interleaved(a->x, at, half, cosine, sine, false);
            else if (bf16)
                rope_split(a->x, at, half, cosine, sine, true);
            else
                rope_split(a->x, at, half, cosine, sine, false);
        }
    }
    return STATUS_OK;
}
