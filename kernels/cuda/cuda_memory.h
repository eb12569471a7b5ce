/* The parts of the CUDA backend that cuda_backend.c opens and closes. */
#ifndef REGROUP_KERNELS_CUDA_CUDA_MEMORY_H
#define REGROUP_KERNELS_CUDA_CUDA_MEMORY_H

#include "kernels/cuda/cuda_internal.h"

/* cuda_memory.c: memory and streams; the scratch's regions. */
void cuda_fill_memory(struct backend *be);
enum status cuda_memory_open(struct cuda_state *s) MUST_USE;
void cuda_memory_close(struct cuda_state *s);
void cuda_free_retired(struct cuda_state *s);

/* cuda_graph.c: what lies between graph_begin and graph_end as one launch. */
enum status cuda_graph_begin(struct backend *be, int64_t key) MUST_USE;
enum status cuda_graph_end(struct backend *be) MUST_USE;
void cuda_graph_drop(struct backend *be); /* an unfinished recording, after a failure */
void cuda_graph_close(struct cuda_state *s);

/* cuda_matmul.c: cuBLASLt, loaded at run time. */
enum status cuda_matmul_load(void) MUST_USE;
enum status cuda_matmul_open(struct cuda_state *s) MUST_USE;
const char *cuda_matmul_version(const struct cuda_state *s);

#endif
