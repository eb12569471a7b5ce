/* softmax(scale Q K^T) V on tensor cores, tile by tile (Dao 2023, FlashAttention-2): 4 flops per
 * visible pair and column of head_dim, n_query x n_key is never stored. A block owns ROWS packed
 * rows (cuda_attention.cuh) and walks the keys that any of them sees. A warp owns whole rows, so
 * the softmax needs no barrier; with two row fragments to a warp (head_dim <= 128) each fragment
 * of K and V read from shared memory feeds two products. V of a tile is on its way while Q K^T is
 * computed, the next K while P V is: two barriers per tile, two blocks per multiprocessor. */
#include "kernels/cuda/cuda_attention.cuh"

template <int D> struct forward_shape {
    static constexpr int WARPS = D > 128 ? 8 : 4, FRAGMENTS = D > 128 ? 1 : 2;
    static constexpr int THREADS = WARPS * WARP, ROWS = 16 * FRAGMENTS * WARPS, KEYS = 64;
    static constexpr int SHARED = (ROWS + 2 * KEYS) * D * (int)sizeof(bf16);
};

template <int D>
__global__ void __launch_bounds__(forward_shape<D>::THREADS)
    attention_forward(struct attention_args a, int n_tile) {
    using shape = forward_shape<D>;
    constexpr int M = shape::FRAGMENTS, ROWS = shape::ROWS, KEYS = shape::KEYS;
    constexpr int THREADS = shape::THREADS, C = D / 8;
    SHARED_DYNAMIC(bf16, q_tile);
    bf16 *const k_tile = q_tile + ROWS * D, *const v_tile = k_tile + KEYS * D;

    /* The tiles with the most keys start first. */
    const int n_pair = (int)(a.n_batch * a.n_kv_head), lane = threadIdx.x % WARP;
    const packed_rows g(a, blockIdx.x % n_pair);
    const visibility see(a);
    const int first = (n_tile - 1 - (int)(blockIdx.x / n_pair)) * ROWS;
    const int low = g.position(first), high = g.position(first + ROWS - 1);
    const int key_end = see.end(high);
    int key = see.first(low);

    const int warp_row = threadIdx.x / WARP * 16 * M;
    float top[M][2], sum[M][2], o[M][C][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            top[m][half] = -INFINITY, sum[m][half] = 0;
    clear(o);

    const bf16 *k = g.key_row(a.k, 0), *v = g.key_row(a.v, 0);
    const int k_stride = (int)a.k.row, v_stride = (int)a.v.row;
    if (key < key_end) {
        copy_rows<D, ROWS, THREADS>(q_tile, a.q, g, first);
        copy_keys<D, KEYS, THREADS>(k_tile, k + (int64_t)key * k_stride, k_stride, key_end - key,
                                    key);
        cp_async_commit();
    }
    const float scale2 = (float)a.scale * LOG2_E;
    for (; key < key_end; key += KEYS) {
        cp_async_wait<0>();
        __syncthreads(); /* K is here; V of the tile before has been used */
        copy_keys<D, KEYS, THREADS>(v_tile, v + (int64_t)key * v_stride, v_stride, key_end - key,
                                    key);
        cp_async_commit();

        float s[M][KEYS / 8][4];
        clear(s);
        multiply_abt<D>(s, q_tile + warp_row * D, k_tile, key);
        if (!see.whole(low, high, key, KEYS))
            hide(s, see, g, first + warp_row, key);
        uint32_t p[M][KEYS / 16][4];
        online_softmax(p, s, o, top, sum, scale2);
        cp_async_wait<0>();
        __syncthreads(); /* V is here; K has been used */
        if (key + KEYS < key_end) {
            copy_keys<D, KEYS, THREADS>(k_tile, k + (int64_t)(key + KEYS) * k_stride, k_stride,
                                        key_end - key - KEYS, key + KEYS);
            cp_async_commit();
        }
        multiply_ab<D>(o, p, v_tile, 0, key + KEYS);
    }

#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + warp_row + m * 16 + half * 8 + lane / 4, p = g.position(row);
            const float total = quad_sum(sum[m][half]);
            const float inverse = see.first(p) < see.end(p) ? 1 / total : 0; /* 0: sees no key */
#pragma unroll
            for (int c = 0; c < C; c++) {
                o[m][c][2 * half] *= inverse;
                o[m][c][2 * half + 1] *= inverse;
            }
            if (a.lse && lane % 4 == 0 && row < g.n_row)
                static_cast<float *>(a.lse)[g.statistic(a, row)] =
                    top[m][half] * (float)a.scale + logf(total);
        }
    /* Through the warp's own rows of Q's tile, which nobody else reads, to whole 16-byte stores. */
    bf16 *const mine = q_tile + warp_row * D;
    accumulators_to_tile<D>(mine, o);
    __syncwarp();
    store_rows<D, 16 * M>(a.o, g, first + warp_row, mine);
}

template <int D> static void launch(struct backend *be, const struct attention_args *a) {
    static_assert(forward_shape<D>::SHARED <= SHARED_MOST, "fits the smallest chip");
    using shape = forward_shape<D>;
    const int64_t n_row = a->n_query * (a->n_head / a->n_kv_head);
    const int64_t n_tile = (n_row + shape::ROWS - 1) / shape::ROWS;
    CUDA_LAUNCH(attention_forward<D>, (unsigned)(n_tile * a->n_batch * a->n_kv_head),
                shape::THREADS, shape::SHARED, cuda_stream(be), *a, (int)n_tile);
}

extern "C" enum status attention_tile_forward(struct backend *be, const struct attention_args *a) {
    ATTENTION_HEAD_DIM(a->head_dim, D, launch<D>(be, a));
    return cuda_launch_status(be, "attention");
}
