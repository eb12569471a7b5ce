/* What stands between the matmuls of a feed-forward branch, forward and backward, gated or not:
 * one pass, 16 bytes of each tensor a thread. Floor: the bytes of in, out and their gradients. */
#include "kernels/cuda/cuda_dispatch.cuh"

enum { ACTIVATION_BLOCK = 256, MOST_ROWS = 65535 /* of a grid; more rows take turns */ };

/* f(x) = x share, f'(x) = slope. */
struct curve {
    float share, slope;
};
template <enum activation_kind KIND> static __device__ struct curve curve_at(float x) {
    if constexpr (KIND == ACTIVATION_GELU) {
        float below = 0.5f * erfcf(x * -0.70710678f);
        return {below, below + x * (0.39894228f * expf(-0.5f * x * x))};
    } else {
        float y = x, dy = 1; /* f = x sigmoid(y): (1 + tanh u) / 2 = sigmoid(2 u) */
        if constexpr (KIND != ACTIVATION_SWIGLU) {
            constexpr float K = 1.5957691f, CUBE = 0.044715f; /* K = sqrt(8 / pi) */
            y = K * (x + CUBE * x * x * x);
            dy = K * (1 + 3 * CUBE * x * x);
        }
        float e = expf(-fabsf(y)), large = 1 / (1 + e), small = e * large;
        float s = y < 0 ? small : large, one_minus_s = y < 0 ? large : small;
        return {s, s * (1 + x * dy * one_minus_s)};
    }
}

template <class T, int N, enum activation_kind KIND>
__global__ void activate(const T *in, T *out, int64_t n_row, int64_t n_ff) {
    constexpr bool GATED = KIND == ACTIVATION_SWIGLU || KIND == ACTIVATION_GEGLU;
    const int64_t j = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    for (int64_t r = blockIdx.y; j < n_ff && r < n_row; r += gridDim.y) {
        const T *row = in + r * n_ff * (GATED ? 2 : 1) + j;
        float x[N], up[N];
        load_vec<T, N>(x, row);
        if constexpr (GATED)
            load_vec<T, N>(up, row + n_ff);
#pragma unroll
        for (int k = 0; k < N; k++) {
            x[k] *= curve_at<KIND>(x[k]).share;
            if constexpr (GATED)
                x[k] *= up[k];
        }
        store_vec<T, N>(out + r * n_ff + j, x);
    }
}

template <class T, int N, enum activation_kind KIND>
__global__ void activate_backward(const T *in, const T *d_out, T *d_in, int64_t n_row,
                                  int64_t n_ff) {
    constexpr bool GATED = KIND == ACTIVATION_SWIGLU || KIND == ACTIVATION_GEGLU;
    const int64_t j = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    for (int64_t r = blockIdx.y; j < n_ff && r < n_row; r += gridDim.y) {
        const int64_t at = r * n_ff * (GATED ? 2 : 1) + j;
        float x[N], up[N], dy[N];
        load_vec<T, N>(x, in + at);
        load_vec<T, N>(dy, d_out + r * n_ff + j);
        if constexpr (GATED)
            load_vec<T, N>(up, in + at + n_ff);
#pragma unroll
        for (int k = 0; k < N; k++) {
            struct curve f = curve_at<KIND>(x[k]);
            x[k] *= f.share;
            if constexpr (GATED) {
                float d_up = dy[k] * x[k];
                x[k] = dy[k] * up[k] * f.slope;
                up[k] = d_up;
            } else {
                x[k] = dy[k] * f.slope;
            }
        }
        store_vec<T, N>(d_in + at, x);
        if constexpr (GATED)
            store_vec<T, N>(d_in + at + n_ff, up);
    }
}

template <enum activation_kind KIND>
static void launch(struct backend *be, const struct tensor *in, const struct tensor *out,
                   const struct tensor *d_in) {
    int64_t n_row = out->shape[0], n_ff = out->shape[1];
    int n = vec_for(out->dtype, {n_ff}, (char *)in->data, (char *)out->data,
                    d_in ? (char *)d_in->data : NULL);
    int block = block_for(divide_up(n_ff, n), ACTIVATION_BLOCK);
    dim3 grid((unsigned)divide_up(n_ff, (int64_t)block * n),
              (unsigned)std::min<int64_t>(n_row, MOST_ROWS));
    WITH_VEC(out->dtype, n, T, N, {
        if (d_in)
            CUDA_LAUNCH((activate_backward<T, N, KIND>), grid, block, 0, cuda_stream(be),
                        (const T *)in->data, (const T *)out->data, (T *)d_in->data, n_row, n_ff);
        else
            CUDA_LAUNCH((activate<T, N, KIND>), grid, block, 0, cuda_stream(be),
                        (const T *)in->data, (T *)out->data, n_row, n_ff);
    });
}

/* d_in NULL: forward into out; else out is d_out, read. */
static enum status run(struct backend *be, const char *op, enum activation_kind kind,
                       const struct tensor *in, const struct tensor *out,
                       const struct tensor *d_in) {
    TRY(cuda_check_dtype(op, out->dtype));
    if (tensor_count(out) == 0)
        return STATUS_OK;
    switch (kind) {
    case ACTIVATION_SWIGLU:
        launch<ACTIVATION_SWIGLU>(be, in, out, d_in);
        break;
    case ACTIVATION_GEGLU:
        launch<ACTIVATION_GEGLU>(be, in, out, d_in);
        break;
    case ACTIVATION_GELU:
        launch<ACTIVATION_GELU>(be, in, out, d_in);
        break;
    case ACTIVATION_GELU_TANH:
        launch<ACTIVATION_GELU_TANH>(be, in, out, d_in);
        break;
    default:
        return status_fail(STATUS_FAILED, "%s: unknown kind %d", op, (int)kind);
    }
    return cuda_launch_status(be, op);
}

extern "C" enum status cuda_activation(struct backend *be, const struct activation_args *a) {
    return run(be, "activation", a->kind, &a->in, &a->out, NULL);
}

extern "C" enum status cuda_activation_bwd(struct backend *be,
                                           const struct activation_bwd_args *a) {
    return run(be, "activation_bwd", a->kind, &a->in, &a->d_out, &a->d_in);
}
