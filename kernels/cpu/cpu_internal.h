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

/* Memory an op of "cpu" may use while it runs: at least `bytes`, 64-byte aligned, grown on demand
 * and then reused, so that a steady step allocates nothing. *(void **)out receives it. One region
 * per use: an op that calls another one (the loss calls matmul) must not share with it. */
enum cpu_scratch_use { SCRATCH_OP, SCRATCH_MATMUL, SCRATCH_WIDEN, SCRATCH_COUNT };
struct cpu_state { /* what backend.state points to */
    void *scratch[SCRATCH_COUNT];
    int64_t scratch_bytes[SCRATCH_COUNT];
    struct backend reference; /* the slots before they were overridden, for rarer dtypes */
    void *matmul; /* oneDNN's engine and cached primitives (cpu_matmul.c), NULL in cpu-ref */
    void (*matmul_close)(void *matmul);
};
void cpu_state_free(struct cpu_state *s); /* NULL is fine */
enum status cpu_scratch(struct backend *be, enum cpu_scratch_use use, int64_t bytes,
                        void *out) MUST_USE;

/* Fast ops: F32 and BF16 compute only (the dispatch sends every other dtype to the reference). */
#define CPU_FAST_OP(name, args)                                                                    \
    enum status name##_avx2(struct backend *, const struct args##_args *) MUST_USE;                \
    enum status name##_avx512(struct backend *, const struct args##_args *) MUST_USE;
CPU_FAST_OP(attention, attention)
CPU_FAST_OP(attention_bwd, attention_bwd)

#endif
