/* Between the files of the CPU backends: the reference table, the scratch memory, and the fast
 * ops that exist once per instruction set. */
#ifndef REGROUP_KERNELS_CPU_CPU_INTERNAL_H
#define REGROUP_KERNELS_CPU_CPU_INTERNAL_H

#include "kernels/backend.h"

/* "cpu-ref" and "cpu"; backend.c lists them. */
enum status cpu_ref_open(struct backend **out) MUST_USE;
enum status cpu_open(struct backend **out) MUST_USE;

/* Fill the slots with plain loops (any float dtype, double inside). */
void ref_fill_ops(struct backend *be);
void ref_fill_attention(struct backend *be);
void ref_fill_loss(struct backend *be);

/* What both CPU backends refuse, before any memory is touched. */
enum status cpu_check_matmul(const struct matmul_args *a) MUST_USE;
enum status cpu_check_embed(const char *op, const struct embed_args *a) MUST_USE;
enum status cpu_check_head_loss(const struct head_loss_args *a) MUST_USE;

/* What both take from their scalar arguments. False: the step is to change nothing. */
bool cpu_adamw_scale(const struct adamw_args *a, double *grad_scale);
double cpu_difference_scale(const struct difference_args *a);
uint16_t cpu_bf16_stochastic(float v, uint64_t seed, int64_t i);

/* Memory an op of "cpu" may use while it runs: at least `bytes`, 64-byte aligned, grown on demand
 * and then reused, so that a steady step allocates nothing. *(void **)out receives it. One region
 * per use: an op that calls another one (the loss calls matmul) must not share with it. */
enum cpu_scratch_use { SCRATCH_OP, SCRATCH_MATMUL, SCRATCH_WIDEN, SCRATCH_COUNT };
struct cpu_state { /* what backend.state points to */
    void *scratch[SCRATCH_COUNT];
    int64_t scratch_bytes[SCRATCH_COUNT];
    struct backend reference; /* the slots before they were overridden, for rarer dtypes */
    struct backend fast;      /* their replacements, for F32 and BF16 */
    /* matmul with one row in a and trans_b; NULL without SIMD. */
    enum status (*gemv)(struct backend *, const struct matmul_args *) MUST_USE;
    void *matmul; /* oneDNN's engine and cached primitives (cpu_matmul.c), NULL in cpu-ref */
    void (*matmul_close)(void *matmul);
};
void cpu_state_free(struct cpu_state *s); /* NULL is fine */
enum status cpu_scratch(struct backend *be, enum cpu_scratch_use use, int64_t bytes,
                        void *out) MUST_USE;

/* Fast ops, one copy per instruction set: F32 and BF16 only (cpu_dispatch.c sends every other
 * dtype to the reference). */
#define CPU_DECLARE(op, args)                                                                      \
    enum status op##_avx2(struct backend *, const struct args##_args *) MUST_USE;                  \
    enum status op##_avx512(struct backend *, const struct args##_args *) MUST_USE;
BACKEND_OWN_OPS(CPU_DECLARE)
CPU_DECLARE(gemv, matmul)

/* Puts the fast ops of the best instruction set that the machine has, and that the environment's
 * REGROUP_ISA (ref, avx2, avx512) allows, into the table. */
enum cpu_isa { ISA_REF, ISA_AVX2, ISA_AVX512 };
enum status cpu_choose_isa(enum cpu_isa *out) MUST_USE;
void cpu_fill_fast(struct backend *be, enum cpu_isa isa);

#endif
