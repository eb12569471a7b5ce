/* What every .cu file includes first: launches, shared memory, vector access, reductions, and the
 * PTX that CUDA C++ has no name for. With REGROUP_CUDA_SIM the same sources run on the CPU: the
 * simulator (tests/cuda_sim) supplies its own launches, shared memory and PTX. */
#ifndef REGROUP_KERNELS_CUDA_CUDA_DEVICE_CUH
#define REGROUP_KERNELS_CUDA_CUDA_DEVICE_CUH

#include "kernels/cuda/cuda_internal.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdint.h>

#ifdef REGROUP_CUDA_SIM
#include "cuda_sim_device.h"
#else

/* CUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, args...): grid and block dim3 or int; a
 * template kernel with commas in parentheses. What went wrong shows in cuda_launch_status. */
#define CUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                \
    cuda_launch(kernel, dim3(grid), dim3(block), shared_bytes, stream, ##__VA_ARGS__)
template <class... P, class... A>
inline void cuda_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                        cudaStream_t stream, const A &...args) {
    if (shared_bytes > 48 * 1024 && /* beyond that the kernel has to opt in */
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)shared_bytes) != cudaSuccess)
        return; /* the error stays for cuda_launch_status */
    kernel<<<grid, block, shared_bytes, stream>>>(static_cast<P>(args)...);
}

#define SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]
#define SHARED_DYNAMIC(type, name)                                                                 \
    extern __shared__ __align__(128) unsigned char cuda_shared_dynamic[];                          \
    type *const name = reinterpret_cast<type *>(cuda_shared_dynamic)

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes from global to shared memory, past the registers; zeros when not valid (`global` is
 * not read then). They are there after the cp_async_wait that covers their group, for other
 * threads after a barrier as well. */
__device__ __forceinline__ void cp_async_16(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
                 : "memory");
}
/* The same of 4 bytes. */
__device__ __forceinline__ void cp_async_4(void *shared, const void *global, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(valid ? 4 : 0)
                 : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most N of this thread's youngest groups are on their way. */
template <int N> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* 8x8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8 and gets
 * elements 2 (l % 4), + 1 of row l / 4 of each (of column l / 4 when transposed). */
__device__ __forceinline__ void ldmatrix_x4(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t r[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t r[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}

/* d [16, 8] += a [16, 16] b [16, 8] in fp32. With g = lane / 4, t = lane % 4:
 * a[0] = A(g, 2t), a[1] = A(g + 8, 2t), a[2] = A(g, 2t + 8), a[3] = A(g + 8, 2t + 8), each with its
 * right neighbour; b[0] = B(2t, g), b[1] = B(2t + 8, g), each with the row below;
 * d[0], d[1] = D(g, 2t), D(g, 2t + 1); d[2], d[3] the same of row g + 8. */
__device__ __forceinline__ void mma_bf16_16x8x16(float d[4], const uint32_t a[4],
                                                 const uint32_t b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif /* REGROUP_CUDA_SIM */

constexpr int WARP = 32;
constexpr unsigned FULL_MASK = 0xffffffffu;

/* Elements of every float dtype as the arithmetic sees them. */
__device__ __forceinline__ float to_float(float v) {
    return v;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 v) {
    return __bfloat162float(v);
}
__device__ __forceinline__ float to_float(__half v) {
    return __half2float(v);
}
template <class T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) {
    return v;
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
    return __float2bfloat16_rn(v);
}
template <> __device__ __forceinline__ __half from_float<__half>(float v) {
    return __float2half_rn(v);
}
/* Two bf16 in one register, `low` at the lower address. */
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* N elements in accesses of at most 16 bytes; p is aligned to min(16, N * sizeof(T)). Not
 * __restrict__: nvcc takes it for a promise that nobody writes there while the kernel runs, reads
 * with ld.global.nc, and many ops work in place. */
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) vec { T v[N]; };
template <class T> constexpr int VEC = 16 / (int)sizeof(T); /* elements in 16 bytes */
template <class T, int N> __device__ __forceinline__ void load_vec(float (&out)[N], const T *p) {
    const vec<T, N> x = *reinterpret_cast<const vec<T, N> *>(p);
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = to_float(x.v[i]);
}
template <class T, int N> __device__ __forceinline__ void store_vec(T *p, const float (&in)[N]) {
    vec<T, N> x;
#pragma unroll
    for (int i = 0; i < N; i++)
        x.v[i] = from_float<T>(in[i]);
    *reinterpret_cast<vec<T, N> *>(p) = x;
}
template <class P> __device__ __host__ __forceinline__ bool aligned_16(const P *p) {
    return (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}

/* Over a warp, to every lane, in a fixed order. warp_max drops a NaN as fmaxf does: whoever takes
 * exp(x - max) afterwards has it back in the sum. */
template <class T> __device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(FULL_MASK, v, step);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(FULL_MASK, v, step));
    return v;
}

/* Over a block (one-dimensional, whole warps), to every thread, in a fixed order. scratch: WARP
 * elements of shared memory; free again for the next call at once. */
template <class T> __device__ __forceinline__ T block_sum(T v, T *scratch) {
    v = warp_sum(v);
    const int lane = threadIdx.x % WARP, n_warp = blockDim.x / WARP;
    __syncthreads(); /* the call before may still be reading */
    if (lane == 0)
        scratch[threadIdx.x / WARP] = v;
    __syncthreads();
    return warp_sum(lane < n_warp ? scratch[lane] : T(0));
}
__device__ __forceinline__ float block_max(float v, float *scratch) {
    v = warp_max(v);
    const int lane = threadIdx.x % WARP, n_warp = blockDim.x / WARP;
    __syncthreads();
    if (lane == 0)
        scratch[threadIdx.x / WARP] = v;
    __syncthreads();
    return warp_max(lane < n_warp ? scratch[lane] : -INFINITY);
}

#endif
