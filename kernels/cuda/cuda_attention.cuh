/* What the attention kernels on tensor cores share: rows packed over the heads of a group, tiles in
 * shared memory, products of tiles. A tile is [rows][D] bf16 in 16-byte chunks; the chunks of a row
 * change places (swizzled) so that 8 rows of one column of chunks lie in 8 different groups of 4
 * banks: ldmatrix, cp.async and 16-byte accesses then run without bank conflicts. */
#ifndef REGROUP_KERNELS_CUDA_CUDA_ATTENTION_CUH
#define REGROUP_KERNELS_CUDA_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/cuda_device.cuh"

#include <limits.h>

using bf16 = __nv_bfloat16;

constexpr int CHUNK = 8; /* elements in 16 bytes */
constexpr float LOG2_E = 1.44269504088896341f;

/* Element of chunk `chunk` of row `row`. A row of D / 8 chunks takes a multiple of LOW chunks, so
 * 8 / LOW rows tell apart that many groups of banks; the xor of the row's next bits does the rest,
 * within LOW chunks. D = 64, 128, 256: LOW = 8; 96: 4; 80: 2. */
template <int D> __device__ __forceinline__ int swizzled(unsigned row, unsigned chunk) {
    constexpr unsigned N = D / CHUNK, LOW = N % 8 == 0 ? 8 : N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
    return (row * N + (chunk ^ (row / (8 / LOW) % LOW))) * CHUNK;
}

/* One KV head of one sequence and the query heads that read it. Its rows are (position, head of the
 * group), heads running fastest: a tile of rows spans few positions and reads its keys once for
 * the whole group. */
struct packed_rows {
    int batch, kv_head, group, n_row, q_first;
    unsigned group_inverse; /* 2^32 / group, rounded up; 0: group 1 */

    __device__ packed_rows(const struct attention_args &a, int pair)
        : batch(pair / (int)a.n_kv_head), kv_head(pair % (int)a.n_kv_head),
          group((int)(a.n_head / a.n_kv_head)), n_row((int)a.n_query * group),
          q_first((int)a.q_first), group_inverse(0xffffffffu / (unsigned)group + 1) {
    }
    /* row / group, exact while n_row * group < 2^32. */
    __device__ int query(int row) const {
        const int quotient = (int)__umulhi((unsigned)row, group_inverse);
        return group_inverse ? quotient : row;
    }
    /* Among the keys; of the last row for rows beyond it. */
    __device__ int position(int row) const {
        return q_first + query(min(row, n_row - 1));
    }
    __device__ int64_t offset(const struct heads &x, int row) const {
        const int i = query(row);
        return batch * x.batch + (int64_t)(kv_head * group) * x.head + (int64_t)i * (int)x.row +
               (int64_t)(row - i * group) * (int)x.head;
    }
    /* of [n_batch, n_head, n_query] */
    __device__ int64_t statistic(const struct attention_args &a, int row) const {
        const int i = query(row);
        return (batch * a.n_head + kv_head * group + row - i * group) * a.n_query + i;
    }
    __device__ int64_t key_offset(const struct heads &x, int key) const {
        return batch * x.batch + key * x.row + kv_head * x.head;
    }
    __device__ bf16 *key_row(const struct heads &x, int key) const {
        return static_cast<bf16 *>(x.data) + key_offset(x, key);
    }
};

/* Query position p sees key j when p - window < j <= p and j < n_key. */
struct visibility {
    int window, n_key; /* window INT_MAX: none */

    __device__ explicit visibility(const struct attention_args &a)
        : window(a.window > 0 && a.window < a.q_first + a.n_query ? (int)a.window : INT_MAX),
          n_key((int)a.n_key) {
    }
    __device__ bool sees(int position, int key) const {
        return key <= position && key > position - window && key < n_key;
    }
    /* Keys [first, end) are those that a position in [low, high] may see. */
    __device__ int first(int low) const {
        return max(0, low - window + 1);
    }
    __device__ int end(int high) const {
        return min(n_key, high + 1);
    }
    /* The last position that sees `key`. */
    __device__ int last_position(int key) const {
        return window == INT_MAX ? INT_MAX - 1 : key + window - 1;
    }
    /* Does every position in [low, high] see all of keys [key, key + n)? */
    __device__ bool whole(int low, int high, int key, int n) const {
        return key + n <= end(low) && key > high - window;
    }
};

/* The thread (n = 32: the lane), in a way that compilers cannot tell from one that changes with the
 * tile at `key` (>= 0). What is computed from it is then computed anew for each tile, a few integer
 * instructions, instead of being kept over the loop in registers that the accumulators need; uses
 * in one turn of the loop that pass different keys do not share what they compute either. */
__device__ __forceinline__ unsigned fresh_thread(int n, int key) {
#ifndef REGROUP_CUDA_SIM
    asm volatile("" : "+r"(key));
#endif
    return (threadIdx.x ^ (unsigned)(key >> 31)) & (unsigned)(n - 1);
}

/* Rows [0, ROWS) into a tile, row `stride` elements after row; zeros from row `n` on. */
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void copy_keys(bf16 *tile, const bf16 *from, int stride, int n,
                                          int key) {
    constexpr int N = D / CHUNK, EACH = (ROWS * N + THREADS - 1) / THREADS;
    const unsigned thread = fresh_thread(THREADS, key);
    if constexpr (THREADS % N == 0) { /* a thread's chunks lie below each other */
        constexpr int STEP = THREADS / N;
        const int row = thread / N, chunk = thread % N;
        from += (int64_t)row * stride + chunk * CHUNK;
#pragma unroll
        for (int i = 0; i < EACH; i++, from += STEP * stride)
            cp_async_16(tile + swizzled<D>(row + i * STEP, chunk), from, row + i * STEP < n);
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int row = (thread + i * THREADS) / N, chunk = (thread + i * THREADS) % N;
            if (row < ROWS)
                cp_async_16(tile + swizzled<D>(row, chunk),
                            from + (int64_t)row * stride + chunk * CHUNK, row < n);
        }
    }
}

/* Rows [first, first + ROWS) of q, o or d_o likewise. */
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void copy_rows(bf16 *tile, const struct heads &x, const packed_rows &g,
                                          int first) {
    const bf16 *data = static_cast<const bf16 *>(x.data);
    constexpr int N = D / CHUNK, EACH = (ROWS * N + THREADS - 1) / THREADS;
    const unsigned thread = fresh_thread(THREADS, first);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int row = (thread + i * THREADS) / N, chunk = (thread + i * THREADS) % N;
        const bool valid = first + row < g.n_row;
        if (row < ROWS)
            cp_async_16(tile + swizzled<D>(row, chunk),
                        data + g.offset(x, valid ? first + row : 0) + chunk * CHUNK, valid);
    }
}

/* c[m][n] += A B^T: A rows [0, 16 M) of tile `a`, B rows [0, 8 N) of tile `b`. */
template <int D, int M, int N>
__device__ __forceinline__ void multiply_abt(float (&c)[M][N][4], const bf16 *a, const bf16 *b,
                                             int key) {
    const unsigned lane = fresh_thread(WARP, key);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t af[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            ldmatrix_x4(af[m], a + m * 16 * D + swizzled<D>(lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t bf[4];
            ldmatrix_x4(bf, b + n * 8 * D +
                                swizzled<D>(lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            const uint32_t left[2] = {bf[0], bf[1]}, right[2] = {bf[2], bf[3]};
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_bf16_16x8x16(c[m][n], af[m], left);
                mma_bf16_16x8x16(c[m][n + 1], af[m], right);
            }
        }
    }
}

/* Where elements 2 half, 2 half + 1 of accumulator n lie when a product [16 M, 8 N] becomes the
 * left operand of the next one: the fragments agree, no exchange is needed. */
#define LEFT_OPERAND(a, m, n, half) (a)[m][(n) / 2][(n) % 2 * 2 + (half)]

/* c[m][n] += A B: A [16 M, 16 K] in registers; B rows [0, 16 K), columns [8 first_chunk, + 8 N) of
 * tile `b`. */
template <int D, int M, int N, int K>
__device__ __forceinline__ void multiply_ab(float (&c)[M][N][4], const uint32_t (&a)[M][K][4],
                                            const bf16 *b, int first_chunk, int key) {
    const unsigned lane = fresh_thread(WARP, key);
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t bf[4];
            ldmatrix_x4_trans(bf,
                              b + k * 16 * D + swizzled<D>(lane % 16, first_chunk + n + lane / 16));
            const uint32_t left[2] = {bf[0], bf[1]}, right[2] = {bf[2], bf[3]};
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_bf16_16x8x16(c[m][n], a[m][k], left);
                mma_bf16_16x8x16(c[m][n + 1], a[m][k], right);
            }
        }
}

/* Rows [0, 16 M) of a tile from the accumulators of one warp, rounded; columns as above. */
template <int D, int M, int N>
__device__ __forceinline__ void accumulators_to_tile(bf16 *tile, const float (&c)[M][N][4]) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                bf16 *to = tile + swizzled<D>(m * 16 + half * 8 + lane / 4, n) + lane % 4 * 2;
                *reinterpret_cast<uint32_t *>(to) =
                    pack_bf16(c[m][n][2 * half], c[m][n][2 * half + 1]);
            }
}

/* Rows [0, n_row - first) of a warp's part of a tile, at most ROWS, to rows [first, ...) of o or
 * d_q. */
template <int D, int ROWS>
__device__ __forceinline__ void store_rows(const struct heads &x, const packed_rows &g, int first,
                                           const bf16 *tile) {
    bf16 *data = static_cast<bf16 *>(x.data);
    constexpr int N = D / CHUNK;
    static_assert(ROWS * N % WARP == 0, "whole turns");
#pragma unroll 4
    for (int i = threadIdx.x % WARP; i < ROWS * N; i += WARP) {
        int row = i / N, chunk = i % N;
        if (first + row < g.n_row)
            *reinterpret_cast<uint4 *>(data + g.offset(x, first + row) + chunk * CHUNK) =
                *reinterpret_cast<const uint4 *>(tile + swizzled<D>(row, chunk));
    }
}

template <int M, int N> __device__ __forceinline__ void clear(float (&c)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[m][n][i] = 0;
}

/* 2^x to two units in the last place; denormal results are 0. */
__device__ __forceinline__ float exp2_fast(float x) {
#ifdef REGROUP_CUDA_SIM
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* s[m][n] of rows [first, ...) and keys [key, ...): -infinity where the row does not see the key.
 */
template <int M, int N>
__device__ __forceinline__ void hide(float (&s)[M][N][4], const visibility &see,
                                     const packed_rows &g, int first, int key) {
    const unsigned lane = fresh_thread(WARP, key);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int position = g.position(first + m * 16 + half * 8 + lane / 4);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (!see.sees(position, key + n * 8 + lane % 4 * 2 + i))
                        s[m][n][2 * half + i] = -INFINITY;
        }
}

/* Over the 4 lanes that hold one row of an accumulator. */
__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(FULL_MASK, v, 1);
    return v + __shfl_xor_sync(FULL_MASK, v, 2);
}
__device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(FULL_MASK, v, 1));
    return fmaxf(v, __shfl_xor_sync(FULL_MASK, v, 2));
}

/* Scores to probabilities against the new row maximum, as bf16; updates top and sum, scales o. */
template <int M, int N, int C>
__device__ __forceinline__ void
online_softmax(uint32_t (&p)[M][N / 2][4], const float (&s)[M][N][4], float (&o)[M][C][4],
               float (&top)[M][2], float (&sum)[M][2], float scale2) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = 2 * half;
            float most = top[m][half];
#pragma unroll
            for (int n = 0; n < N; n++)
                most = fmaxf(most, fmaxf(s[m][n][i], s[m][n][i + 1]));
            most = quad_max(most);
            /* A row that has seen no key yet keeps sum 0; NaN never is the maximum and comes back
             * through exp2. */
            const float shift = most == -INFINITY ? 0 : most * scale2;
            const float shrink = exp2_fast(top[m][half] * scale2 - shift);
            float part = 0;
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float left = exp2_fast(s[m][n][i] * scale2 - shift);
                const float right = exp2_fast(s[m][n][i + 1] * scale2 - shift);
                part += left + right;
                LEFT_OPERAND(p, m, n, half) = pack_bf16(left, right);
            }
            top[m][half] = most;
            sum[m][half] = sum[m][half] * shrink + part;
#pragma unroll
            for (int c = 0; c < C; c++) {
                o[m][c][i] *= shrink;
                o[m][c][i + 1] *= shrink;
            }
        }
}

/* The statement with D = a head_dim that has tile kernels. */
#define ATTENTION_HEAD_DIM(head_dim_, D, ...)                                                      \
    switch (head_dim_) {                                                                           \
        ATTENTION_CASE(64, D, __VA_ARGS__)                                                         \
        ATTENTION_CASE(80, D, __VA_ARGS__)                                                         \
        ATTENTION_CASE(96, D, __VA_ARGS__)                                                         \
        ATTENTION_CASE(128, D, __VA_ARGS__)                                                        \
        ATTENTION_CASE(256, D, __VA_ARGS__)                                                        \
    }
#define ATTENTION_CASE(value, D, ...)                                                              \
    case value: {                                                                                  \
        constexpr int D = value;                                                                   \
        __VA_ARGS__;                                                                               \
    } break;

#endif
