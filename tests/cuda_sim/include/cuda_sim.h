/* What a test may ask of the simulator; valid C. */
#ifndef REGROUP_CUDA_SIM_H
#define REGROUP_CUDA_SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order of blocks, threads and streams from here on; at the start REGROUP_SIM_SEED, or 1. */
void cuda_sim_seed(uint64_t seed);
/* cudaMalloc and cudaMallocHost calls so far. */
int64_t cuda_sim_malloc_count(void);
/* Device memory that there is; cudaMalloc refuses what goes beyond. */
void cuda_sim_memory_limit(size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
