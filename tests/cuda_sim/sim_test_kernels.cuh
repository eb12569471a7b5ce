/* Kernels with known answers and kernels with a planted fault, for test_cuda_sim.cpp. */
#ifndef REGROUP_CUDA_SIM_TEST_KERNELS_CUH
#define REGROUP_CUDA_SIM_TEST_KERNELS_CUH

#include "kernels/cuda/cuda_device.cuh"

enum fault { SOUND, FAULTY };

/* out[i] = 2 in[i]; FAULTY: also one past the end. */
template <fault F> __global__ void twice(const float *in, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n + (F == FAULTY))
        out[i] = 2 * in[i];
}

/* Each thread takes what its neighbour has left in shared memory; FAULTY: without a barrier. */
template <fault F> __global__ void rotate(const float *in, float *out) {
    SHARED_ARRAY(float, cell, 256);
    cell[threadIdx.x] = in[threadIdx.x];
    if (F == SOUND)
        __syncthreads();
    out[threadIdx.x] = cell[(threadIdx.x + 1) % blockDim.x];
}

/* The same twice through one cell each; FAULTY: no barrier before the second use. */
template <fault F> __global__ void rotate_twice(const float *in, float *out) {
    SHARED_ARRAY(float, cell, 256);
    cell[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float first = cell[(threadIdx.x + 1) % blockDim.x];
    if (F == SOUND)
        __syncthreads();
    cell[threadIdx.x] = first;
    __syncthreads();
    out[threadIdx.x] = cell[(threadIdx.x + 1) % blockDim.x];
}

/* Within a warp; FAULTY: without __syncwarp. */
template <fault F> __global__ void rotate_warp(const float *in, float *out) {
    SHARED_ARRAY(float, cell, WARP);
    cell[threadIdx.x] = in[threadIdx.x];
    if (F == SOUND)
        __syncwarp();
    out[threadIdx.x] = cell[(threadIdx.x + 1) % WARP];
}

/* Four floats a thread through cp.async in two groups; FAULTY: waits for the first one only. */
template <fault F> __global__ void pipeline(const float *in, float *out) {
    SHARED_DYNAMIC(float, tile);
    int n = blockDim.x, i = 4 * threadIdx.x;
    cp_async_16(tile + i, in + i, true);
    cp_async_commit();
    cp_async_16(tile + 4 * n + i, in + 4 * n + i, i % 8 == 0); /* every second one zeros */
    cp_async_commit();
    cp_async_wait<F == FAULTY ? 1 : 0>();
    __syncthreads();
    for (int k = 0; k < 8; k++)
        out[k * n + threadIdx.x] = tile[k * n + threadIdx.x];
}

/* FAULTY: fetches into a buffer that others may still be reading. */
template <fault F> __global__ void refill(const float *in, float *out) {
    SHARED_ARRAY(float, tile, 128);
    int i = 4 * threadIdx.x;
    for (int k = 0; k < 4; k++)
        tile[i + k] = in[i + k];
    __syncthreads();
    float got = tile[127 - i];
    if (F == SOUND)
        __syncthreads();
    cp_async_16(tile + i, in, true);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    out[threadIdx.x] = got + tile[i];
}

/* Fetches what it does not use, then uses the place; FAULTY: without waiting first. */
template <fault F> __global__ void reuse(const float *in, float *out) {
    SHARED_ARRAY(float, tile, 128);
    cp_async_16(tile + 4 * threadIdx.x, in, true);
    cp_async_commit();
    if (F == SOUND)
        cp_async_wait<0>();
    __syncthreads();
    tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[31 - threadIdx.x];
}

/* Every lane writes a row of a matrix that all of them load; FAULTY: without __syncwarp. */
template <fault F> __global__ void rows_of_others(const float *in, float *out) {
    SHARED_ARRAY(__nv_bfloat16, tile, 8 * WARP);
    uint32_t r[4];
    for (int i = 0; i < 8; i++)
        tile[8 * threadIdx.x + i] = __float2bfloat16_rn(in[threadIdx.x]);
    if (F == SOUND)
        __syncwarp();
    ldmatrix_x4(r, tile + 8 * (threadIdx.x ^ 1));
    out[threadIdx.x] = __uint_as_float(r[0] << 16);
}

__global__ void shared_beyond_static(float *out, int at) {
    SHARED_ARRAY(float, few, 8);
    if (threadIdx.x == 3)
        out[0] = few[at];
}
__global__ void shared_beyond_dynamic(float *out, int at) {
    SHARED_DYNAMIC(float, few);
    if (threadIdx.x == 3)
        out[0] = few[at];
}
__global__ void uninitialised(float *out) {
    SHARED_ARRAY(float, cell, 32);
    out[threadIdx.x] = cell[threadIdx.x];
}
__global__ void write_at(float *p, int at) {
    p[at] = 1;
}
struct hidden_pointer { /* not seen by the check of the arguments */
    float *p;
};
__global__ void write_through(hidden_pointer x) {
    x.p[0] = 1;
}

__global__ void some_leave() {
    if (threadIdx.x < 5)
        return;
    __syncthreads();
}
__global__ void two_barriers() {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}
__global__ void lane_missing(float *out) {
    if (threadIdx.x != 7)
        out[threadIdx.x] = __shfl_xor_sync(FULL_MASK, 1.f, 1);
}
__global__ void two_collectives(float *out) {
    if (threadIdx.x % 2)
        out[threadIdx.x] = __shfl_xor_sync(FULL_MASK, 1.f, 1);
    else
        out[threadIdx.x] = (float)__any_sync(FULL_MASK, true);
}

/* Everything that shuffles and votes give, in columns of 32. */
__global__ void collectives(int *out) {
    int l = threadIdx.x, k = 0;
    out[32 * k++ + l] = __shfl_sync(FULL_MASK, 100 + l, 5);
    out[32 * k++ + l] = __shfl_sync(FULL_MASK, 100 + l, 9, 8);
    out[32 * k++ + l] = __shfl_xor_sync(FULL_MASK, 100 + l, 6);
    out[32 * k++ + l] = __shfl_down_sync(FULL_MASK, 100 + l, 3);
    out[32 * k++ + l] = __shfl_down_sync(FULL_MASK, 100 + l, 3, 16);
    out[32 * k++ + l] = __shfl_up_sync(FULL_MASK, 100 + l, 2, 8);
    out[32 * k++ + l] = (int)__ballot_sync(FULL_MASK, l % 3 == 0);
    out[32 * k++ + l] = __any_sync(FULL_MASK, l == 31);
    out[32 * k++ + l] = __all_sync(FULL_MASK, l < 31);
    unsigned half = l < 16 ? 0xffffu : 0xffff0000u; /* two collectives of one warp at a time */
    out[32 * k++ + l] = __shfl_xor_sync(half, 100 + l, 15);
    out[32 * k++ + l] = warp_sum(l);
}

/* d [16, 8] = a [16, 16] b [16, 8], every fragment loaded element by element as the PTX manual
 * numbers them, and again through ldmatrix; row-major bf16 in. */
__global__ void fragments(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *d, int *differ) {
    SHARED_ARRAY(__nv_bfloat16, sa, 16 * 16);
    SHARED_ARRAY(__nv_bfloat16, sb, 16 * 8);
    SHARED_ARRAY(__nv_bfloat16, sbt, 8 * 16);
    int lane = threadIdx.x, group = lane >> 2, in_group = lane % 4;
    for (int i = lane; i < 16 * 16; i += WARP)
        sa[i] = a[i];
    for (int i = lane; i < 16 * 8; i += WARP) {
        sb[i] = b[i];
        sbt[i % 8 * 16 + i / 8] = b[i];
    }
    __syncwarp();
    uint32_t fa[4], fb[2], la[4], lb[2], lbt[2], pair[2];
    for (int i = 0; i < 8; i++) { /* a_i */
        int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        int column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        pair[i & 1] = __bfloat16_as_ushort(a[row * 16 + column]);
        fa[i / 2] = pair[0] | pair[1] << 16;
    }
    for (int i = 0; i < 4; i++) { /* b_i */
        int row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0);
        pair[i & 1] = __bfloat16_as_ushort(b[row * 8 + group]);
        fb[i / 2] = pair[0] | pair[1] << 16;
    }
    ldmatrix_x4(la, sa + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x2_trans(lb, sb + lane % 16 * 8);
    ldmatrix_x2(lbt, sbt + lane % 8 * 16 + lane / 8 % 2 * 8);
    differ[lane] = 0;
    for (int i = 0; i < 4; i++)
        differ[lane] += la[i] != fa[i];
    for (int i = 0; i < 2; i++)
        differ[lane] += (lb[i] != fb[i]) + (lbt[i] != fb[i]);
    ldmatrix_x4_trans(la, sa + lane % 16 * 16 + lane / 16 * 8); /* of each 8 x 8 block */
    for (int i = 0; i < 4; i++) {
        int row = 8 * (i % 2) + 2 * in_group, column = 8 * (i / 2) + group;
        uint32_t want = __bfloat16_as_ushort(a[row * 16 + column]) |
                        (uint32_t)__bfloat16_as_ushort(a[(row + 1) * 16 + column]) << 16;
        differ[lane] += la[i] != want;
    }
    float c[4] = {};
    mma_bf16_16x8x16(c, fa, fb);
    for (int i = 0; i < 4; i++) { /* c_i */
        int row = i < 2 ? group : group + 8;
        d[row * 8 + in_group * 2 + (i & 1)] = c[i];
    }
}

/* Block and thread numbers, and the order in which the threads came. */
__global__ void numbers(int *where, unsigned *order, unsigned *ticket) {
    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int i = block * (int)(blockDim.x * blockDim.y * blockDim.z) + thread;
    where[i] = i;
    order[i] = atomicAdd(ticket, 1u);
}

#endif
