/* Element types and the tensor view: dtype, shape, data; row-major, contiguous, owns nothing.
 * `data` may be device memory: only kernels/ dereferences it, everyone else makes views. */
#ifndef REGROUP_CORE_TENSOR_H
#define REGROUP_CORE_TENSOR_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype {
    DTYPE_F64,
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I64,
    DTYPE_I32,
    DTYPE_I16,
    DTYPE_I8,
    DTYPE_U64,
    DTYPE_U32,
    DTYPE_U16,
    DTYPE_U8,
    DTYPE_BOOL,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_COUNT
};

int64_t dtype_size(enum dtype t);      /* bytes per element */
const char *dtype_name(enum dtype t);  /* as safetensors spells it: "BF16" */
const char *dtype_torch(enum dtype t); /* as config.json spells it: "bfloat16" */
bool dtype_is_float(enum dtype t);     /* F64, F32, F16, BF16: those we can compute with */
/* Accepts "BF16", "bf16", "bfloat16", ...; false if unknown. */
bool dtype_parse(const char *name, enum dtype *out) MUST_USE;

static inline float bf16_to_f32(uint16_t v) {
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)v << 16};
    return x.f;
}
/* Round to nearest even; NaN stays NaN. */
static inline uint16_t f32_to_bf16(float v) {
    union {
        float f;
        uint32_t u;
    } x = {v};
    if ((x.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((x.u >> 16) | 0x40u);
    return (uint16_t)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}
float f16_to_f32(uint16_t v);
uint16_t f32_to_f16(float v); /* round to nearest even; overflow to infinity */

/* n elements from one float dtype to another, on the host. Returns false for a non-float dtype. */
bool dtype_convert(const void *src, enum dtype from, void *dst, enum dtype to, int64_t n);

enum { TENSOR_MAX_RANK = 8 };

struct tensor {
    enum dtype dtype;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    void *data;
};

/* Views. 1-D and 2-D are all that the model needs. */
struct tensor tensor_1d(enum dtype t, void *data, int64_t n);
struct tensor tensor_2d(enum dtype t, void *data, int64_t rows, int64_t cols);
/* The same bytes seen with another 2-D shape of equal element count (asserted). */
struct tensor tensor_reshape(struct tensor t, int64_t rows, int64_t cols);
/* Rows [first, first + n) of a 2-D tensor, elements [first, first + n) of a 1-D one (asserted). */
struct tensor tensor_rows(struct tensor t, int64_t first, int64_t n);
/* Address of element i: for strided heads inside a packed buffer. The one place where addresses
 * of device memory are computed above kernels/. */
void *tensor_at(const struct tensor *t, int64_t i);
int64_t tensor_count(const struct tensor *t); /* elements */
int64_t tensor_bytes(const struct tensor *t);
/* "[64, 32]" into `out`, always terminated; returns out. */
char *tensor_shape_text(int rank, const int64_t *shape, char *out, int64_t n_out);

#ifdef __cplusplus
}
#endif

#endif
