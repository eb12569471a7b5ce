/* The optimizer step, and the sum of squares that clips its gradient. AdamW: 28 bytes a parameter
 * in one pass, 30 with bf16 weights beside the fp32 masters; the factor from clipping is made on
 * the device first, so nobody waits for the norm. Sum of squares: double, the order fixed by n. */
#include "kernels/cuda/cuda_dispatch.cuh"

#include <cfloat>
#include <cmath>

enum { ADAMW_BLOCK = 256, ADAMW_EACH = 4, SUM_BLOCK = 256, SUM_BLOCKS = 1024, SUM_EACH = 16 };

struct adamw_factor {
    float grad_scale; /* clipping included */
    int move;         /* 0: a gradient was not finite, everything stays */
};

__global__ void adamw_clip(const double *squares, int64_t n, double clip, double grad_scale,
                           struct adamw_factor *out) {
    bool finite = true;
    for (int64_t i = threadIdx.x; i < n; i += WARP)
        finite = finite && fabs(squares[i]) <= DBL_MAX; /* not NaN either */
    finite = __all_sync(FULL_MASK, finite);
    if (threadIdx.x == 0) {
        double clipping = clip > 0 ? clip / (sqrt(squares[n - 1]) + 1e-6) : 1;
        out->grad_scale = (float)(clipping < 1 ? grad_scale * clipping : grad_scale);
        out->move = finite;
    }
}

struct adamw_step {
    float *master, *m, *v;
    const float *grad;
    const struct adamw_factor *factor; /* NULL: grad_scale, and everything moves */
    float grad_scale, lr, b1, b2, c1, c2, eps, decay;
    uint32_t seed_low, seed_high; /* both 0: round to nearest */
    int64_t n;
};

/* backend.h's adamw_mix, which device code cannot call. */
static __device__ uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static __device__ void round_param(float *to, float p, const struct adamw_step &, int64_t) {
    *to = p;
}
static __device__ void round_param(__nv_bfloat16 *to, float p, const struct adamw_step &a,
                                   int64_t i) {
    *to = __float2bfloat16_rn(p);
    if ((a.seed_low | a.seed_high) == 0 || p != p)
        return;
    uint32_t r = mix(mix((uint32_t)i ^ a.seed_low) ^ ((uint32_t)(i >> 32) + a.seed_high)) >> 16;
    *to = __ushort_as_bfloat16((unsigned short)((__float_as_uint(p) + r) >> 16));
}

/* N parameters from i on. */
template <class T, int N>
static __device__ void adamw_at(T *param, const struct adamw_step &a, float scale, int64_t i) {
    float p[N], m[N], v[N], g[N];
    load_vec<float, N>(p, a.master + i);
    load_vec<float, N>(m, a.m + i);
    load_vec<float, N>(v, a.v + i);
    load_vec<float, N>(g, a.grad + i);
    vec<T, N> rounded;
#pragma unroll
    for (int k = 0; k < N; k++) {
        g[k] *= scale;
        m[k] = a.b1 * m[k] + (1 - a.b1) * g[k];
        v[k] = a.b2 * v[k] + (1 - a.b2) * g[k] * g[k];
        p[k] -= a.lr * (m[k] / a.c1 / (sqrtf(v[k] / a.c2) + a.eps) + a.decay * p[k]);
        round_param(&rounded.v[k], p[k], a, i + k);
    }
    store_vec<float, N>(a.m + i, m);
    store_vec<float, N>(a.v + i, v);
    store_vec<float, N>(a.master + i, p);
    *reinterpret_cast<vec<T, N> *>(param + i) = rounded;
}

template <class T, int N>
__global__ void __launch_bounds__(ADAMW_BLOCK, 4) adamw(T *param, struct adamw_step a) {
    if (a.factor && !a.factor->move)
        return;
    float scale = a.factor ? a.factor->grad_scale : a.grad_scale;
    int64_t i = ((int64_t)blockIdx.x * ADAMW_BLOCK + threadIdx.x) * N;
    if (i + N <= a.n)
        adamw_at<T, N>(param, a, scale, i);
    else
        for (; i < a.n; i++)
            adamw_at<T, 1>(param, a, scale, i);
}

extern "C" enum status cuda_adamw(struct backend *be, const struct adamw_args *a) {
    struct adamw_factor *factor = NULL;
    struct adamw_step s = {};
    TRY(cuda_check_dtype("adamw", a->param.dtype));
    s.n = tensor_count(&a->param);
    if (s.n == 0)
        return STATUS_OK;
    if (a->grad_square.data) {
        TRY(cuda_scratch(be, CUDA_SCRATCH_OP, sizeof *factor, &factor));
        CUDA_LAUNCH(adamw_clip, 1, WARP, 0, cuda_stream(be), (const double *)a->grad_square.data,
                    tensor_count(&a->grad_square), a->clip, a->grad_scale, factor);
    }
    s.master = (float *)a->master.data;
    s.m = (float *)a->m.data;
    s.v = (float *)a->v.data;
    s.grad = (const float *)a->grad.data;
    s.factor = factor;
    s.grad_scale = (float)a->grad_scale;
    s.lr = (float)a->lr;
    s.b1 = (float)a->beta1;
    s.b2 = (float)a->beta2;
    s.c1 = (float)(1 - pow(a->beta1, (double)a->step));
    s.c2 = (float)(1 - pow(a->beta2, (double)a->step));
    s.eps = (float)a->eps;
    s.decay = (float)a->weight_decay;
    s.seed_low = (uint32_t)a->rounding_seed;
    s.seed_high = (uint32_t)(a->rounding_seed >> 32);
    bool fits = aligned_16(s.master) && aligned_16(s.m) && aligned_16(s.v) && aligned_16(s.grad) &&
                aligned_16((char *)a->param.data);
    int each = fits ? ADAMW_EACH : 1;
    unsigned grid = (unsigned)divide_up(s.n, (int64_t)ADAMW_BLOCK * each);
    WITH_TYPE(a->param.dtype, T, {
        T *param = (T *)a->param.data;
        if (fits)
            CUDA_LAUNCH((adamw<T, ADAMW_EACH>), grid, ADAMW_BLOCK, 0, cuda_stream(be), param, s);
        else
            CUDA_LAUNCH((adamw<T, 1>), grid, ADAMW_BLOCK, 0, cuda_stream(be), param, s);
    });
    return cuda_launch_status(be, "adamw");
}

/* Each block's sum of squares of its vectors, dealt out in turn. */
template <class T, int N>
__global__ void __launch_bounds__(SUM_BLOCK) squares(const T *x, int64_t n, double *partial) {
    SHARED_ARRAY(double, scratch, WARP);
    double sum = 0;
    int64_t i = ((int64_t)blockIdx.x * SUM_BLOCK + threadIdx.x) * N;
    int64_t step = (int64_t)gridDim.x * SUM_BLOCK * N;
#pragma unroll 4
    for (; i + N <= n; i += step) {
        float v[N];
        load_vec<T, N>(v, x + i);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += (double)v[k] * (double)v[k];
    }
    for (; i < n; i++) /* the one vector that the end cuts */
        sum += (double)to_float(x[i]) * (double)to_float(x[i]);
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(SUM_BLOCK)
    add_partial(const double *partial, int n, double *out) {
    SHARED_ARRAY(double, scratch, WARP);
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += SUM_BLOCK)
        sum += partial[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0)
        *out = sum;
}

extern "C" enum status cuda_sum_squares(struct backend *be, const struct sum_squares_args *a) {
    int64_t n = tensor_count(&a->x);
    double *partial;
    TRY(cuda_check_dtype("sum_squares", a->x.dtype));
    int64_t blocks = std::min<int64_t>(SUM_BLOCKS, divide_up(n, SUM_BLOCK * SUM_EACH));
    TRY(cuda_scratch(be, CUDA_SCRATCH_OP, SUM_BLOCKS * (int64_t)sizeof *partial, &partial));
    int each = vec_for(a->x.dtype, {}, (char *)a->x.data);
    if (blocks)
        WITH_VEC(a->x.dtype, each, T, N, {
            CUDA_LAUNCH((squares<T, N>), (unsigned)blocks, SUM_BLOCK, 0, cuda_stream(be),
                        (const T *)a->x.data, n, partial);
        });
    CUDA_LAUNCH(add_partial, 1, SUM_BLOCK, 0, cuda_stream(be), partial, (int)blocks,
                (double *)a->out.data);
    return cuda_launch_status(be, "sum_squares");
}
