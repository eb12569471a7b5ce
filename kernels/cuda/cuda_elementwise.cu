/* add, difference, cast, copy_heads: one pass over memory, 16 bytes of the wider type a thread. The
 * floor is the bytes read and written. */
#include "kernels/cuda/cuda_dispatch.cuh"

#include <type_traits>

enum { ELEMENT_BLOCK = 256, MOST_BLOCKS = 65535 /* of a grid's second dimension */ };

static unsigned blocks(int64_t n, int each) {
    return (unsigned)divide_up(n, (int64_t)ELEMENT_BLOCK * each);
}
static __device__ int64_t first_element(int each) {
    return ((int64_t)blockIdx.x * ELEMENT_BLOCK + threadIdx.x) * each;
}

/* out = scale / size * (a + sign b), N elements a thread, one by one where the last ones are fewer.
 * size: NULL for 1; one that holds 0 stands for n. */
template <class T, int N>
__global__ void combine(const T *a, const T *b, T *out, int64_t n, float sign, double whole_scale,
                        const double *size) {
    const float scale =
        (float)(size ? whole_scale / (*size == 0 ? (double)n : *size) : whole_scale);
    int64_t i = first_element(N);
    if (i + N <= n) {
        float x[N], y[N];
        load_vec<T, N>(x, a + i);
        load_vec<T, N>(y, b + i);
#pragma unroll
        for (int k = 0; k < N; k++)
            x[k] = scale * (x[k] + sign * y[k]);
        store_vec<T, N>(out + i, x);
    } else {
        for (; i < n; i++)
            out[i] = from_float<T>(scale * (to_float(a[i]) + sign * to_float(b[i])));
    }
}

static enum status run_combine(struct backend *be, const char *op, const struct tensor *a,
                               const struct tensor *b, const struct tensor *out, float sign,
                               double scale, const void *size) {
    int64_t n = tensor_count(out);
    TRY(cuda_check_dtype(op, out->dtype));
    if (a->dtype != out->dtype || b->dtype != out->dtype || tensor_count(a) != n ||
        tensor_count(b) != n)
        return status_fail(STATUS_FAILED, "%s: operands differ in shape or dtype", op);
    if (!n)
        return STATUS_OK;
    int each = vec_for(out->dtype, {}, (char *)a->data, (char *)b->data, (char *)out->data);
    WITH_VEC(out->dtype, each, T, N, {
        CUDA_LAUNCH((combine<T, N>), blocks(n, N), ELEMENT_BLOCK, 0, cuda_stream(be),
                    (const T *)a->data, (const T *)b->data, (T *)out->data, n, sign, scale,
                    (const double *)size);
    });
    return cuda_launch_status(be, op);
}

extern "C" enum status cuda_add(struct backend *be, const struct add_args *a) {
    return run_combine(be, "add", &a->a, &a->b, &a->out, 1, 1, NULL);
}

extern "C" enum status cuda_difference(struct backend *be, const struct difference_args *a) {
    return run_combine(be, "difference", &a->a, &a->b, &a->out, -1, a->scale, a->size.data);
}

/* F64 keeps its digits where both sides have them; every other pair goes through float. */
template <class To, class From> static __device__ To convert(From v) {
    if constexpr (std::is_same_v<To, From>)
        return v;
    else if constexpr (std::is_same_v<From, double>)
        return from_float<To>((float)v);
    else if constexpr (std::is_same_v<To, double>)
        return (double)to_float(v);
    else
        return from_float<To>(to_float(v));
}
template <class To, class From>
constexpr int CONVERT_VEC = 16 / (int)(sizeof(To) < sizeof(From) ? sizeof(From) : sizeof(To));

template <class To, class From, int N>
static __device__ void convert_vec(To *to, const From *from) {
    vec<From, N> x = *reinterpret_cast<const vec<From, N> *>(from);
    vec<To, N> y;
#pragma unroll
    for (int k = 0; k < N; k++)
        y.v[k] = convert<To>(x.v[k]);
    *reinterpret_cast<vec<To, N> *>(to) = y;
}

template <class To, class From, int N> __global__ void cast(const From *from, To *to, int64_t n) {
    int64_t i = first_element(N);
    if (i + N <= n)
        convert_vec<To, From, N>(to + i, from + i);
    else
        for (; i < n; i++)
            to[i] = convert<To>(from[i]);
}

/* A thread copies one vector of a row's heads, in every row that its block comes to. */
template <class To, class From, int N>
__global__ void copy_rows(const From *from, struct heads f, To *to, struct heads t, int64_t n_row,
                          int n_vec, int head_vec) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, h = i / head_vec, c = i % head_vec * N;
    from += blockIdx.z * f.batch + h * f.head + c;
    to += blockIdx.z * t.batch + h * t.head + c;
    for (int64_t r = blockIdx.y; i < n_vec && r < n_row; r += gridDim.y)
        convert_vec<To, From, N>(to + r * t.row, from + r * f.row);
}

struct convert_job {
    struct backend *be;
    const struct cast_args *cast;
    const struct copy_heads_args *heads; /* one of the two */
};

template <class To, class From> static void convert_launch(const struct convert_job *job) {
    constexpr int N = CONVERT_VEC<To, From>;
    cudaStream_t stream = cuda_stream(job->be);
    if (job->cast) {
        const From *from = (const From *)job->cast->x.data;
        To *to = (To *)job->cast->out.data;
        int64_t n = tensor_count(&job->cast->out);
        if (aligned_16(from) && aligned_16(to))
            CUDA_LAUNCH((cast<To, From, N>), blocks(n, N), ELEMENT_BLOCK, 0, stream, from, to, n);
        else
            CUDA_LAUNCH((cast<To, From, 1>), blocks(n, 1), ELEMENT_BLOCK, 0, stream, from, to, n);
        return;
    }
    const struct copy_heads_args *a = job->heads;
    const From *from = (const From *)a->from.data;
    To *to = (To *)a->to.data;
    bool fits = aligned_16(from) && aligned_16(to) && a->head_dim % N == 0;
    for (const struct heads *h : {&a->from, &a->to})
        fits = fits && h->batch % N == 0 && h->row % N == 0 && h->head % N == 0;
    int n = fits ? N : 1, n_vec = (int)(a->n_head * a->head_dim / n);
    int head_vec = (int)a->head_dim / n, block = block_for(n_vec, ELEMENT_BLOCK);
    dim3 grid((unsigned)divide_up(n_vec, block), (unsigned)std::min<int64_t>(a->n_row, MOST_BLOCKS),
              (unsigned)a->n_batch);
    if (fits)
        CUDA_LAUNCH((copy_rows<To, From, N>), grid, block, 0, stream, from, a->from, to, a->to,
                    a->n_row, n_vec, head_vec);
    else
        CUDA_LAUNCH((copy_rows<To, From, 1>), grid, block, 0, stream, from, a->from, to, a->to,
                    a->n_row, n_vec, head_vec);
}

template <class To> static enum status convert_from(enum dtype from, const struct convert_job *j) {
    switch (from) {
    case DTYPE_F64:
        convert_launch<To, double>(j);
        return STATUS_OK;
    case DTYPE_F32:
        convert_launch<To, float>(j);
        return STATUS_OK;
    case DTYPE_F16:
        convert_launch<To, __half>(j);
        return STATUS_OK;
    case DTYPE_BF16:
        convert_launch<To, __nv_bfloat16>(j);
        return STATUS_OK;
    default:
        return STATUS_FAILED;
    }
}

static enum status convert_to(const char *op, enum dtype from, enum dtype to,
                              const struct convert_job *j) {
    enum status status = STATUS_FAILED;
    if (to == DTYPE_F64)
        status = convert_from<double>(from, j);
    else if (to == DTYPE_F32)
        status = convert_from<float>(from, j);
    else if (to == DTYPE_F16)
        status = convert_from<__half>(from, j);
    else if (to == DTYPE_BF16)
        status = convert_from<__nv_bfloat16>(from, j);
    if (status != STATUS_OK)
        return status_fail(STATUS_FAILED, "%s: %s to %s is not a conversion between floats", op,
                           dtype_name(from), dtype_name(to));
    return cuda_launch_status(j->be, op);
}

extern "C" enum status cuda_cast(struct backend *be, const struct cast_args *a) {
    struct convert_job job = {be, a, NULL};
    if (!tensor_count(&a->out))
        return STATUS_OK;
    return convert_to("cast", a->x.dtype, a->out.dtype, &job);
}

extern "C" enum status cuda_copy_heads(struct backend *be, const struct copy_heads_args *a) {
    struct convert_job job = {be, NULL, a};
    if (a->n_batch * a->n_row * a->n_head * a->head_dim == 0)
        return STATUS_OK;
    return convert_to("copy_heads", a->from_dtype, a->to_dtype, &job);
}
