/* Between the files of the CPU backends: the reference table, the scratch memory, and the fast
 * ops that exist once per instruction set. */
#ifndef REGROUP_KERNELS_CPU_CPU_INTERNAL_H
#define REGROUP_KERNELS_CPU_CPU_INTERNAL_H

#include "kernels/backend.h"

/* "cpu-ref" and "cpu"; backend.c lists them. */
enum status cpu_ref_open(struct backend **out) MUST_USE;
enum status cpu_open(struct backend **out) MUST_USE;

/* Fill the slots with plain loops (any float dtype, double inside). */
void ref_fill_memory(struct backend *be);
void ref_fill_ops(struct backend *be);
void ref_fill_attention(struct backend *be);
void ref_fill_loss(struct backend *be);

/* Memory an op of "cpu" may use while it runs: at least `bytes`, 64-byte aligned, grown on demand
 * and then reused, so that a steady step allocates nothing. One region per use: an op that calls
 * another one (the loss calls matmul) must not share with it. */
enum cpu_scratch_use { SCRATCH_OP, SCRATCH_MATMUL, SCRATCH_COUNT };
enum status cpu_scratch(struct backend *be, enum cpu_scratch_use use, int64_t bytes,
                        void **out) MUST_USE;

/* Fast ops: F32 and BF16 compute only (the dispatch sends every other dtype to the reference). */
#define CPU_FAST_OP(name, args)                                                                    \
    enum status name##_avx2(struct backend *, const struct args##_args *) MUST_USE;                \
    enum status name##_avx512(struct backend *, const struct args##_args *) MUST_USE;
CPU_FAST_OP(attention, attention)
CPU_FAST_OP(attention_bwd, attention_bwd)

#endif
