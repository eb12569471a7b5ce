/* Stand-in for the CUDA toolkit's header: bf16 as a 16-bit struct, arithmetic in fp32 rounded to
 * nearest even. */
#ifndef REGROUP_CUDA_SIM_CUDA_BF16_H
#define REGROUP_CUDA_SIM_CUDA_BF16_H

#include "device_functions.h"

struct __nv_bfloat16_raw {
    unsigned short x;
};

inline unsigned short sim_bf16_bits(float v) {
    unsigned u = __float_as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (unsigned short)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float v) : bits(sim_bf16_bits(v)) {
    }
    __nv_bfloat16(double v) : bits(sim_bf16_bits((float)v)) {
    }
    __nv_bfloat16(int v) : bits(sim_bf16_bits((float)v)) {
    }
    __nv_bfloat16(const __nv_bfloat16_raw &v) : bits(v.x) {
    }
    operator float() const {
        return __uint_as_float((unsigned)bits << 16);
    }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __nv_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) : x(a), y(b) {
    }
};

inline float __bfloat162float(__nv_bfloat16 v) {
    return (float)v;
}
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    return __nv_bfloat16(v);
}
inline __nv_bfloat16 __float2bfloat16(float v) {
    return __nv_bfloat16(v);
}
inline __nv_bfloat16 __float2bfloat16_rz(float v) {
    return __nv_bfloat16(__nv_bfloat16_raw{(unsigned short)(__float_as_uint(v) >> 16)});
}
inline __nv_bfloat16 __double2bfloat16(double v) {
    return __nv_bfloat16((float)v);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
    return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
    return {(float)v.x, (float)v.y};
}
inline float __low2float(__nv_bfloat162 v) {
    return (float)v.x;
}
inline float __high2float(__nv_bfloat162 v) {
    return (float)v.y;
}
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) {
    return {x, y};
}
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) {
    return {x, x};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) {
    return v.bits;
}
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) {
    return __nv_bfloat16(__nv_bfloat16_raw{v});
}
inline bool __hisnan(__nv_bfloat16 v) {
    return (v.bits & 0x7fff) > 0x7f80;
}

#endif
