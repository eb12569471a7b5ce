/* Few queries against a long cache (flash-decoding): the floor is reading K and V once. A block
 * owns 16 packed rows, one row fragment: all heads of a group together, so the cache is read once
 * per group, and a range of keys; attention_combine joins the ranges. Its 4 warps take 16 keys each
 * in turn and need no barrier until their end: every warp has a ring of STAGES of its own, which
 * keeps 48 KiB and more on the way per block. */
#include "kernels/cuda/cuda_attention.cuh"

template <int D> struct decode_shape {
    static constexpr int WARPS = 4, THREADS = WARPS * WARP, ROWS = 16, KEYS = 16;
    static constexpr int STAGES = D > 128 ? 2 : 3, STAGE = 2 * KEYS * D;
    static constexpr int O_ROW = D + 8; /* floats: rows apart by a few banks */
    static constexpr int RING = WARPS * STAGES * STAGE * (int)sizeof(bf16);
    static constexpr int JOIN = WARPS * ROWS * (O_ROW + 2) * (int)sizeof(float);
    static constexpr int SHARED = ROWS * D * (int)sizeof(bf16) + (RING > JOIN ? RING : JOIN);
};

template <int D>
__global__ void __launch_bounds__(decode_shape<D>::THREADS)
    attention_decode(struct attention_args a, struct attention_split split, int n_tile) {
    using shape = decode_shape<D>;
    constexpr int WARPS = shape::WARPS, ROWS = shape::ROWS, KEYS = shape::KEYS, C = D / 8;
    constexpr int STAGES = shape::STAGES, STRIDE = WARPS * KEYS;
    SHARED_DYNAMIC(bf16, q_tile);
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    bf16 *const rings = q_tile + ROWS * D, *const ring = rings + warp * STAGES * shape::STAGE;

    /* Blocks that read the same keys are neighbours. */
    const int tile = blockIdx.x % n_tile, work = blockIdx.x / n_tile;
    const int part = work % split.n_split;
    const packed_rows g(a, work / split.n_split);
    const visibility see(a);
    const int first = tile * ROWS;
    const int low = g.position(first), high = g.position(first + ROWS - 1);
    const int part_first = split.first + part * split.n_key;
    const int key_end = min(see.end(high), part_first + split.n_key);
    int key = max(see.first(low), part_first) + warp * KEYS;

    const bf16 *const k = g.key_row(a.k, 0), *const v = g.key_row(a.v, 0);
    const int k_stride = (int)a.k.row, v_stride = (int)a.v.row;
    const auto fetch = [&](int from, int stage) {
        if (from < key_end) {
            bf16 *const to = ring + stage * shape::STAGE;
            copy_keys<D, KEYS, WARP>(to, k + (int64_t)from * k_stride, k_stride, key_end - from,
                                     from);
            copy_keys<D, KEYS, WARP>(to + KEYS * D, v + (int64_t)from * v_stride, v_stride,
                                     key_end - from, from);
        }
        cp_async_commit();
    };
    copy_rows<D, ROWS, shape::THREADS>(q_tile, a.q, g, first);
    cp_async_commit();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        fetch(key + i * STRIDE, i);
    cp_async_wait<STAGES - 1>();
    __syncthreads(); /* Q is here */

    float top[1][2] = {{-INFINITY, -INFINITY}}, sum[1][2] = {}, o[1][C][4];
    clear(o);
    const float scale2 = (float)a.scale * LOG2_E;
    for (int stage = 0; key < key_end; key += STRIDE, stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 2>();
        __syncwarp(); /* these keys are here; the stage before has been used */
        fetch(key + (STAGES - 1) * STRIDE, (stage + STAGES - 1) % STAGES);
        const bf16 *const k_tile = ring + stage * shape::STAGE;
        float s[1][KEYS / 8][4];
        uint32_t p[1][KEYS / 16][4];
        clear(s);
        multiply_abt<D>(s, q_tile, k_tile, key);
        if (!see.whole(low, high, key, KEYS))
            hide(s, see, g, first, key);
        online_softmax(p, s, o, top, sum, scale2);
        multiply_ab<D>(o, p, k_tile + KEYS * D, 0, key);
    }

    /* The warps' parts side by side, where the rings were; then a warp joins 4 rows. */
    float *const parts = reinterpret_cast<float *>(rings);
    float *const stats = parts + WARPS * ROWS * shape::O_ROW;
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = warp * ROWS + half * 8 + lane / 4;
        const float total = quad_sum(sum[0][half]);
#pragma unroll
        for (int c = 0; c < C; c++)
            *reinterpret_cast<float2 *>(parts + row * shape::O_ROW + c * 8 + lane % 4 * 2) =
                make_float2(o[0][c][2 * half], o[0][c][2 * half + 1]);
        if (lane % 4 == 0)
            stats[2 * row] = top[0][half], stats[2 * row + 1] = total;
    }
    __syncthreads();
    for (int r = warp; r < ROWS && first + r < g.n_row; r += WARPS) {
        float most = -INFINITY, total = 0, factor[WARPS];
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            most = fmaxf(most, stats[2 * (w * ROWS + r)]);
        const float shift = most == -INFINITY ? 0 : most * scale2;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            factor[w] = exp2_fast(stats[2 * (w * ROWS + r)] * scale2 - shift);
            total += factor[w] * stats[2 * (w * ROWS + r) + 1];
        }
        const int position = g.position(first + r);
        const int64_t at = g.statistic(a, first + r);
        const int64_t i = part * a.n_batch * a.n_head * a.n_query + at;
        /* Sees no key: 0. One of several parts: not normalised. */
        const float inverse = split.n_split > 1                         ? 1
                              : see.first(position) < see.end(position) ? 1 / total
                                                                        : 0;
        bf16 *const to = static_cast<bf16 *>(a.o.data) + g.offset(a.o, first + r);
        for (int c = lane; c < D; c += WARP) {
            float x = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                x += factor[w] * parts[(w * ROWS + r) * shape::O_ROW + c];
            if (split.n_split > 1)
                split.o[i * D + c] = x;
            else
                to[c] = __float2bfloat16_rn(x * inverse);
        }
        if (lane != 0)
            continue;
        if (split.n_split > 1)
            split.stats[2 * i] = most * (float)a.scale, split.stats[2 * i + 1] = total;
        else if (a.lse)
            static_cast<float *>(a.lse)[at] = most * (float)a.scale + logf(total);
    }
}

template <int D> static enum status launch(struct backend *be, const struct attention_args *a) {
    static_assert(decode_shape<D>::SHARED <= SHARED_MOST, "fits the smallest chip");
    using shape = decode_shape<D>;
    const int64_t n_row = a->n_query * (a->n_head / a->n_kv_head);
    const int64_t n_tile = (n_row + shape::ROWS - 1) / shape::ROWS;
    const int64_t n_block = n_tile * a->n_batch * a->n_kv_head;
    struct attention_split split;
    TRY(attention_split_keys(be, a, n_block, shape::WARPS * shape::KEYS, &split));
    CUDA_LAUNCH(attention_decode<D>, (unsigned)(n_block * split.n_split), shape::THREADS,
                shape::SHARED, cuda_stream(be), *a, split, (int)n_tile);
    if (split.n_split > 1)
        return attention_combine(be, a, &split);
    return cuda_launch_status(be, "attention");
}

extern "C" enum status attention_tile_decode(struct backend *be, const struct attention_args *a) {
    enum status status = STATUS_OK;
    ATTENTION_HEAD_DIM(a->head_dim, D, status = launch<D>(be, a));
    return status;
}
