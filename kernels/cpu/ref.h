/* The reference reads and writes any float dtype one element at a time and computes in `real`:
 * double, so that it is the oracle. Tests build the same files once more with REF_REAL float: that
 * copy's error against the oracle is the yardstick for code that computes in single precision. */
#ifndef REGROUP_KERNELS_CPU_REF_H
#define REGROUP_KERNELS_CPU_REF_H

#include "kernels/cpu/cpu_internal.h"

#ifndef REF_REAL
#define REF_REAL double
#endif
typedef REF_REAL real;

static inline real ref_get(const void *p, enum dtype t, int64_t i) {
    switch (t) {
    case DTYPE_F64:
        return (real)((const double *)p)[i];
    case DTYPE_F32:
        return (real)((const float *)p)[i];
    case DTYPE_F16:
        return (real)f16_to_f32(((const uint16_t *)p)[i]);
    default:
        return (real)bf16_to_f32(((const uint16_t *)p)[i]);
    }
}

static inline void ref_put(void *p, enum dtype t, int64_t i, real v) {
    switch (t) {
    case DTYPE_F64:
        ((double *)p)[i] = (double)v;
        break;
    case DTYPE_F32:
        ((float *)p)[i] = (float)v;
        break;
    case DTYPE_F16:
        ((uint16_t *)p)[i] = f32_to_f16((float)v);
        break;
    default:
        ((uint16_t *)p)[i] = f32_to_bf16((float)v);
    }
}

/* v as it would come back from memory. */
static inline real ref_round(enum dtype t, real v) {
    union {
        double f64;
        float f32;
        uint16_t u16;
    } cell;
    ref_put(&cell, t, 0, v);
    return ref_get(&cell, t, 0);
}

static inline real ref_at(const struct tensor *t, int64_t i) {
    return ref_get(t->data, t->dtype, i);
}

static inline void ref_set(const struct tensor *t, int64_t i, real v) {
    ref_put(t->data, t->dtype, i, v);
}

static inline void ref_accumulate(const struct tensor *t, int64_t i, real v) {
    ref_set(t, i, ref_at(t, i) + v);
}

#endif
