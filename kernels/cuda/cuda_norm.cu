/* RMSNorm and LayerNorm with the residual add in front of them, their gradients, and sums over
 * rows. Forward: a row is read once, kept in shared memory as it is stored, and normalised there.
 * Backward: a block walks over many rows and sums d_weight and d_bias of its rows in shared memory
 * on the way, every thread its own columns; it reads a row twice, the second time from L1. The
 * blocks' sums are then added up in order. How rows are dealt out depends on the shape alone, so
 * every device gives the same sums. Floor: each of the rows' tensors read or written once. */
#include "kernels/cuda/cuda_dispatch.cuh"

enum { NORM_BLOCK = 256, NORM_BLOCKS = 512, WARP_VECTORS = 128 };

/* LANES threads share a row: a warp where rows are short, else the block. */
template <int LANES> static __device__ float row_sum(float v, float *scratch) {
    if constexpr (LANES == WARP)
        return warp_sum(v);
    else
        return block_sum(v, scratch);
}

template <class T> struct norm_rows {
    const T *x, *residual, *weight, *bias; /* residual, weight, bias: NULL is none */
    T *sum, *out;
    float *rstd; /* NULL: not kept */
    int64_t n_row, width;
    float eps;
    bool center;
};

template <class T, int N, int LANES>
__global__ void __launch_bounds__(NORM_BLOCK) norm_forward(struct norm_rows<T> a) {
    SHARED_DYNAMIC(T, rows);
    SHARED_ARRAY(float, scratch, WARP);
    const int64_t width = a.width, first = threadIdx.x % LANES * N, step = LANES * N;
    const int64_t slot = threadIdx.x / LANES, r = blockIdx.x * (NORM_BLOCK / LANES) + slot;
    if (r >= a.n_row)
        return;
    T *row = rows + slot * width; /* a thread reads back only what it wrote */
    float sum = 0, squares = 0, mean = 0;
    for (int64_t c = first; c < width; c += step) {
        float x[N];
        load_vec<T, N>(x, a.x + r * width + c);
        if (a.residual) {
            float y[N];
            load_vec<T, N>(y, a.residual + r * width + c);
#pragma unroll
            for (int k = 0; k < N; k++)
                x[k] = to_float(from_float<T>(x[k] + y[k]));
            store_vec<T, N>(a.sum + r * width + c, x);
        }
        store_vec<T, N>(row + c, x);
#pragma unroll
        for (int k = 0; k < N; k++) {
            sum += x[k];
            squares += x[k] * x[k];
        }
    }
    if (a.center) {
        mean = row_sum<LANES>(sum, scratch) / (float)width;
        squares = 0;
        for (int64_t c = first; c < width; c += step) {
            float x[N];
            load_vec<T, N>(x, row + c);
#pragma unroll
            for (int k = 0; k < N; k++)
                squares += (x[k] - mean) * (x[k] - mean);
        }
    }
    const float rstd = 1 / sqrtf(row_sum<LANES>(squares, scratch) / (float)width + a.eps);
    for (int64_t c = first; c < width; c += step) {
        float x[N], w[N];
        load_vec<T, N>(x, row + c);
#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = (x[k] - mean) * rstd;
        if (a.weight) {
            load_vec<T, N>(w, a.weight + c);
#pragma unroll
            for (int k = 0; k < N; k++)
                x[k] *= w[k];
        }
        if (a.bias) {
            load_vec<T, N>(w, a.bias + c);
#pragma unroll
            for (int k = 0; k < N; k++)
                x[k] += w[k];
        }
        store_vec<T, N>(a.out + r * width + c, x);
    }
    if (a.rstd && first == 0)
        a.rstd[r] = rstd;
}

/* A warp to a row up to this width, a block beyond it; shared memory holds the block's rows. */
#define WITH_LANES(width_, N, LANES, ...)                                                          \
    do {                                                                                           \
        if ((width_) / (N) <= WARP_VECTORS) {                                                      \
            constexpr int LANES = WARP;                                                            \
            __VA_ARGS__                                                                            \
        } else {                                                                                   \
            constexpr int LANES = NORM_BLOCK;                                                      \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)

extern "C" enum status cuda_norm(struct backend *be, const struct norm_args *a) {
    int64_t n_row = a->out.shape[0], width = a->out.shape[1];
    TRY(cuda_check_dtype("norm", a->out.dtype));
    if (n_row == 0)
        return STATUS_OK;
    int n = vec_for(a->out.dtype, {width}, (char *)a->x.data, (char *)a->residual.data,
                    (char *)a->weight.data, (char *)a->bias.data, (char *)a->sum.data,
                    (char *)a->out.data);
    WITH_VEC(a->out.dtype, n, T, N, {
        struct norm_rows<T> rows = {
            (const T *)a->x.data, (const T *)a->residual.data, (const T *)a->weight.data,
                (const T *)a->bias.data, (T *)a->sum.data, (T *)a->out.data,
                (float *)a->rstd.data, n_row, width, (float)a->eps, a->center
        };
        WITH_LANES(width, N, LANES, {
            constexpr int SLOTS = NORM_BLOCK / LANES;
            CUDA_LAUNCH((norm_forward<T, N, LANES>), (unsigned)divide_up(n_row, SLOTS), NORM_BLOCK,
                        SLOTS * (size_t)width * sizeof(T), cuda_stream(be), rows);
        });
    });
    return cuda_launch_status(be, "norm");
}

template <class T> struct norm_bwd_rows {
    const T *d_out, *x, *weight, *d_residual; /* weight, d_residual: NULL is none */
    const float *rstd;
    T *d_x;
    float *d_weight, *d_bias; /* [blocks, width] sums of each block's rows; NULL: not wanted */
    int64_t n_row, width;
    bool center;
};

template <class T, int N, int LANES>
__global__ void __launch_bounds__(NORM_BLOCK, 4) norm_backward(struct norm_bwd_rows<T> a) {
    SHARED_DYNAMIC(float, sums); /* d_weight of every slot, then d_bias */
    SHARED_ARRAY(float, scratch, WARP);
    constexpr int SLOTS = NORM_BLOCK / LANES;
    const int64_t width = a.width, first = threadIdx.x % LANES * N, step = LANES * N;
    const int64_t slot = threadIdx.x / LANES;
    float *d_w = a.d_weight ? sums + slot * width : NULL;
    float *d_b = a.d_bias ? sums + ((a.d_weight ? SLOTS : 0) + slot) * width : NULL;
    const float zero[N] = {};
    for (int64_t c = first; c < width; c += step) {
        if (d_w)
            store_vec<float, N>(d_w + c, zero);
        if (d_b)
            store_vec<float, N>(d_b + c, zero);
    }
    for (int64_t r = blockIdx.x * SLOTS + slot; r < a.n_row; r += gridDim.x * SLOTS) {
        const T *x_row = a.x + r * width, *d_row = a.d_out + r * width;
        const float rstd = a.rstd[r];
        float mean = 0, mean_g = 0, mean_gx = 0;
        for (int64_t c = first; a.center && c < width; c += step) {
            float x[N];
            load_vec<T, N>(x, x_row + c);
#pragma unroll
            for (int k = 0; k < N; k++)
                mean += x[k];
        }
        if (a.center)
            mean = row_sum<LANES>(mean, scratch) / (float)width;
        for (int64_t c = first; c < width; c += step) {
            float x[N], dy[N], w[N], sum[N];
            load_vec<T, N>(x, x_row + c);
            load_vec<T, N>(dy, d_row + c);
            if (d_b) {
                load_vec<float, N>(sum, d_b + c);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sum[k] += dy[k];
                store_vec<float, N>(d_b + c, sum);
            }
            if (d_w) {
                load_vec<float, N>(sum, d_w + c);
#pragma unroll
                for (int k = 0; k < N; k++)
                    sum[k] += dy[k] * ((x[k] - mean) * rstd);
                store_vec<float, N>(d_w + c, sum);
            }
            if (a.weight)
                load_vec<T, N>(w, a.weight + c);
#pragma unroll
            for (int k = 0; k < N; k++) {
                float g = a.weight ? w[k] * dy[k] : dy[k];
                mean_g += g;
                mean_gx += g * ((x[k] - mean) * rstd);
            }
        }
        mean_g = a.center ? row_sum<LANES>(mean_g, scratch) / (float)width : 0;
        mean_gx = row_sum<LANES>(mean_gx, scratch) / (float)width;
        for (int64_t c = first; c < width; c += step) {
            float x[N], dy[N], w[N];
            load_vec<T, N>(x, x_row + c);
            load_vec<T, N>(dy, d_row + c);
            if (a.weight) {
                load_vec<T, N>(w, a.weight + c);
#pragma unroll
                for (int k = 0; k < N; k++)
                    dy[k] *= w[k];
            }
#pragma unroll
            for (int k = 0; k < N; k++)
                x[k] = rstd * (dy[k] - mean_g - (x[k] - mean) * rstd * mean_gx);
            if (a.d_residual) {
                load_vec<T, N>(w, a.d_residual + r * width + c);
#pragma unroll
                for (int k = 0; k < N; k++)
                    x[k] += w[k];
            }
            store_vec<T, N>(a.d_x + r * width + c, x);
        }
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < width; c += NORM_BLOCK) {
        float w = 0, b = 0;
        for (int s = 0; s < SLOTS; s++) {
            w += a.d_weight ? sums[s * width + c] : 0;
            b += a.d_bias ? sums[((a.d_weight ? SLOTS : 0) + s) * width + c] : 0;
        }
        if (a.d_weight)
            a.d_weight[blockIdx.x * width + c] = w;
        if (a.d_bias)
            a.d_bias[blockIdx.x * width + c] = b;
    }
}

/* out[chunk, c] = sum over the chunk's rows of x[row, c]; or out[c] += that, for one chunk. A warp
 * reads WARP * N columns of every eighth row; the warps' sums are added in order. */
enum { SUM_WARPS = 8 };
template <class T, int N>
__global__ void __launch_bounds__(SUM_WARPS *WARP)
    column_sums(const T *x, int64_t n_row, int64_t n_col, int64_t stride, int64_t chunk_rows,
                float *out, bool accumulate) {
    SHARED_ARRAY(float, sums, SUM_WARPS *WARP *N);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t c = ((int64_t)blockIdx.x * WARP + lane) * N, begin = blockIdx.y * chunk_rows;
    const int64_t end = begin + chunk_rows < n_row ? begin + chunk_rows : n_row;
    float sum[N] = {};
    if (c < n_col)
#pragma unroll 4
        for (int64_t r = begin + warp; r < end; r += SUM_WARPS) {
            float v[N];
            load_vec<T, N>(v, x + r * stride + c);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum[k] += v[k];
        }
    store_vec<float, N>(sums + threadIdx.x * N, sum);
    __syncthreads();
    for (int i = threadIdx.x; i < WARP * N; i += SUM_WARPS * WARP) {
        int64_t col = (int64_t)blockIdx.x * WARP * N + i;
        float total = 0;
        for (int w = 0; w < SUM_WARPS; w++)
            total += sums[w * WARP * N + i];
        if (col < n_col) {
            float *to = out + blockIdx.y * n_col + col;
            *to = accumulate ? *to + total : total;
        }
    }
}

/* out[c] += sum of partial[block, c]. */
static void add_blocks(struct backend *be, const float *partial, int64_t n_block, int64_t width,
                       void *out) {
    CUDA_LAUNCH((column_sums<float, 1>), (unsigned)divide_up(width, WARP), SUM_WARPS * WARP, 0,
                cuda_stream(be), partial, n_block, width, width, n_block, (float *)out, true);
}

extern "C" enum status cuda_norm_bwd(struct backend *be, const struct norm_bwd_args *a) {
    int64_t n_row = a->x.shape[0], width = a->x.shape[1];
    int64_t n_sum = (a->d_weight.data ? 1 : 0) + (a->d_bias.data ? 1 : 0);
    float *partial = NULL;
    TRY(cuda_check_dtype("norm_bwd", a->x.dtype));
    if (n_row == 0)
        return STATUS_OK;
    if (n_sum)
        TRY(cuda_scratch(be, CUDA_SCRATCH_OP,
                         n_sum * NORM_BLOCKS * width * (int64_t)sizeof *partial, &partial));
    int n = vec_for(a->x.dtype, {width}, (char *)a->d_out.data, (char *)a->x.data,
                    (char *)a->weight.data, (char *)a->d_residual.data, (char *)a->d_x.data);
    WITH_VEC(a->x.dtype, n, T, N, {
        struct norm_bwd_rows<T> rows = {
            (const T *)a->d_out.data, (const T *)a->x.data, (const T *)a->weight.data,
                (const T *)a->d_residual.data, (const float *)a->rstd.data,
                (T *)a->d_x.data, a->d_weight.data ? partial : NULL, NULL, n_row, width, a->center
        };
        WITH_LANES(width, N, LANES, {
            constexpr int SLOTS = NORM_BLOCK / LANES;
            int64_t n_block = std::min<int64_t>(NORM_BLOCKS, divide_up(n_row, 4 * SLOTS));
            if (a->d_bias.data)
                rows.d_bias = partial + (n_sum - 1) * n_block * width;
            size_t shared = std::max<size_t>(16, n_sum * SLOTS * width * sizeof(float));
            CUDA_LAUNCH((norm_backward<T, N, LANES>), (unsigned)n_block, NORM_BLOCK, shared,
                        cuda_stream(be), rows);
            if (a->d_weight.data)
                add_blocks(be, rows.d_weight, n_block, width, a->d_weight.data);
            if (a->d_bias.data)
                add_blocks(be, rows.d_bias, n_block, width, a->d_bias.data);
        });
    });
    return cuda_launch_status(be, "norm_bwd");
}

extern "C" enum status cuda_bias_bwd(struct backend *be, const struct bias_bwd_args *a) {
    TRY(cuda_check_dtype("bias_bwd", a->dtype));
    if (a->n_row == 0)
        return STATUS_OK;
    int64_t chunk_rows = std::max<int64_t>(64, divide_up(a->n_row, 256));
    int64_t n_chunk = divide_up(a->n_row, chunk_rows);
    float *partial;
    TRY(cuda_scratch(be, CUDA_SCRATCH_OP, n_chunk * a->n_col * (int64_t)sizeof *partial, &partial));
    int n = vec_for(a->dtype, {a->n_col, a->row_stride}, (const char *)a->d_out);
    WITH_VEC(a->dtype, n, T, N, {
        dim3 grid((unsigned)divide_up(a->n_col, WARP * N), (unsigned)n_chunk);
        CUDA_LAUNCH((column_sums<T, N>), grid, SUM_WARPS * WARP, 0, cuda_stream(be),
                    (const T *)a->d_out, a->n_row, a->n_col, a->row_stride, chunk_rows, partial,
                    false);
    });
    add_blocks(be, partial, n_chunk, a->n_col, a->d_bias.data);
    return cuda_launch_status(be, "bias_bwd");
}
