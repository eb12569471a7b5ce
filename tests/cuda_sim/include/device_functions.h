/* Qualifiers, built-in variables, warp collectives, atomics and intrinsics of device code. Call
 * sites travel as default arguments, so that a divergent barrier can be told from a common one. */
#ifndef REGROUP_CUDA_SIM_DEVICE_FUNCTIONS_H
#define REGROUP_CUDA_SIM_DEVICE_FUNCTIONS_H

#include "cuda_runtime_api.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__

using std::isfinite;
using std::isinf;
using std::isnan;
using std::signbit;

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace cuda_sim {

struct site { /* where a thread waits */
    const char *what, *file;
    int line;
};
/* The last lane of `mask` to arrive calls compute with every lane's argument (NULL outside the
 * mask), then all of them go on. */
void collective(unsigned mask, const site &at, void *lane_argument,
                void (*compute)(void **lanes, unsigned mask));
/* Counts over the block: how many threads came, how many with `predicate`. */
int barrier(const site &at, bool predicate);
int lane();
void spoil_copies(); /* of this thread that nobody has waited for */
void give_way();     /* another thread of the block may run now */

template <class T> struct shuffle_argument {
    T value;
    int from; /* lane to read, or own when out of range */
};
template <class T> void shuffle_compute(void **lanes, unsigned mask) {
    T out[32];
    for (int i = 0; i < 32; i++)
        if (lanes[i]) {
            int from = static_cast<shuffle_argument<T> *>(lanes[i])->from;
            assert(mask >> from & 1u); /* a lane outside the mask has no value to give */
            out[i] = static_cast<shuffle_argument<T> *>(lanes[from])->value;
        }
    for (int i = 0; i < 32; i++)
        if (lanes[i])
            static_cast<shuffle_argument<T> *>(lanes[i])->value = out[i];
}
template <class T> inline T shuffle(unsigned mask, T value, int from, const site &at) {
    shuffle_argument<T> x = {value, from};
    collective(mask, at, &x, shuffle_compute<T>);
    return x.value;
}
struct vote_argument {
    bool predicate;
    unsigned ballot;
};
void vote_compute(void **lanes, unsigned mask);

} // namespace cuda_sim

#define SIM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SIM_AT(what)                                                                               \
    cuda_sim::site {                                                                               \
        what, file, line                                                                           \
    }

inline void __syncthreads(SIM_SITE) {
    cuda_sim::barrier(SIM_AT("__syncthreads"), false);
}
inline int __syncthreads_count(bool p, SIM_SITE) {
    return cuda_sim::barrier(SIM_AT("__syncthreads_count"), p);
}
inline int __syncthreads_or(bool p, SIM_SITE) {
    return cuda_sim::barrier(SIM_AT("__syncthreads_or"), p) > 0;
}
inline int __syncthreads_and(bool p, SIM_SITE) {
    return cuda_sim::barrier(SIM_AT("__syncthreads_and"), p) ==
           (int)(blockDim.x * blockDim.y * blockDim.z);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, SIM_SITE) {
    char none = 0;
    cuda_sim::spoil_copies();
    cuda_sim::collective(mask, SIM_AT("__syncwarp"), &none, [](void **, unsigned) {});
}

template <class T> inline T __shfl_sync(unsigned mask, T v, int from, int width = 32, SIM_SITE) {
    int lane = cuda_sim::lane(), base = lane & ~(width - 1);
    return cuda_sim::shuffle(mask, v, base + (from & (width - 1)), SIM_AT("__shfl_sync"));
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32, SIM_SITE) {
    int lane = cuda_sim::lane(), from = lane ^ with;
    bool inside = from < (lane & ~(width - 1)) + width;
    return cuda_sim::shuffle(mask, v, inside ? from : lane, SIM_AT("__shfl_xor_sync"));
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, SIM_SITE) {
    int lane = cuda_sim::lane(), from = lane + (int)by;
    bool inside = from < (lane & ~(width - 1)) + width;
    return cuda_sim::shuffle(mask, v, inside ? from : lane, SIM_AT("__shfl_down_sync"));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, SIM_SITE) {
    int lane = cuda_sim::lane(), from = lane - (int)by;
    bool inside = from >= (lane & ~(width - 1));
    return cuda_sim::shuffle(mask, v, inside ? from : lane, SIM_AT("__shfl_up_sync"));
}
inline unsigned __ballot_sync(unsigned mask, bool p, SIM_SITE) {
    cuda_sim::vote_argument x = {p, 0};
    cuda_sim::collective(mask, SIM_AT("__ballot_sync"), &x, cuda_sim::vote_compute);
    return x.ballot;
}
inline int __any_sync(unsigned mask, bool p, SIM_SITE) {
    return __ballot_sync(mask, p, file, line) != 0;
}
inline int __all_sync(unsigned mask, bool p, SIM_SITE) {
    return __ballot_sync(mask, p, file, line) == mask;
}

inline void __threadfence() {
}
inline void __threadfence_block() {
}
/* Blocks run one after the other and a thread runs until it gives way, so the plain operation is
 * atomic; what is not is the order, which the scheduler draws. */
template <class T, class U> inline T atomicAdd(T *p, U v) {
    cuda_sim::give_way();
    T old = *p;
    *p = (T)(old + (T)v);
    return old;
}
template <class T, class U> inline T atomicMax(T *p, U v) {
    cuda_sim::give_way();
    T old = *p;
    *p = std::max(old, (T)v);
    return old;
}
template <class T, class U> inline T atomicMin(T *p, U v) {
    cuda_sim::give_way();
    T old = *p;
    *p = std::min(old, (T)v);
    return old;
}
template <class T, class U> inline T atomicExch(T *p, U v) {
    cuda_sim::give_way();
    T old = *p;
    *p = (T)v;
    return old;
}
template <class T, class U, class V> inline T atomicCAS(T *p, U compare, V v) {
    cuda_sim::give_way();
    T old = *p;
    if (old == (T)compare)
        *p = (T)v;
    return old;
}

template <class T> inline T __ldg(const T *p) {
    return *p;
}
template <class T> inline T __ldcs(const T *p) {
    return *p;
}
template <class T> inline T __ldcg(const T *p) {
    return *p;
}
template <class T> inline void __stcs(T *p, T v) {
    *p = v;
}
template <class T> inline void __stcg(T *p, T v) {
    *p = v;
}

inline float __expf(float x) {
    return expf(x);
}
inline float __exp10f(float x) {
    return powf(10.f, x);
}
inline float __logf(float x) {
    return logf(x);
}
inline float __log2f(float x) {
    return log2f(x);
}
inline float __powf(float x, float y) {
    return powf(x, y);
}
inline float __sinf(float x) {
    return sinf(x);
}
inline float __cosf(float x) {
    return cosf(x);
}
inline float __tanhf(float x) {
    return tanhf(x);
}
inline void __sincosf(float x, float *s, float *c) {
    *s = sinf(x);
    *c = cosf(x);
}
inline float __fdividef(float x, float y) {
    return x / y;
}
inline void sincospif(float x, float *sine, float *cosine) {
    double turn = remainder((double)x, 2) * 3.14159265358979323846;
    *sine = (float)sin(turn);
    *cosine = (float)cos(turn);
}
inline float rsqrtf(float x) {
    return (float)(1 / sqrt((double)x));
}
inline double rsqrt(double x) {
    return 1 / sqrt(x);
}
inline float __frsqrt_rn(float x) {
    return rsqrtf(x);
}
inline float __frcp_rn(float x) {
    return 1 / x;
}
inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
inline float __fadd_rn(float x, float y) {
    return x + y;
}
inline float __fsub_rn(float x, float y) {
    return x - y;
}
inline float __fmul_rn(float x, float y) {
    return x * y;
}
inline float __fdiv_rn(float x, float y) {
    return x / y;
}
inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}
inline double __dadd_rn(double x, double y) {
    return x + y;
}
inline double __dmul_rn(double x, double y) {
    return x * y;
}
inline float __saturatef(float x) {
    return fminf(fmaxf(x, 0.f), 1.f);
}

template <class To, class From> inline To sim_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline int __float_as_int(float x) {
    return sim_bits<int>(x);
}
inline unsigned __float_as_uint(float x) {
    return sim_bits<unsigned>(x);
}
inline float __int_as_float(int x) {
    return sim_bits<float>(x);
}
inline float __uint_as_float(unsigned x) {
    return sim_bits<float>(x);
}
inline long long __double_as_longlong(double x) {
    return sim_bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return sim_bits<double>(x);
}
inline int __float2int_rn(float x) {
    return (int)lrintf(x);
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++, x >>= 1)
        y = y << 1 | (x & 1u);
    return y;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
    return (unsigned)((uint64_t)x * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}
[[noreturn]] void __trap();

/* min and max of mixed arguments, as CUDA C++ has them in the global namespace. */
#define SIM_MIN_MAX(type)                                                                          \
    inline type min(type a, type b) {                                                              \
        return b < a ? b : a;                                                                      \
    }                                                                                              \
    inline type max(type a, type b) {                                                              \
        return a < b ? b : a;                                                                      \
    }
SIM_MIN_MAX(int)
SIM_MIN_MAX(unsigned)
SIM_MIN_MAX(long)
SIM_MIN_MAX(unsigned long)
SIM_MIN_MAX(long long)
SIM_MIN_MAX(unsigned long long)
#undef SIM_MIN_MAX
inline float min(float a, float b) {
    return fminf(a, b);
}
inline float max(float a, float b) {
    return fmaxf(a, b);
}
inline double min(double a, double b) {
    return fmin(a, b);
}
inline double max(double a, double b) {
    return fmax(a, b);
}

#define SIM_MAKE(type, name)                                                                       \
    inline name##1 make_##name##1(type x) {                                                        \
        return {x};                                                                                \
    }                                                                                              \
    inline name##2 make_##name##2(type x, type y) {                                                \
        return {x, y};                                                                             \
    }                                                                                              \
    inline name##3 make_##name##3(type x, type y, type z) {                                        \
        return {x, y, z};                                                                          \
    }                                                                                              \
    inline name##4 make_##name##4(type x, type y, type z, type w) {                                \
        return {x, y, z, w};                                                                       \
    }
SIM_MAKE(signed char, char)
SIM_MAKE(unsigned char, uchar)
SIM_MAKE(short, short)
SIM_MAKE(unsigned short, ushort)
SIM_MAKE(int, int)
SIM_MAKE(unsigned, uint)
SIM_MAKE(long long, longlong)
SIM_MAKE(unsigned long long, ulonglong)
SIM_MAKE(float, float)
SIM_MAKE(double, double)
#undef SIM_MAKE

#endif
