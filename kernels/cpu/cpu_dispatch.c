/* Which instruction set, and for each call: the fast op or the reference. */
#include "kernels/cpu/cpu_internal.h"

#include <stdlib.h>
#include <string.h>

enum status cpu_choose_isa(enum cpu_isa *out) {
    static const char *const names[] = {"ref", "avx2", "avx512"};
    *out = ISA_REF;
    /* F16C came with every AVX2 machine; clang's builtin does not know its name. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        *out = ISA_AVX2;
    if (*out == ISA_AVX2 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        *out = ISA_AVX512;
    const char *wanted = getenv("REGROUP_ISA");
    if (!wanted)
        return STATUS_OK;
    for (int i = ISA_REF; i <= ISA_AVX512; i++)
        if (!strcmp(wanted, names[i])) {
            if (i < (int)*out)
                *out = (enum cpu_isa)i;
            return STATUS_OK;
        }
    return status_fail(STATUS_USAGE,
                       "environment variable REGROUP_ISA is '%s'; known: ref, avx2, "
                       "avx512",
                       wanted);
}

static bool fast(enum dtype t) {
    return t == DTYPE_F32 || t == DTYPE_BF16;
}

/* cpu_OP: `condition` on the arguments `a` says whether the fast one can do it. */
#define ROUTE(op, args, condition)                                                                 \
    static enum status cpu_##op(struct backend *be, const struct args##_args *a) {                 \
        struct cpu_state *s = be->state;                                                           \
        return (condition) ? s->fast.op(be, a) : s->reference.op(be, a);                           \
    }
ROUTE(embed, embed, fast(a->out.dtype))
ROUTE(embed_bwd, embed, fast(a->out.dtype))
ROUTE(norm, norm, fast(a->out.dtype))
ROUTE(norm_bwd, norm_bwd, fast(a->x.dtype))
ROUTE(bias_bwd, bias_bwd, fast(a->dtype))
ROUTE(rope, rope, fast(a->dtype))
ROUTE(attention, attention, fast(a->dtype) && fast(a->kv_dtype))
ROUTE(attention_bwd, attention_bwd, fast(a->fwd.dtype) && a->fwd.kv_dtype == a->fwd.dtype)
ROUTE(copy_heads, copy_heads, true)
ROUTE(activation, activation, fast(a->out.dtype))
ROUTE(activation_bwd, activation_bwd, fast(a->d_out.dtype))
ROUTE(add, add, fast(a->out.dtype))
ROUTE(difference, difference, fast(a->out.dtype))
ROUTE(head_loss, head_loss,
      fast(a->hidden.dtype) && (!a->teacher_hidden.data || fast(a->teacher_hidden.dtype)))
ROUTE(adamw, adamw, fast(a->param.dtype))
ROUTE(sum_squares, sum_squares, fast(a->x.dtype))
ROUTE(cast, cast, dtype_is_float(a->x.dtype) && dtype_is_float(a->out.dtype))

void cpu_fill_fast(struct backend *be, enum cpu_isa isa) {
    struct cpu_state *s = be->state;
    struct backend *f = &s->fast;
    if (isa == ISA_REF)
        return;
    s->gemv = isa == ISA_AVX512 ? gemv_avx512 : gemv_avx2;
#define CPU_CHOOSE(op, args)                                                                       \
    f->op = isa == ISA_AVX512 ? op##_avx512 : op##_avx2;                                           \
    be->op = cpu_##op;
    BACKEND_OWN_OPS(CPU_CHOOSE)
}
