/* Between the files of the CUDA backend; valid C11 and C++17. The files are compiled against the
 * CUDA toolkit, or against the stand-in headers of tests/cuda_sim (REGROUP_CUDA_SIM).
 * All ops run on the compute stream and never wait for the device. */
#ifndef REGROUP_KERNELS_CUDA_CUDA_INTERNAL_H
#define REGROUP_KERNELS_CUDA_CUDA_INTERNAL_H

#include "kernels/backend.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory that an op may use while it runs. One region per use: an op that calls another one (the
 * loss calls matmul) must not share with it. Contents are undefined. */
enum cuda_scratch_use {
    CUDA_SCRATCH_OP,        /* small reductions of one op */
    CUDA_SCRATCH_MATMUL,    /* cuBLASLt's workspace */
    CUDA_SCRATCH_ATTENTION, /* split-k partial results, delta */
    CUDA_SCRATCH_SDPA,      /* cuDNN's workspace */
    CUDA_SCRATCH_LOSS,      /* a tile of logits */
    CUDA_SCRATCH_COUNT
};
enum { CUDA_RETIRED = 16 };

struct cuda_staging; /* pinned memory between a stream and pageable memory (cuda_memory.c) */
struct cuda_graphs;  /* instantiated graphs by key (cuda_graph.c) */

struct cuda_state { /* what backend.state points to */
    int device;
    int sm; /* compute capability: 80, 90, ... */
    int n_multiprocessor;
    int shared_limit;       /* bytes of shared memory one block may opt in to */
    cudaStream_t stream[2]; /* by enum stream_id */
    cudaEvent_t event[2];   /* of `wait`, by the stream waited for */
    struct cuda_staging *staging[2];
    struct cuda_graphs *graphs;
    void *scratch[CUDA_SCRATCH_COUNT];
    int64_t scratch_bytes[CUDA_SCRATCH_COUNT];
    void *retired[CUDA_RETIRED]; /* scratch outgrown while a graph was recorded */
    int n_retired;
    const char *attention; /* "own", "cudnn" or "auto" (cuda_attention.c) */

    /* Owned by one file each, made on first use; its close is called by backend_close if not
     * NULL. */
    void *matmul, *attention_state, *sdpa;
    void (*matmul_close)(void *);
    void (*attention_close)(void *);
    void (*sdpa_close)(void *);
};

static inline struct cuda_state *cuda_state_of(const struct backend *be) {
    return (struct cuda_state *)be->state;
}
static inline cudaStream_t cuda_stream(const struct backend *be) {
    return cuda_state_of(be)->stream[STREAM_COMPUTE];
}

/* A failed CUDA call as "cuda: WHAT: the runtime's text". */
enum status cuda_fail(const char *what, cudaError_t error) MUST_USE;
#define CUDA_TRY(call, what)                                                                       \
    do {                                                                                           \
        cudaError_t cuda_try_error_ = (call);                                                      \
        if (cuda_try_error_ != cudaSuccess)                                                        \
            return cuda_fail(what, cuda_try_error_);                                               \
    } while (0)

/* What an op returns after its launches: a refused launch as a failure that names the op. */
enum status cuda_launch_status(struct backend *be, const char *op) MUST_USE;

/* At least `bytes` of device memory, 256-byte aligned, in *(void **)out; grown on demand, then
 * reused, so that a steady step allocates nothing. */
enum status cuda_scratch(struct backend *be, enum cuda_scratch_use use, int64_t bytes,
                         void *out) MUST_USE;
/* Between graph_begin and graph_end while the work is recorded instead of run: timing events and
 * whatever waits for the device are then out of the question. */
bool cuda_capturing(const struct backend *be);

/* The ops; each fills its slot of the table. */
#define CUDA_DECLARE(op, args)                                                                     \
    enum status cuda_##op(struct backend *be, const struct args##_args *a) MUST_USE;
BACKEND_OPS(CUDA_DECLARE)
#undef CUDA_DECLARE

#ifdef __cplusplus
}
#endif

#endif
