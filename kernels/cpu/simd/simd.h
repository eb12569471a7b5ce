/* The vector of floats every file in this folder is written with. Compiled once per instruction
 * set (ISA_NAME avx2 or avx512); names with external linkage are written ISA(name) -> name_avx2.
 * Loads and stores are unaligned. F32 and BF16 share one body: an always-inline function takes a
 * constant `bool bf16` and the compiler makes two. Arithmetic (+ - * / comparisons) is the
 * compiler's own on vector types. */
#ifndef REGROUP_KERNELS_CPU_SIMD_SIMD_H
#define REGROUP_KERNELS_CPU_SIMD_SIMD_H

#include "core/tensor.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define ISA_CAT2(name, isa) name##_##isa
#define ISA_CAT(name, isa) ISA_CAT2(name, isa)
#define ISA(name) ISA_CAT(name, ISA_NAME)
/* Ops on fewer elements than this stay on the calling thread: waking the others costs more. */
enum { PARALLEL_MIN = 1 << 15 };

#define INLINE static inline __attribute__((always_inline, unused))

#ifdef __AVX512F__
enum { VF_LEN = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));

INLINE vf vf_set(float x) {
    return (vf)_mm512_set1_ps(x);
}
INLINE vf vf_load(const float *p) {
    return (vf)_mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, vf v) {
    _mm512_storeu_ps(p, (__m512)v);
}
INLINE vf vf_load_bf16(const uint16_t *p) {
    __m256i raw = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return (vf)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}
/* The first n (0 <= n < VF_LEN) lanes; the others read as zero and are not written. */
INLINE vf vf_load_n(const float *p, int64_t n) {
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
INLINE void vf_store_n(float *p, vf v, int64_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
}
INLINE vf vf_load_bf16_n(const uint16_t *p, int64_t n) {
    __m256i raw = _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
    return (vf)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}
/* Round to nearest even; NaN stays NaN (bit for bit what f32_to_bf16 does). */
INLINE __m256i vf_to_bf16(vf v) {
    vu u = (vu)v;
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, nan = (u >> 16) | 0x40u;
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32((__m512i)rounded, is_nan, (__m512i)nan));
}
INLINE void vf_store_bf16(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)(void *)p, vf_to_bf16(v));
}
INLINE void vf_store_bf16_n(uint16_t *p, vf v, int64_t n) {
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), vf_to_bf16(v));
}
INLINE vf vf_fma(vf a, vf b, vf c) { /* a * b + c, rounded once */
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
INLINE vf vf_sqrt(vf a) {
    return (vf)_mm512_sqrt_ps((__m512)a);
}
INLINE vf vf_max(vf a, vf b) { /* lane-wise; b where a or b is NaN */
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}
INLINE vf vf_min(vf a, vf b) {
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
}
INLINE vf vf_round(vf a) {
    return (vf)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE float vf_hsum(vf a) { /* all lanes, in a fixed order */
    return _mm512_reduce_add_ps((__m512)a);
}
INLINE float vf_hmax(vf a) {
    return _mm512_reduce_max_ps((__m512)a);
}
/* Bit i set where lane i of a equals that of b. */
INLINE uint32_t vf_equal(vf a, vf b) {
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ);
}
INLINE vf vf_ldexp(vf a, vf n) { /* a * 2^n, n integral */
    return (vf)_mm512_scalef_ps((__m512)a, (__m512)n);
}
#else
enum { VF_LEN = 8 };
typedef float vf __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));

INLINE vf vf_set(float x) {
    return (vf)_mm256_set1_ps(x);
}
INLINE vf vf_load(const float *p) {
    return (vf)_mm256_loadu_ps(p);
}
INLINE void vf_store(float *p, vf v) {
    _mm256_storeu_ps(p, (__m256)v);
}
INLINE vf vf_load_bf16(const uint16_t *p) {
    __m128i raw = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (vf)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
INLINE __m256i vf_mask(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf vf_load_n(const float *p, int64_t n) {
    return (vf)_mm256_maskload_ps(p, vf_mask(n));
}
INLINE void vf_store_n(float *p, vf v, int64_t n) {
    _mm256_maskstore_ps(p, vf_mask(n), (__m256)v);
}
INLINE vf vf_load_bf16_n(const uint16_t *p, int64_t n) {
    uint16_t lanes[8] = {0};
    for (int64_t i = 0; i < n; i++)
        lanes[i] = p[i];
    return vf_load_bf16(lanes);
}
INLINE __m128i vf_to_bf16(vf v) {
    vu u = (vu)v;
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, nan = (u >> 16) | 0x40u;
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q));
    __m256i r = _mm256_blendv_epi8((__m256i)rounded, (__m256i)nan, is_nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
INLINE void vf_store_bf16(uint16_t *p, vf v) {
    _mm_storeu_si128((__m128i *)(void *)p, vf_to_bf16(v));
}
INLINE void vf_store_bf16_n(uint16_t *p, vf v, int64_t n) {
    uint16_t lanes[8];
    vf_store_bf16(lanes, v);
    for (int64_t i = 0; i < n; i++)
        p[i] = lanes[i];
}
INLINE vf vf_fma(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
INLINE vf vf_sqrt(vf a) {
    return (vf)_mm256_sqrt_ps((__m256)a);
}
INLINE vf vf_max(vf a, vf b) {
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}
INLINE vf vf_min(vf a, vf b) {
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
}
INLINE vf vf_round(vf a) {
    return (vf)_mm256_round_ps((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE float vf_hsum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
INLINE float vf_hmax(vf a) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
INLINE uint32_t vf_equal(vf a, vf b) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_EQ_OQ));
}
/* Two factors, each a normal number, so that subnormal results and 2^128 come out right. */
INLINE vf vf_ldexp(vf a, vf n) {
    __m256i whole = _mm256_cvtps_epi32((__m256)n), half = _mm256_srai_epi32(whole, 1);
    __m256i rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
    __m256 f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 f2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return a * (vf)f1 * (vf)f2;
}
#endif

/* exp, about 1 ulp; 0 below -104, +inf above 88.73, NaN stays NaN (the polynomial is Cephes expf).
 */
INLINE vf vf_exp(vf x) {
    x = vf_min(vf_set(89.0f), vf_max(vf_set(-104.0f), x)); /* the order lets NaN through */
    vf n = vf_round(x * 1.44269504088896341f);
    vf r = vf_fma(n, vf_set(-0.693359375f), x);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_fma(vf_set(1.9875691500e-4f), r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(p * r, r, r) + 1.0f;
    return vf_ldexp(p, n);
}

/* a where the mask's lane is all ones, b where it is 0: a comparison's result. */
INLINE vf vf_select(vu mask, vf a, vf b) {
    return (vf)(((vu)a & mask) | ((vu)b & ~mask));
}

/* Lanes from n on become zero. */
INLINE vf vf_first(vf a, int64_t n) {
    float lanes[VF_LEN];
    vf_store(lanes, a);
    return vf_load_n(lanes, n);
}

/* Element i of an F32 or BF16 array, and a partial vector of n < VF_LEN elements. */
INLINE vf vf_get(const void *p, int64_t i, bool bf16) {
    return bf16 ? vf_load_bf16((const uint16_t *)p + i) : vf_load((const float *)p + i);
}
INLINE vf vf_get_n(const void *p, int64_t i, int64_t n, bool bf16) {
    return bf16 ? vf_load_bf16_n((const uint16_t *)p + i, n) : vf_load_n((const float *)p + i, n);
}
INLINE void vf_put(void *p, int64_t i, vf v, bool bf16) {
    if (bf16)
        vf_store_bf16((uint16_t *)p + i, v);
    else
        vf_store((float *)p + i, v);
}
INLINE void vf_put_n(void *p, int64_t i, vf v, int64_t n, bool bf16) {
    if (bf16)
        vf_store_bf16_n((uint16_t *)p + i, v, n);
    else
        vf_store_n((float *)p + i, v, n);
}

#endif
