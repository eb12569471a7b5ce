/* The output head and its loss, a tile of rows at a time: fp32 logits of student and teacher by
 * matmul, one kernel that reads each row twice (online log-sum-exp; divergence and gradient), and
 * the gradient back by two matmuls. Tokens x vocabulary never exists beyond one tile.
 * Floor: 6 width + 2 teacher width flops a logit; not keeping a tile's logits would repeat the
 * forward's share in a second sweep, half as much time again at equal widths. */
#include "kernels/cuda/cuda_dispatch.cuh"

#include <cfloat>
#include <cmath>

/* Keeping logits costs up to 10 bytes of scratch each, and the rows of a tile set how often d_head
 * is read and written: 8 bytes an entry and tile, which its matmul hides from about 1000 rows on;
 * only under about 300 would the second sweep be cheaper. TILE_BYTES leaves 1024 rows at a
 * vocabulary of 64 k, 512 at 128 k, 256 at 256 k. */
enum { LOSS_BLOCK = 1024, TILE_ROWS = 1024, ROW_STEP = 64, GROUP = 4 };
static const int64_t TILE_BYTES = (int64_t)640 << 20;

/* Of one row of logits v: top = max v, sum = sum exp((v - top) scale). */
struct row_sum {
    float top, sum, sum_t; /* sum_t: the same at the second scale, where one is asked for */
    int best;              /* first index of the top; -1: nothing is larger than -FLT_MAX */
};

/* A second scale of 0: no sum_t. Infinities and NaN reach the sums. */
template <int N>
static __device__ void add_logits(struct row_sum &s, const float (&v)[N], int j, float scale,
                                  float scale_t) {
    float top = s.top;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (v[k] > top) {
            top = v[k];
            s.best = j + k;
        }
    if (top > s.top) {
        s.sum *= expf((s.top - top) * scale);
        s.sum_t *= scale_t != 0 ? expf((s.top - top) * scale_t) : 0;
        s.top = top;
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        s.sum += expf((v[k] - top) * scale);
        if (scale_t != 0)
            s.sum_t += expf((v[k] - top) * scale_t);
    }
}

static __device__ void merge(struct row_sum &a, const struct row_sum &b, float scale,
                             float scale_t) {
    float top = fmaxf(a.top, b.top);
    a.sum = a.sum * expf((a.top - top) * scale) + b.sum * expf((b.top - top) * scale);
    if (scale_t != 0)
        a.sum_t = a.sum_t * expf((a.top - top) * scale_t) + b.sum_t * expf((b.top - top) * scale_t);
    if (b.top > a.top || (b.top == a.top && (unsigned)b.best < (unsigned)a.best))
        a.best = b.best;
    a.top = top;
}

static __device__ struct row_sum warp_merge(struct row_sum s, float scale, float scale_t) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        struct row_sum other = {
            __shfl_down_sync(FULL_MASK, s.top, step), __shfl_down_sync(FULL_MASK, s.sum, step),
            __shfl_down_sync(FULL_MASK, s.sum_t, step), __shfl_down_sync(FULL_MASK, s.best, step)};
        merge(s, other, scale, scale_t);
    }
    return s;
}

/* Over the block, the same bits to every thread. scratch: WARP sums. */
static __device__ struct row_sum block_merge(struct row_sum s, float scale, float scale_t,
                                             struct row_sum *scratch) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warp = blockDim.x / WARP;
    s = warp_merge(s, scale, scale_t);
    __syncthreads();
    if (lane == 0)
        scratch[warp] = s;
    __syncthreads();
    if (warp == 0) {
        s = lane < n_warp ? scratch[lane] : row_sum{-FLT_MAX, 0, 0, -1};
        s = warp_merge(s, scale, scale_t);
        if (lane == 0)
            scratch[0] = s;
    }
    __syncthreads();
    return scratch[0];
}

struct loss_tile {
    const float *z, *y; /* [rows, n_vocab] logits of the student and of the teacher (NULL: none) */
    void *g;            /* [rows, n_vocab] gradient in the compute dtype, maybe over z; or NULL */
    const int32_t *targets;
    float *nll, *kl, *agree; /* NULL: not wanted */
    int n_vocab;
    float ce, kd;    /* factors of the gradient: weights, grad_scale, and T for kd */
    float inv_t, tt; /* 1 / T, T^2 */
};

/* The GROUP elements of a matrix from `at` on; those outside of the row [begin, end) are -inf,
 * which adds nothing to a sum of exponentials. Rows of any width begin anywhere in a group. */
static __device__ void load_group(float (&v)[GROUP], const float *z, int64_t at, int64_t begin,
                                  int64_t end) {
    if (at >= begin && at + GROUP <= end) {
        load_vec<float, GROUP>(v, z + at);
    } else {
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            v[k] = at + k >= begin && at + k < end ? z[at + k] : -INFINITY;
    }
}
template <class T>
static __device__ void store_group(T *g, const float (&v)[GROUP], int64_t at, int64_t begin,
                                   int64_t end) {
    if (at >= begin && at + GROUP <= end) {
        store_vec<T, GROUP>(g + at, v);
    } else {
#pragma unroll
        for (int k = 0; k < GROUP; k++)
            if (at + k >= begin && at + k < end)
                g[at + k] = from_float<T>(v[k]);
    }
}

template <class T> __global__ void __launch_bounds__(LOSS_BLOCK) loss_row(struct loss_tile t) {
    SHARED_ARRAY(struct row_sum, merged, WARP);
    SHARED_ARRAY(float, summed, WARP);
    const int64_t r = blockIdx.x, begin = r * t.n_vocab, end = begin + t.n_vocab;
    const int64_t first = begin / GROUP * GROUP + threadIdx.x * GROUP, step = blockDim.x * GROUP;
    const int target = t.targets[r];
    T *g = (T *)t.g;
    if (target == -1) {
        if (threadIdx.x == 0) {
            if (t.nll)
                t.nll[r] = 0;
            if (t.kl)
                t.kl[r] = 0;
            if (t.agree)
                t.agree[r] = 0;
        }
        const float zero[GROUP] = {};
        for (int64_t at = first; g && at < end; at += step)
            store_group(g, zero, at, begin, end);
        return;
    }

    const bool valid = target >= 0 && target < t.n_vocab; /* else the row is NaN */
    const float scale_t = t.y && t.inv_t != 1 ? t.inv_t : 0;
    const float z_target = valid ? t.z[begin + target] : NAN;
    struct row_sum sz = {-FLT_MAX, 0, 0, -1}, sy = sz;
    for (int64_t at = first; at < end; at += step) {
        float v[GROUP];
        load_group(v, t.z, at, begin, end);
        add_logits(sz, v, (int)(at - begin), 1, scale_t);
        if (t.y) {
            load_group(v, t.y, at, begin, end);
            add_logits(sy, v, (int)(at - begin), t.inv_t, 0);
        }
    }
    sz = block_merge(sz, 1, scale_t, merged);
    if (t.y)
        sy = block_merge(sy, t.inv_t, 0, merged);

    /* Logarithms relative to each row's own top: no large numbers meet. */
    const float log_z = valid ? logf(sz.sum) : NAN, log_y = logf(sy.sum);
    const float log_zt = scale_t != 0 ? logf(sz.sum_t) : log_z;
    const float gap =
        (sy.top - sz.top) * t.inv_t + (log_y - log_zt); /* teacher's lse - student's */
    if (threadIdx.x == 0) {
        if (t.nll)
            t.nll[r] = log_z + (sz.top - z_target);
        if (t.agree)
            t.agree[r] = t.y && sz.best >= 0 && sz.best == sy.best;
        if (t.kl && !t.y)
            t.kl[r] = 0;
    }
    if (!g && !(t.y && t.kl))
        return;

    float divergence = 0;
    for (int64_t at = first; at < end; at += step) {
        float z[GROUP], y[GROUP] = {}, d[GROUP];
        load_group(z, t.z, at, begin, end);
        if (t.y)
            load_group(y, t.y, at, begin, end);
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
            float soft = expf(z[k] - sz.top - log_z);
            d[k] = t.ce * (soft - (at + k == begin + target ? 1.0f : 0.0f));
            if (t.y) {
                float p = expf((y[k] - sy.top) * t.inv_t - log_y);
                float q = scale_t != 0 ? expf((z[k] - sz.top) * t.inv_t - log_zt) : soft;
                if (p != 0) /* 0 log 0 = 0; NaN counts */
                    divergence += p * ((y[k] - z[k]) * t.inv_t - gap);
                d[k] += t.kd * (q - p);
            }
        }
        if (g)
            store_group(g, d, at, begin, end);
    }
    if (t.y && t.kl) {
        divergence = block_sum(divergence, summed);
        if (threadIdx.x == 0)
            t.kl[r] = t.tt * divergence;
    }
}

static enum status check(const struct head_loss_args *a) {
    TRY(cuda_check_dtype("head_loss", a->hidden.dtype));
    if (a->teacher_hidden.data && a->teacher_head.shape[0] != a->head.shape[0])
        return status_fail(STATUS_FAILED,
                           "head_loss: the teacher's vocabulary has %lld entries, the student's "
                           "%lld; distillation needs the same tokenizer",
                           (long long)a->teacher_head.shape[0], (long long)a->head.shape[0]);
    if (!(a->temperature > 0) || !std::isfinite(a->temperature))
        return status_fail(STATUS_FAILED, "head_loss: temperature %g is not positive",
                           a->temperature);
    return STATUS_OK;
}

static enum status matmul_logits(struct backend *be, struct tensor hidden, struct tensor head,
                                 const float *z) {
    struct matmul_args m = {};
    m.a = hidden;
    m.b = head;
    m.trans_b = true;
    m.c = tensor_2d(DTYPE_F32, (void *)z, hidden.shape[0], head.shape[0]);
    return be->matmul(be, &m);
}

static enum status loss_tile(struct backend *be, const struct head_loss_args *a, struct loss_tile t,
                             int64_t first, int64_t n) {
    struct tensor hidden = tensor_rows(a->hidden, first, n);
    TRY(matmul_logits(be, hidden, a->head, t.z));
    if (t.y)
        TRY(matmul_logits(be, tensor_rows(a->teacher_hidden, first, n), a->teacher_head, t.y));
    t.targets = a->targets + first;
    t.nll = a->nll.data ? (float *)a->nll.data + first : NULL;
    t.kl = a->kl.data ? (float *)a->kl.data + first : NULL;
    t.agree = a->agree.data ? (float *)a->agree.data + first : NULL;
    int block = block_for(divide_up(t.n_vocab, GROUP) + 1, LOSS_BLOCK);
    WITH_TYPE(a->hidden.dtype, T,
              { CUDA_LAUNCH(loss_row<T>, (unsigned)n, block, 0, cuda_stream(be), t); });
    if (!t.g)
        return STATUS_OK;
    struct matmul_args m = {};
    m.a = tensor_2d(a->hidden.dtype, t.g, n, t.n_vocab);
    m.b = a->head;
    m.c = tensor_rows(a->d_hidden, first, n);
    TRY(be->matmul(be, &m));
    if (!a->d_head.data)
        return STATUS_OK;
    m.trans_a = true;
    m.b = hidden;
    m.c = a->d_head;
    m.beta = 1;
    return be->matmul(be, &m);
}

/* Tiles of about equal size, in whole steps of what matmul tiles like. */
static int64_t tile_rows(int64_t n_row, int64_t row_bytes) {
    int64_t most = std::min<int64_t>(TILE_ROWS, std::max<int64_t>(1, TILE_BYTES / row_bytes));
    if (most > ROW_STEP)
        most -= most % ROW_STEP;
    int64_t even = divide_up(n_row, divide_up(n_row, most));
    return std::min(most, divide_up(even, ROW_STEP) * ROW_STEP);
}

extern "C" enum status cuda_head_loss(struct backend *be, const struct head_loss_args *a) {
    int64_t n_row = a->hidden.shape[0], n_vocab = a->head.shape[0];
    bool teacher = a->teacher_hidden.data && a->teacher_head.data;
    bool apart = a->d_hidden.data && a->hidden.dtype == DTYPE_BF16; /* g does not fit over z */
    TRY(check(a));
    if (!n_row)
        return STATUS_OK;
    int64_t rows = tile_rows(n_row, n_vocab * (4 + (teacher ? 4 : 0) + (apart ? 2 : 0)));
    int64_t logits = divide_up(rows * n_vocab, ROW_STEP) * ROW_STEP; /* keeps parts aligned */
    float *z;
    TRY(cuda_scratch(be, CUDA_SCRATCH_LOSS, logits * (4 + (teacher ? 4 : 0) + (apart ? 2 : 0)),
                     &z));
    struct loss_tile t = {};
    t.z = z;
    t.y = teacher ? z + logits : NULL;
    if (a->d_hidden.data)
        t.g = apart ? z + logits * (teacher ? 2 : 1) : z;
    t.n_vocab = (int)n_vocab;
    t.ce = (float)(a->ce_weight * a->grad_scale);
    t.kd = (float)(a->kl_weight * a->grad_scale * a->temperature);
    t.inv_t = (float)(1 / a->temperature);
    t.tt = (float)(a->temperature * a->temperature);
    for (int64_t first = 0; first < n_row; first += rows)
        TRY(loss_tile(be, a, t, first, std::min(rows, n_row - first)));
    return cuda_launch_status(be, "head_loss");
}
