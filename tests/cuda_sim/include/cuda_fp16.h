/* Stand-in for the CUDA toolkit's header: fp16 for storage (a cache), converted to and from fp32.
 */
#ifndef REGROUP_CUDA_SIM_CUDA_FP16_H
#define REGROUP_CUDA_SIM_CUDA_FP16_H

#include "core/tensor.h"
#include "device_functions.h"

struct __half_raw {
    unsigned short x;
};
struct __half {
    unsigned short bits;
    __half() = default;
    __half(float v) : bits(f32_to_f16(v)) {
    }
    __half(const __half_raw &v) : bits(v.x) {
    }
    operator float() const {
        return f16_to_f32(bits);
    }
};
struct alignas(4) __half2 {
    __half x, y;
};

inline float __half2float(__half v) {
    return (float)v;
}
inline __half __float2half_rn(float v) {
    return __half(v);
}
inline __half __float2half(float v) {
    return __half(v);
}
inline float2 __half22float2(__half2 v) {
    return {(float)v.x, (float)v.y};
}
inline __half2 __floats2half2_rn(float x, float y) {
    return {__half(x), __half(y)};
}
inline float __low2float(__half2 v) {
    return (float)v.x;
}
inline float __high2float(__half2 v) {
    return (float)v.y;
}
inline unsigned short __half_as_ushort(__half v) {
    return v.bits;
}
inline __half __ushort_as_half(unsigned short v) {
    return __half(__half_raw{v});
}

#endif
