/* What the attention kernels are built from: tiles of f32 in scratch, the packers that fill them
 * from strided F32 or BF16 heads, and one register-blocked product C (+)= A B for all of S = Q K^T,
 * O += P V, dV += P^T dO and so on. Rows of a tile are the query rows of one KV head, the heads of
 * its group side by side (row = query * group + head), so that a K/V tile serves the whole group.
 */
#ifndef REGROUP_KERNELS_CPU_SIMD_ATTENTION_TILE_H
#define REGROUP_KERNELS_CPU_SIMD_ATTENTION_TILE_H

#include "kernels/backend.h"
#include "kernels/cpu/simd/simd.h"

#include <string.h>

/* 12 x 2 (6 x 2) accumulators leave registers for the two B vectors and a broadcast. TILE_KEYS is
 * a multiple of both TILE_ROWS and a vector pair, so that whole tiles have no tails. */
enum {
    TILE_ROWS = VF_LEN == 16 ? 12 : 6,
    TILE_COLS = 2 * VF_LEN,
    TILE_KEYS = 96,
};

#define UNROLL _Pragma("GCC unroll 16")

/* What C holds before A B is added: nothing, itself, or itself times a factor per row. */
enum tile_start { TILE_ZERO, TILE_ADD, TILE_SCALE };

/* Element (i, k) of A at a[i * a_row + k * a_col]. m, n (in vectors), the strides of A and `start`
 * are constants where this is inlined. The sum over k runs in order in one accumulator, so a row's
 * result does not depend on the rows it shares the registers with. */
INLINE void tile_product(int m, int n, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                         const void *b, int64_t ldb, bool b_bf16, float *c, int64_t ldc,
                         enum tile_start start, const float *factor) {
    vf acc[TILE_ROWS][4];
    UNROLL
    for (int i = 0; i < m; i++) {
        UNROLL
        for (int j = 0; j < n; j++) {
            acc[i][j] = start == TILE_ZERO ? vf_set(0) : vf_load(c + i * ldc + j * VF_LEN);
            if (start == TILE_SCALE)
                acc[i][j] *= vf_set(factor[i]);
        }
    }
    for (int64_t l = 0; l < k; l++) {
        vf bv[4];
        UNROLL
        for (int j = 0; j < n; j++)
            bv[j] = vf_get(b, l * ldb + j * VF_LEN, b_bf16);
        UNROLL
        for (int i = 0; i < m; i++) {
            vf av = vf_set(a[i * a_row + l * a_col]);
            UNROLL
            for (int j = 0; j < n; j++)
                acc[i][j] = vf_fma(av, bv[j], acc[i][j]);
        }
    }
    UNROLL
    for (int i = 0; i < m; i++) {
        UNROLL
        for (int j = 0; j < n; j++)
            vf_store(c + i * ldc + j * VF_LEN, acc[i][j]);
    }
}

/* The same over n_vec vectors of columns; with few rows, more columns at a time hide the latency.
 */
INLINE void tile_columns(int m, int64_t n_vec, int64_t k, const float *a, int64_t a_row,
                         int64_t a_col, const void *b, int64_t ldb, bool b_bf16, float *c,
                         int64_t ldc, enum tile_start start, const float *factor) {
    int64_t j = 0;
    const char *bytes = b;
    int64_t step = VF_LEN * (b_bf16 ? 2 : 4);
    if (m <= 2) {
        for (; j + 4 <= n_vec; j += 4)
            tile_product(m, 4, k, a, a_row, a_col, bytes + j * step, ldb, b_bf16, c + j * VF_LEN,
                         ldc, start, factor);
    }
    for (; j + 2 <= n_vec; j += 2)
        tile_product(m, 2, k, a, a_row, a_col, bytes + j * step, ldb, b_bf16, c + j * VF_LEN, ldc,
                     start, factor);
    if (j < n_vec)
        tile_product(m, 1, k, a, a_row, a_col, bytes + j * step, ldb, b_bf16, c + j * VF_LEN, ldc,
                     start, factor);
}

/* m <= TILE_ROWS rows. Up to TILE_ROWS are computed, so A and C must have that many. */
INLINE void tile_strip(int64_t m, int64_t n_vec, int64_t k, const float *a, int64_t a_row,
                       int64_t a_col, const void *b, int64_t ldb, bool b_bf16, float *c,
                       int64_t ldc, enum tile_start start, const float *factor) {
    if (m == 1)
        tile_columns(1, n_vec, k, a, a_row, a_col, b, ldb, b_bf16, c, ldc, start, factor);
    else if (m == 2)
        tile_columns(2, n_vec, k, a, a_row, a_col, b, ldb, b_bf16, c, ldc, start, factor);
    else if (m <= 4)
        tile_columns(4, n_vec, k, a, a_row, a_col, b, ldb, b_bf16, c, ldc, start, factor);
    else if (TILE_ROWS == 12 && m <= 8)
        tile_columns(8, n_vec, k, a, a_row, a_col, b, ldb, b_bf16, c, ldc, start, factor);
    else
        tile_columns(TILE_ROWS, n_vec, k, a, a_row, a_col, b, ldb, b_bf16, c, ldc, start, factor);
}

/* Rows x keys from a panel of rows ([k][TILE_ROWS]) and transposed keys ([k][TILE_KEYS]). */
static __attribute__((unused)) void tile_scores(int64_t m, int64_t n_vec, int64_t k,
                                                const float *panel, const float *keys, float *c) {
    tile_strip(m, n_vec, k, panel, 1, TILE_ROWS, keys, TILE_KEYS, false, c, TILE_KEYS, TILE_ZERO,
               NULL);
}

/* Rows x width += (rows x keys) (keys x width), the first factor row-major. */
static __attribute__((unused)) void tile_weigh(int64_t m, int64_t n_vec, int64_t k, const float *p,
                                               const float *b, int64_t ldb, float *c, int64_t ldc) {
    tile_strip(m, n_vec, k, p, TILE_KEYS, 1, b, ldb, false, c, ldc, TILE_ADD, NULL);
}

/* Keys [first, end) of the sequence that a query position sees. */
INLINE int64_t first_visible(const struct attention_args *a, int64_t position) {
    return a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
}
INLINE int64_t end_visible(const struct attention_args *a, int64_t position) {
    return position + 1 < a->n_key ? position + 1 : a->n_key;
}

/* All ones in the lanes of keys [lo, hi), lane 0 being key `at`; lo <= hi. */
INLINE vu lanes_between(int64_t at, int64_t lo, int64_t hi) {
    vu lane;
    for (int i = 0; i < VF_LEN; i++)
        lane[i] = (uint32_t)i;
    lane = lane + (uint32_t)(at - lo); /* below lo it wraps around and is large */
    return (vu)(lane < (uint32_t)(hi - lo));
}

INLINE int64_t vectors(int64_t n) {
    return (n + VF_LEN - 1) / VF_LEN;
}

/* Element offset of row t of a head. */
INLINE int64_t head_at(const struct heads *x, int64_t b, int64_t t, int64_t h) {
    return b * x->batch + t * x->row + h * x->head;
}

INLINE void load_row(float *out, const void *in, int64_t at, int64_t width, float scale,
                     bool bf16) {
    int64_t i = 0;
    for (; i + VF_LEN <= width; i += VF_LEN)
        vf_store(out + i, vf_get(in, at + i, bf16) * scale);
    if (i < width)
        vf_store(out + i, vf_get_n(in, at + i, width - i, bf16) * scale);
}

INLINE void store_row(void *out, int64_t at, const float *in, int64_t width, float scale,
                      bool bf16) {
    int64_t i = 0;
    for (; i + VF_LEN <= width; i += VF_LEN)
        vf_put(out, at + i, vf_load(in + i) * scale, bf16);
    if (i < width)
        vf_put_n(out, at + i, vf_load(in + i) * scale, width - i, bf16);
}

/* Ask for rows [first, end) ahead of their use: the hardware does not follow rows across pages. */
static __attribute__((unused)) void prefetch_rows(const struct heads *x, int64_t b, int64_t h,
                                                  int64_t first, int64_t end, int64_t width,
                                                  bool bf16) {
    int64_t size = bf16 ? 2 : 4;
    for (int64_t i = first; i < end; i++) {
        const char *row = (const char *)x->data + head_at(x, b, i, h) * size;
        for (int64_t at = 0; at < width * size; at += 64)
            _mm_prefetch(row + at, _MM_HINT_T0);
    }
}

/* out[i] = row first + i of head h as f32, padded with zeros to ld (whole vectors). */
static __attribute__((unused)) void pack_rows(float *out, int64_t ld, const struct heads *x,
                                              int64_t b, int64_t h, int64_t first, int64_t n,
                                              int64_t width, bool bf16) {
    for (int64_t i = 0; i < n; i++) {
        if (bf16)
            load_row(out + i * ld, x->data, head_at(x, b, first + i, h), width, 1, true);
        else
            load_row(out + i * ld, x->data, head_at(x, b, first + i, h), width, 1, false);
    }
}

#ifdef __AVX512F__
#define INTERLEAVE_LOW(a, b)                                                                       \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define INTERLEAVE_HIGH(a, b)                                                                      \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#else
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#endif

/* A square of VF_LEN rows, transposed by log2(VF_LEN) perfect shuffles. */
INLINE void transpose_square(vf x[VF_LEN]) {
    UNROLL
    for (int stage = 1; stage < VF_LEN; stage *= 2) {
        vf y[VF_LEN];
        UNROLL
        for (int i = 0; i < VF_LEN / 2; i++) {
            y[2 * i] = INTERLEAVE_LOW(x[i], x[i + VF_LEN / 2]);
            y[2 * i + 1] = INTERLEAVE_HIGH(x[i], x[i + VF_LEN / 2]);
        }
        UNROLL
        for (int i = 0; i < VF_LEN; i++)
            x[i] = y[i];
    }
}

/* Squares are of 32-bit units: one F32 element, or two BF16 ones, taken apart at the end. */
INLINE void pack_transposed_as(float *out, const struct heads *x, int64_t b, int64_t h,
                               int64_t first, int64_t n, int64_t width, bool bf16) {
    int64_t size = bf16 ? 2 : 4, step = VF_LEN * 4 / size;
    for (int64_t j = 0; j < n; j += VF_LEN) {
        int64_t rows = n - j < VF_LEN ? n - j : VF_LEN;
        for (int64_t c = 0; c < width; c += step) {
            int64_t cols = width - c < step ? width - c : step;
            const char *from = (const char *)x->data + (head_at(x, b, first + j, h) + c) * size;
            vf square[VF_LEN];
            if (rows == VF_LEN && cols == step) {
                UNROLL
                for (int i = 0; i < VF_LEN; i++)
                    square[i] = vf_load((const float *)(const void *)(from + i * x->row * size));
            } else {
                for (int64_t i = 0; i < VF_LEN; i++) {
                    float units[VF_LEN] = {0};
                    if (i < rows)
                        memcpy(units, from + i * x->row * size, (size_t)(cols * size));
                    square[i] = vf_load(units);
                }
            }
            transpose_square(square);
            float *to = out + c * TILE_KEYS + j;
            UNROLL
            for (int i = 0; i < VF_LEN; i++) {
                if (bf16) {
                    if (2 * i < cols)
                        vf_store(to + 2 * i * TILE_KEYS, (vf)((vu)square[i] << 16));
                    if (2 * i + 1 < cols)
                        vf_store(to + (2 * i + 1) * TILE_KEYS, (vf)((vu)square[i] & 0xffff0000u));
                } else if (i < cols) {
                    vf_store(to + i * TILE_KEYS, square[i]);
                }
            }
        }
    }
}

/* out[c * TILE_KEYS + j] = element c of row first + j, zero from n up to a whole vector. */
static __attribute__((unused)) void pack_transposed(float *out, const struct heads *x, int64_t b,
                                                    int64_t h, int64_t first, int64_t n,
                                                    int64_t width, bool bf16) {
    if (bf16)
        pack_transposed_as(out, x, b, h, first, n, width, true);
    else
        pack_transposed_as(out, x, b, h, first, n, width, false);
}

/* Query rows of one KV head: queries [first, first + n_row / group) of the heads of its group. */
struct row_block {
    int64_t batch, head; /* the first query head of the group */
    int64_t group, first, n_row;
};
INLINE int64_t row_query(const struct row_block *q, int64_t row) {
    return q->first + row / q->group;
}
INLINE int64_t row_at(const struct heads *x, const struct row_block *q, int64_t row) {
    return head_at(x, q->batch, row_query(q, row), q->head + row % q->group);
}
INLINE int64_t row_lse(const struct attention_args *a, const struct row_block *q, int64_t row) {
    int64_t head = q->batch * a->n_head + q->head + row % q->group;
    return head * a->n_query + row_query(q, row);
}

/* For the rows [row, row + n) of the block: the visible keys [lo, hi) among [tile, tile_end),
 * counted from `tile`; lo == hi when there are none. Both grow with the row. */
INLINE void visible_in_tile(const struct attention_args *a, const struct row_block *q, int64_t row,
                            int64_t n, int64_t tile, int64_t tile_end, int64_t *lo, int64_t *hi) {
    for (int64_t i = 0; i < n; i++) {
        int64_t position = a->q_first + row_query(q, row + i);
        int64_t first = first_visible(a, position), end = end_visible(a, position);
        end = end < tile_end ? end : tile_end;
        hi[i] = end > tile ? end - tile : 0;
        lo[i] = first > tile ? first - tile : 0;
        lo[i] = lo[i] < hi[i] ? lo[i] : hi[i];
    }
}

/* Tiles [*first, *end) that some row of the block sees. */
INLINE void tiles_seen(const struct attention_args *a, const struct row_block *q, int64_t *first,
                       int64_t *end) {
    int64_t position = a->q_first + q->first;
    int64_t last = position + q->n_row / q->group - 1;
    *first = first_visible(a, position) / TILE_KEYS;
    *end = (end_visible(a, last) + TILE_KEYS - 1) / TILE_KEYS;
}

/* The block's rows times scale, row-major (ld >= whole vectors), and as panels of TILE_ROWS rows:
 * element c of row r at panels[(r / TILE_ROWS * width + c) * TILE_ROWS + r % TILE_ROWS], missing
 * rows zero. */
static __attribute__((unused)) void pack_queries(float *rows, int64_t ld, float *panels,
                                                 const struct heads *x, const struct row_block *q,
                                                 int64_t width, float scale, bool bf16) {
    for (int64_t r = 0; r < q->n_row; r++) {
        if (bf16)
            load_row(rows + r * ld, x->data, row_at(x, q, r), width, scale, true);
        else
            load_row(rows + r * ld, x->data, row_at(x, q, r), width, scale, false);
    }
    for (int64_t s = 0; s * TILE_ROWS < q->n_row; s++) {
        float *panel = panels + s * width * TILE_ROWS;
        int64_t n = q->n_row - s * TILE_ROWS < TILE_ROWS ? q->n_row - s * TILE_ROWS : TILE_ROWS;
        if (n < TILE_ROWS)
            memset(panel, 0, sizeof(float) * (size_t)(width * TILE_ROWS));
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < width; c++)
                panel[c * TILE_ROWS + i] = rows[(s * TILE_ROWS + i) * ld + c];
    }
}

#endif
