/* Attention for what the tensor-core kernels do not take: F32, any cache dtype, any head_dim. A
 * warp owns one query row (forward, dQ) or one key (dK, dV), columns across its lanes, so sums have
 * one owner and a fixed order and every access is coalesced. The warps of a block have neighbouring
 * packed rows (heads of a group fastest): what one reads of K and V the others find in L1.
 * Correct rather than fast: a key costs a row 5 shuffles, 6 in each backward pass. Delta and the
 * combination of split keys are here too, for the tensor-core kernels as well. */
#include "kernels/cuda/cuda_attention.cuh"
#include "kernels/cuda/cuda_dispatch.cuh"

constexpr int ROWS_PER_BLOCK = 4, BLOCK = ROWS_PER_BLOCK * WARP;

/* Columns lane, lane + 32, ... of a row. */
template <class T, int N>
static __device__ __forceinline__ void read_row(float (&x)[N], const void *data, int64_t offset,
                                                int d) {
    const T *row = static_cast<const T *>(data) + offset;
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = lane + i * WARP < d ? to_float(row[lane + i * WARP]) : 0;
}
template <class T, int N>
static __device__ __forceinline__ void write_row(void *data, int64_t offset, int d,
                                                 const float (&x)[N]) {
    T *row = static_cast<T *>(data) + offset;
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane + i * WARP < d)
            row[lane + i * WARP] = from_float<T>(x[i]);
}
template <int N>
static __device__ __forceinline__ float dot(const float (&x)[N], const float (&y)[N]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum += x[i] * y[i];
    return warp_sum(sum);
}
/* Two at once: halves of the warp sum one each, then tell each other; 6 shuffles instead of 10. */
template <int N>
static __device__ __forceinline__ void two_dots(const float (&x0)[N], const float (&y0)[N],
                                                const float (&x1)[N], const float (&y1)[N],
                                                float *dot0, float *dot1) {
    const bool upper = threadIdx.x % WARP >= WARP / 2;
    float sum0 = 0, sum1 = 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        sum0 += x0[i] * y0[i], sum1 += x1[i] * y1[i];
    float mine = upper ? sum1 : sum0;
    mine += __shfl_xor_sync(FULL_MASK, upper ? sum0 : sum1, WARP / 2);
#pragma unroll
    for (int step = WARP / 4; step > 0; step /= 2)
        mine += __shfl_xor_sync(FULL_MASK, mine, step);
    const float other = __shfl_xor_sync(FULL_MASK, mine, WARP / 2);
    *dot0 = upper ? other : mine;
    *dot1 = upper ? mine : other;
}
template <int N>
static __device__ __forceinline__ void add_scaled(float (&to)[N], float factor,
                                                  const float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] += factor * x[i];
}

/* o and lse of a row, or a split's part of them. */
template <class T, class K, int N>
__global__ void __launch_bounds__(BLOCK)
    attention_plain(struct attention_args a, struct attention_split split) {
    const int n_pair = (int)(a.n_batch * a.n_kv_head), d = (int)a.head_dim;
    const int part = blockIdx.x % split.n_split, work = blockIdx.x / split.n_split;
    const packed_rows g(a, work % n_pair);
    const visibility see(a);
    const int row = work / n_pair * ROWS_PER_BLOCK + threadIdx.x / WARP;
    if (row >= g.n_row)
        return;
    const int p = g.position(row);
    const int part_first = split.first + part * split.n_key;
    const int end = min(see.end(p), part_first + split.n_key);
    float q[N], k[N], v[N], o[N] = {}, top = -INFINITY, sum = 0;
    read_row<T>(q, a.q.data, g.offset(a.q, row), d);
    for (int key = max(see.first(p), part_first); key < end; key++) {
        read_row<K>(k, a.k.data, g.key_offset(a.k, key), d);
        read_row<K>(v, a.v.data, g.key_offset(a.v, key), d);
        const float s = dot(q, k) * (float)a.scale;
        if (s > top) { /* a NaN is not, and shows in the sum */
            const float shrink = expf(top - s);
            top = s;
            sum *= shrink;
#pragma unroll
            for (int i = 0; i < N; i++)
                o[i] *= shrink;
        }
        const float weight = expf(s - top);
        sum += weight;
        add_scaled(o, weight, v);
    }
    const int64_t at = g.statistic(a, row);
    const bool writes = threadIdx.x % WARP == 0;
    if (split.n_split > 1) {
        const int64_t i = part * a.n_batch * a.n_head * a.n_query + at;
        write_row<float>(split.o, i * d, d, o);
        if (writes)
            split.stats[2 * i] = top, split.stats[2 * i + 1] = sum;
        return;
    }
    const float inverse = see.first(p) < see.end(p) ? 1 / sum : 0; /* 0: sees no key */
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] *= inverse;
    write_row<T>(a.o.data, g.offset(a.o, row), d, o);
    if (a.lse && writes)
        static_cast<float *>(a.lse)[at] = top + logf(sum);
}

template <class T, int N>
__global__ void __launch_bounds__(BLOCK)
    attention_combined(struct attention_args a, struct attention_split split) {
    const int64_t n_row = a.n_batch * a.n_head * a.n_query;
    const int64_t row = blockIdx.x * (int64_t)ROWS_PER_BLOCK + threadIdx.x / WARP;
    const int d = (int)a.head_dim;
    if (row >= n_row)
        return;
    float top = -INFINITY, sum = 0, o[N] = {}, part[N];
    for (int s = 0; s < split.n_split; s++)
        top = fmaxf(top, split.stats[2 * (s * n_row + row)]);
    const float shift = top == -INFINITY ? 0 : top;
    for (int s = 0; s < split.n_split; s++) {
        const int64_t i = s * n_row + row;
        const float factor = expf(split.stats[2 * i] - shift);
        sum += factor * split.stats[2 * i + 1];
        read_row<float>(part, split.o, i * d, d);
        add_scaled(o, factor, part);
    }
    const int64_t query = row % a.n_query, head = row / a.n_query % a.n_head;
    const int64_t batch = row / (a.n_query * a.n_head);
    const visibility see(a);
    const int p = (int)(a.q_first + query);
    const float inverse = see.first(p) < see.end(p) ? 1 / sum : 0; /* 0: sees no key */
#pragma unroll
    for (int i = 0; i < N; i++)
        o[i] *= inverse;
    write_row<T>(a.o.data, batch * a.o.batch + query * a.o.row + head * a.o.head, d, o);
    if (a.lse && threadIdx.x % WARP == 0)
        static_cast<float *>(a.lse)[row] = top + logf(sum);
}

template <class T, int N>
__global__ void __launch_bounds__(BLOCK)
    attention_delta_rows(struct attention_bwd_args args, float *delta) {
    const struct attention_args &a = args.fwd;
    const int64_t row = blockIdx.x * (int64_t)ROWS_PER_BLOCK + threadIdx.x / WARP;
    if (row >= a.n_batch * a.n_query * a.n_head)
        return;
    const int64_t head = row % a.n_head, query = row / a.n_head % a.n_query;
    const int64_t batch = row / (a.n_head * a.n_query);
    const struct heads &o = a.o, &d_o = args.d_o;
    float x[N], y[N];
    read_row<T>(x, o.data, batch * o.batch + query * o.row + head * o.head, (int)a.head_dim);
    read_row<T>(y, d_o.data, batch * d_o.batch + query * d_o.row + head * d_o.head,
                (int)a.head_dim);
    const float sum = dot(x, y);
    if (threadIdx.x % WARP == 0)
        delta[(batch * a.n_head + head) * a.n_query + query] = sum;
}

template <class T, int N>
__global__ void __launch_bounds__(BLOCK)
    attention_plain_keys(struct attention_bwd_args args, const float *delta) {
    const struct attention_args &a = args.fwd;
    const int n_pair = (int)(a.n_batch * a.n_kv_head), d = (int)a.head_dim;
    const packed_rows g(a, blockIdx.x % n_pair);
    const visibility see(a);
    const int key = blockIdx.x / n_pair * ROWS_PER_BLOCK + threadIdx.x / WARP;
    if (key >= see.n_key)
        return;
    float k[N], v[N], q[N], d_o[N], d_k[N] = {}, d_v[N] = {};
    read_row<T>(k, a.k.data, g.key_offset(a.k, key), d);
    read_row<T>(v, a.v.data, g.key_offset(a.v, key), d);
    const int end = min((int)a.n_query, see.last_position(key) - g.q_first + 1) * g.group;
    for (int row = max(0, key - g.q_first) * g.group; row < end; row++) {
        const int64_t i = g.statistic(a, row);
        read_row<T>(q, a.q.data, g.offset(a.q, row), d);
        read_row<T>(d_o, args.d_o.data, g.offset(args.d_o, row), d);
        float s, d_p;
        two_dots(q, k, d_o, v, &s, &d_p);
        const float p = expf(s * (float)a.scale - static_cast<const float *>(a.lse)[i]);
        const float d_s = (float)a.scale * p * (d_p - delta[i]);
        add_scaled(d_k, d_s, q);
        add_scaled(d_v, p, d_o);
    }
    write_row<T>(args.d_k.data, g.key_offset(args.d_k, key), d, d_k);
    write_row<T>(args.d_v.data, g.key_offset(args.d_v, key), d, d_v);
}

template <class T, int N>
__global__ void __launch_bounds__(BLOCK)
    attention_plain_rows(struct attention_bwd_args args, const float *delta) {
    const struct attention_args &a = args.fwd;
    const int n_pair = (int)(a.n_batch * a.n_kv_head), d = (int)a.head_dim;
    const packed_rows g(a, blockIdx.x % n_pair);
    const visibility see(a);
    const int row = blockIdx.x / n_pair * ROWS_PER_BLOCK + threadIdx.x / WARP;
    if (row >= g.n_row)
        return;
    const int64_t i = g.statistic(a, row);
    const float lse = static_cast<const float *>(a.lse)[i], minus = delta[i];
    const int p = g.position(row), end = see.end(p);
    float k[N], v[N], q[N], d_o[N], d_q[N] = {};
    read_row<T>(q, a.q.data, g.offset(a.q, row), d);
    read_row<T>(d_o, args.d_o.data, g.offset(args.d_o, row), d);
    for (int key = see.first(p); key < end; key++) {
        read_row<T>(k, a.k.data, g.key_offset(a.k, key), d);
        read_row<T>(v, a.v.data, g.key_offset(a.v, key), d);
        float s, d_p;
        two_dots(q, k, d_o, v, &s, &d_p);
        const float weight = expf(s * (float)a.scale - lse);
        add_scaled(d_q, (float)a.scale * weight * (d_p - minus), k);
    }
    write_row<T>(args.d_q.data, g.offset(args.d_q, row), d, d_q);
}

/* The statement with N = columns a lane holds. */
#define WITH_COLUMNS(head_dim_, N, ...)                                                            \
    do {                                                                                           \
        if ((head_dim_) <= 4 * WARP) {                                                             \
            constexpr int N = 4;                                                                   \
            __VA_ARGS__                                                                            \
        } else {                                                                                   \
            constexpr int N = ATTENTION_PLAIN_MOST / WARP;                                         \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)

static unsigned row_blocks(int64_t n_row) {
    return (unsigned)((n_row + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK);
}
static int64_t group_rows(const struct attention_args *a) {
    return a->n_query * (a->n_head / a->n_kv_head);
}

template <class T, class K>
static enum status forward(struct backend *be, const struct attention_args *a) {
    struct attention_split split;
    const int64_t n_pair = a->n_batch * a->n_kv_head;
    TRY(attention_split_keys(be, a, row_blocks(group_rows(a)) * n_pair, WARP, &split));
    WITH_COLUMNS(a->head_dim, N, {
        CUDA_LAUNCH((attention_plain<T, K, N>),
                    (unsigned)(row_blocks(group_rows(a)) * n_pair * split.n_split), BLOCK, 0,
                    cuda_stream(be), *a, split);
    });
    if (split.n_split > 1)
        return attention_combine(be, a, &split);
    return cuda_launch_status(be, "attention");
}

extern "C" enum status attention_plain_forward(struct backend *be, const struct attention_args *a) {
    WITH_TYPE(a->dtype, T, {
        switch (a->kv_dtype) {
        case DTYPE_F32:
            return forward<T, float>(be, a);
        case DTYPE_F16:
            return forward<T, __half>(be, a);
        default:
            return forward<T, __nv_bfloat16>(be, a);
        }
    });
}

extern "C" enum status attention_combine(struct backend *be, const struct attention_args *a,
                                         const struct attention_split *split) {
    WITH_TYPE(a->dtype, T, {
        WITH_COLUMNS(a->head_dim, N, {
            CUDA_LAUNCH((attention_combined<T, N>), row_blocks(a->n_batch * a->n_head * a->n_query),
                        BLOCK, 0, cuda_stream(be), *a, *split);
        });
    });
    return cuda_launch_status(be, "attention");
}

extern "C" enum status attention_delta(struct backend *be, const struct attention_bwd_args *args,
                                       float **delta) {
    const struct attention_args *a = &args->fwd;
    const int64_t n_row = a->n_batch * a->n_head * a->n_query;
    TRY(cuda_scratch(be, CUDA_SCRATCH_ATTENTION, n_row * (int64_t)sizeof **delta, delta));
    WITH_TYPE(a->dtype, T, {
        WITH_COLUMNS(a->head_dim, N, {
            CUDA_LAUNCH((attention_delta_rows<T, N>), row_blocks(n_row), BLOCK, 0, cuda_stream(be),
                        *args, *delta);
        });
    });
    return cuda_launch_status(be, "attention_bwd");
}

extern "C" enum status attention_plain_backward(struct backend *be,
                                                const struct attention_bwd_args *args) {
    const struct attention_args *a = &args->fwd;
    const int64_t n_pair = a->n_batch * a->n_kv_head;
    float *delta;
    TRY(attention_delta(be, args, &delta));
    WITH_TYPE(a->dtype, T, {
        WITH_COLUMNS(a->head_dim, N, {
            CUDA_LAUNCH((attention_plain_keys<T, N>), (unsigned)(row_blocks(a->n_key) * n_pair),
                        BLOCK, 0, cuda_stream(be), *args, delta);
            CUDA_LAUNCH((attention_plain_rows<T, N>),
                        (unsigned)(row_blocks(group_rows(a)) * n_pair), BLOCK, 0, cuda_stream(be),
                        *args, delta);
        });
    });
    return cuda_launch_status(be, "attention_bwd");
}
