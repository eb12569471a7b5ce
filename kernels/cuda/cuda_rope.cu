/* Rotary embedding in place. A block takes one row: it computes the row's angles once, in shared
 * memory, and turns all heads with them; what counts is one read and one write of q and k.
 * Angles are products in double, reduced to an eighth of a turn there: late positions keep their
 * fraction. The rest is single precision, whose sine and cosine of pi x need no slow path. */
#include "kernels/cuda/cuda_dispatch.cuh"

enum { ROPE_BLOCK = 256 };

/* cos and sin of a >= 0. */
static __device__ float2 turn_by(double a) {
    constexpr double INVERSE_QUARTER = 0.63661977236758134308; /* 2 / pi */
    double quarters = a * INVERSE_QUARTER, whole = rint(quarters);
    float sine, cosine;
    sincospif(0.5f * (float)(quarters - whole), &sine, &cosine);
    int quadrant = (int)((long long)whole & 3);
    float x = quadrant & 1 ? sine : cosine, y = quadrant & 1 ? cosine : sine;
    return make_float2(quadrant == 1 || quadrant == 2 ? -x : x, quadrant >= 2 ? -y : y);
}

/* A unit is N pairs: two vectors of N elements, half a rotation apart or next to each other. */
template <class T, int N>
__global__ void __launch_bounds__(ROPE_BLOCK)
    rope_row(T *x, int64_t n_seq, int64_t n_head, int64_t head_dim, int64_t row_stride, int n_pair,
             const float *inv_freq, int64_t first_position, bool interleaved, bool inverse) {
    SHARED_DYNAMIC(float2, turn);
    int64_t r = blockIdx.x, position = first_position + r % n_seq;
    for (int i = threadIdx.x; i < n_pair; i += blockDim.x) {
        float2 t = turn_by((double)position * (double)inv_freq[i]);
        turn[i] = make_float2(t.x, inverse ? -t.y : t.y);
    }
    __syncthreads();
    int units = n_pair / N;
    for (int u = threadIdx.x; u < n_head * units; u += blockDim.x) {
        int i = u % units * N;
        T *a = x + r * row_stride + u / units * head_dim + (interleaved ? 2 * i : i);
        T *b = a + (interleaved ? N : n_pair);
        float va[N], vb[N];
        load_vec<T, N>(va, a);
        load_vec<T, N>(vb, b);
        if (interleaved && N > 1) {
#pragma unroll
            for (int k = 0; k < N / 2; k++) {
                float2 s = turn[i + k], t = turn[i + N / 2 + k];
                float p = va[2 * k], q = vb[2 * k];
                va[2 * k] = p * s.x - va[2 * k + 1] * s.y;
                va[2 * k + 1] = va[2 * k + 1] * s.x + p * s.y;
                vb[2 * k] = q * t.x - vb[2 * k + 1] * t.y;
                vb[2 * k + 1] = vb[2 * k + 1] * t.x + q * t.y;
            }
        } else {
#pragma unroll
            for (int k = 0; k < N; k++) {
                float2 s = turn[i + k];
                float p = va[k];
                va[k] = p * s.x - vb[k] * s.y;
                vb[k] = vb[k] * s.x + p * s.y;
            }
        }
        store_vec<T, N>(a, va);
        store_vec<T, N>(b, vb);
    }
}

extern "C" enum status cuda_rope(struct backend *be, const struct rope_args *a) {
    TRY(cuda_check_dtype("rope", a->dtype));
    int64_t n_pair = a->rotary / 2;
    if (!a->n_row || !n_pair)
        return STATUS_OK;
    int n = vec_for(a->dtype, {n_pair, a->head_dim, a->row_stride}, (const char *)a->x);
    WITH_VEC(a->dtype, n, T, N, {
        int block = block_for(std::max(n_pair, a->n_head * n_pair / N), ROPE_BLOCK);
        CUDA_LAUNCH((rope_row<T, N>), (unsigned)a->n_row, block, (size_t)n_pair * sizeof(float2),
                    cuda_stream(be), (T *)a->x, a->n_seq, a->n_head, a->head_dim, a->row_stride,
                    (int)n_pair, a->inv_freq, a->first_position, a->interleaved, a->inverse);
    });
    return cuda_launch_status(be, "rope");
}
