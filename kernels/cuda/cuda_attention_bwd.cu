/* Gradients of attention on tensor cores, the probabilities recomputed from lse. Two passes: a
 * block of the first owns keys and walks the packed rows that see them, summing dK and dV over
 * positions and over the heads of the group; a block of the second owns rows and walks their keys
 * for dQ. So every sum has one owner and a fixed order, no block waits for another, nothing is
 * rounded on the way; the price is S and dP twice, 14 flops per visible pair and column where 10
 * are needed. Both passes hold P and dS only in registers: a result of one product is the operand
 * of the next. */
#include "kernels/cuda/cuda_attention.cuh"

/* COLUMNS: of dK and dV in one block; two blocks share the work at head_dim 256, whose accumulators
 * one cannot hold, and both compute P and dS. */
template <int D> struct key_shape {
    static constexpr int WARPS = D > 128 ? 4 : 8, ROWS = D > 128 ? 32 : 64;
    static constexpr int COLUMNS = D > 128 ? 128 : D, SLICES = D / COLUMNS;
    static constexpr int THREADS = WARPS * WARP, KEYS = 16 * WARPS;
    static constexpr int SHARED =
        (2 * KEYS + 4 * ROWS) * D * (int)sizeof(bf16) + 2 * ROWS * 2 * (int)sizeof(float);
};

/* dV = P^T dO, dK = scale dS^T Q. A warp owns 16 keys: S^T = K Q^T and dP^T = V dO^T have its keys
 * as rows. Q and dO of the next rows arrive while these are used; rows beyond the last are zeros
 * and add nothing. */
template <int D>
__global__ void __launch_bounds__(key_shape<D>::THREADS)
    attention_backward_keys(struct attention_bwd_args args, const float *delta) {
    using shape = key_shape<D>;
    constexpr int ROWS = shape::ROWS, KEYS = shape::KEYS, THREADS = shape::THREADS;
    constexpr int N = ROWS / 8, C = shape::COLUMNS / 8;
    const struct attention_args &a = args.fwd;
    SHARED_DYNAMIC(bf16, k_tile);
    bf16 *const v_tile = k_tile + KEYS * D, *const q_tiles = v_tile + KEYS * D;
    bf16 *const d_o_tiles = q_tiles + 2 * ROWS * D;
    float *const lses = reinterpret_cast<float *>(d_o_tiles + 2 * ROWS * D);
    float *const deltas = lses + 2 * ROWS;

    /* The first keys are seen by the most rows and start first. */
    const int n_pair = (int)(a.n_batch * a.n_kv_head);
    const int work = blockIdx.x / shape::SLICES, slice = blockIdx.x % shape::SLICES;
    const packed_rows g(a, work % n_pair);
    const visibility see(a);
    const int first = work / n_pair * KEYS, last = min(first + KEYS, see.n_key) - 1;
    const int row_end = min((int)a.n_query, see.last_position(last) - g.q_first + 1) * g.group;
    int row = max(0, first - g.q_first) * g.group;

    const auto warp_key = [](int row) { return (int)fresh_thread(THREADS, row) / WARP * 16; };
    float d_k[1][C][4], d_v[1][C][4];
    clear(d_k);
    clear(d_v);
    copy_keys<D, KEYS, THREADS>(k_tile, g.key_row(a.k, first), (int)a.k.row, last + 1 - first, 0);
    copy_keys<D, KEYS, THREADS>(v_tile, g.key_row(a.v, first), (int)a.v.row, last + 1 - first, 1);
    const auto fetch = [&](int from, int buffer) {
        copy_rows<D, ROWS, THREADS>(q_tiles + buffer * ROWS * D, a.q, g, from);
        copy_rows<D, ROWS, THREADS>(d_o_tiles + buffer * ROWS * D, args.d_o, g, from);
        const int mine = from + threadIdx.x;
        if (threadIdx.x < ROWS) {
            const bool valid = mine < g.n_row;
            const int64_t i = g.statistic(a, valid ? mine : 0);
            cp_async_4(lses + buffer * ROWS + threadIdx.x, static_cast<const float *>(a.lse) + i,
                       valid);
            cp_async_4(deltas + buffer * ROWS + threadIdx.x, delta + i, valid);
        }
        cp_async_commit();
    };
    fetch(row, 0);

    const float scale2 = (float)a.scale * LOG2_E;
    for (int buffer = 0; row < row_end; row += ROWS, buffer ^= 1) {
        cp_async_wait<0>();
        __syncthreads(); /* these rows are here; the other buffer has been used */
        if (row + ROWS < row_end)
            fetch(row + ROWS, buffer ^ 1);
        const bf16 *const q_tile = q_tiles + buffer * ROWS * D;
        const bf16 *const d_o_tile = d_o_tiles + buffer * ROWS * D;
        const unsigned l = fresh_thread(WARP, row + 4);
        const int column = buffer * ROWS + l % 4 * 2; /* of lses and deltas, plus 8 n */

        float s[1][N][4], d_p[1][N][4];
        uint32_t p[1][N / 2][4], d_s[1][N / 2][4];
        clear(s);
        multiply_abt<D>(s, k_tile + warp_key(row) * D, q_tile, row);
        clear(d_p);
        multiply_abt<D>(d_p, v_tile + warp_key(row + 2) * D, d_o_tile, row + 2);
        if (!see.whole(g.position(row), g.position(row + ROWS - 1), first, KEYS)) {
            const int key = first + warp_key(row) + l / 4;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int position = g.position(row + n * 8 + l % 4 * 2 + i);
                    if (!see.sees(position, key))
                        s[0][n][i] = -INFINITY;
                    if (!see.sees(position, key + 8))
                        s[0][n][i + 2] = -INFINITY;
                }
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            float p_n[4], d_s_n[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float lse2 = lses[column + n * 8 + i % 2] * LOG2_E;
                p_n[i] = exp2_fast(s[0][n][i] * scale2 - lse2);
                d_s_n[i] = p_n[i] * (d_p[0][n][i] - deltas[column + n * 8 + i % 2]);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                LEFT_OPERAND(p, 0, n, half) = pack_bf16(p_n[2 * half], p_n[2 * half + 1]);
                LEFT_OPERAND(d_s, 0, n, half) = pack_bf16(d_s_n[2 * half], d_s_n[2 * half + 1]);
            }
        }
        multiply_ab<D>(d_v, p, d_o_tile, slice * C, row + 1);
        multiply_ab<D>(d_k, d_s, q_tile, slice * C, row + 3);
    }
    cp_async_wait<0>(); /* K and V, where no row sees these keys */
    __syncthreads();

#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            d_k[0][c][i] *= (float)a.scale;
    /* Through the warp's own rows of the tiles, which nobody else reads. */
    const int lane = fresh_thread(WARP, row), mine = warp_key(row);
    bf16 *const mine_k = k_tile + mine * D, *const mine_v = v_tile + mine * D;
    accumulators_to_tile<D>(mine_k, d_k);
    accumulators_to_tile<D>(mine_v, d_v);
    __syncwarp();
    for (int i = lane; i < 16 * C; i += WARP) {
        const int key = first + mine + i / C, chunk = i % C, at = slice * C + chunk;
        if (key > last)
            continue;
        *reinterpret_cast<uint4 *>(g.key_row(args.d_k, key) + at * CHUNK) =
            *reinterpret_cast<const uint4 *>(mine_k + swizzled<D>(i / C, chunk));
        *reinterpret_cast<uint4 *>(g.key_row(args.d_v, key) + at * CHUNK) =
            *reinterpret_cast<const uint4 *>(mine_v + swizzled<D>(i / C, chunk));
    }
}

template <int D> struct row_shape {
    static constexpr int WARPS = 4, FRAGMENTS = D > 128 ? 1 : 2;
    static constexpr int THREADS = WARPS * WARP, ROWS = 16 * FRAGMENTS * WARPS, KEYS = 32;
    static constexpr int SHARED = (2 * ROWS + 4 * KEYS) * D * (int)sizeof(bf16);
};

/* dQ = scale dS K. A warp owns whole rows; K and V of the next keys arrive while these are used. */
template <int D>
__global__ void __launch_bounds__(row_shape<D>::THREADS)
    attention_backward_rows(struct attention_bwd_args args, const float *delta, int n_tile) {
    using shape = row_shape<D>;
    constexpr int M = shape::FRAGMENTS, ROWS = shape::ROWS, KEYS = shape::KEYS;
    constexpr int THREADS = shape::THREADS, N = KEYS / 8, C = D / 8;
    const struct attention_args &a = args.fwd;
    SHARED_DYNAMIC(bf16, q_tile);
    bf16 *const d_o_tile = q_tile + ROWS * D, *const k_tiles = d_o_tile + ROWS * D;
    bf16 *const v_tiles = k_tiles + 2 * KEYS * D;

    /* The tiles with the most keys start first. */
    const int n_pair = (int)(a.n_batch * a.n_kv_head), lane = threadIdx.x % WARP;
    const packed_rows g(a, blockIdx.x % n_pair);
    const visibility see(a);
    const int first = (n_tile - 1 - (int)(blockIdx.x / n_pair)) * ROWS;
    const int low = g.position(first), high = g.position(first + ROWS - 1);
    const int key_end = see.end(high);
    int key = see.first(low);

    const bf16 *const k = g.key_row(a.k, 0), *const v = g.key_row(a.v, 0);
    const int k_stride = (int)a.k.row, v_stride = (int)a.v.row;
    const auto fetch = [&](int from, int buffer) {
        copy_keys<D, KEYS, THREADS>(k_tiles + buffer * KEYS * D, k + (int64_t)from * k_stride,
                                    k_stride, key_end - from, from + 1);
        copy_keys<D, KEYS, THREADS>(v_tiles + buffer * KEYS * D, v + (int64_t)from * v_stride,
                                    v_stride, key_end - from, from + 2);
        cp_async_commit();
    };
    const int warp_row = threadIdx.x / WARP * 16 * M;
    float lse2[M][2], minus[M][2]; /* a row's lse in units of log 2, and delta */
    float d_q[M][C][4];
    clear(d_q);
    copy_rows<D, ROWS, THREADS>(q_tile, a.q, g, first);
    copy_rows<D, ROWS, THREADS>(d_o_tile, args.d_o, g, first);
    fetch(key, 0);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + warp_row + m * 16 + half * 8 + lane / 4;
            const int64_t i = g.statistic(a, min(row, g.n_row - 1));
            lse2[m][half] = static_cast<const float *>(a.lse)[i] * LOG2_E;
            minus[m][half] = delta[i];
        }

    const float scale2 = (float)a.scale * LOG2_E;
    for (int buffer = 0; key < key_end; key += KEYS, buffer ^= 1) {
        cp_async_wait<0>();
        __syncthreads(); /* these keys are here; the other buffer has been used */
        if (key + KEYS < key_end)
            fetch(key + KEYS, buffer ^ 1);
        const bf16 *const k_tile = k_tiles + buffer * KEYS * D;
        const bf16 *const v_tile = v_tiles + buffer * KEYS * D;

        float s[M][N][4], d_p[M][N][4];
        uint32_t left[M][N / 2][4];
        clear(s);
        multiply_abt<D>(s, q_tile + warp_row * D, k_tile, key);
        if (!see.whole(low, high, key, KEYS))
            hide(s, see, g, first + warp_row, key);
        clear(d_p);
        multiply_abt<D>(d_p, d_o_tile + warp_row * D, v_tile, key + 3);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float d_s[2];
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        d_s[i] = exp2_fast(s[m][n][2 * half + i] * scale2 - lse2[m][half]) *
                                 (d_p[m][n][2 * half + i] - minus[m][half]);
                    LEFT_OPERAND(left, m, n, half) = pack_bf16(d_s[0], d_s[1]);
                }
        multiply_ab<D>(d_q, left, k_tile, 0, key + 4);
    }
    cp_async_wait<0>();
    __syncthreads();

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int c = 0; c < C; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                d_q[m][c][i] *= (float)a.scale;
    bf16 *const mine = q_tile + warp_row * D;
    accumulators_to_tile<D>(mine, d_q);
    __syncwarp();
    store_rows<D, 16 * M>(args.d_q, g, first + warp_row, mine);
}

template <int D>
static void launch(struct backend *be, const struct attention_bwd_args *args, const float *delta) {
    static_assert(key_shape<D>::SHARED <= SHARED_MOST, "fits the smallest chip");
    static_assert(row_shape<D>::SHARED <= SHARED_MOST, "fits the smallest chip");
    const struct attention_args *a = &args->fwd;
    const int64_t n_row = a->n_query * (a->n_head / a->n_kv_head);
    const int64_t n_pair = a->n_batch * a->n_kv_head;
    const int64_t n_key_tile = (a->n_key + key_shape<D>::KEYS - 1) / key_shape<D>::KEYS;
    const int64_t n_row_tile = (n_row + row_shape<D>::ROWS - 1) / row_shape<D>::ROWS;
    CUDA_LAUNCH(attention_backward_keys<D>, (unsigned)(n_key_tile * n_pair * key_shape<D>::SLICES),
                key_shape<D>::THREADS, key_shape<D>::SHARED, cuda_stream(be), *args, delta);
    CUDA_LAUNCH(attention_backward_rows<D>, (unsigned)(n_row_tile * n_pair), row_shape<D>::THREADS,
                row_shape<D>::SHARED, cuda_stream(be), *args, delta, (int)n_row_tile);
}

extern "C" enum status attention_tile_backward(struct backend *be,
                                               const struct attention_bwd_args *a) {
    float *delta;
    TRY(attention_delta(be, a, &delta));
    ATTENTION_HEAD_DIM(a->fwd.head_dim, D, launch<D>(be, a, delta));
    return cuda_launch_status(be, "attention_bwd");
}
