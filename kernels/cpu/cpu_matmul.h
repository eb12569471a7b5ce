/* The matmul slot of "cpu": oneDNN, kept out of every other file. */
#ifndef REGROUP_KERNELS_CPU_CPU_MATMUL_H
#define REGROUP_KERNELS_CPU_CPU_MATMUL_H

#include "kernels/cpu/cpu_internal.h"

/* Overrides be->matmul; freed with the backend's state. Without native_bf16 the operands are
 * widened first (be->cast). */
enum status cpu_matmul_open(struct backend *be, bool native_bf16) MUST_USE;
enum status cpu_matmul(struct backend *be, const struct matmul_args *a) MUST_USE;
void cpu_matmul_version(int version[3]);

#endif
