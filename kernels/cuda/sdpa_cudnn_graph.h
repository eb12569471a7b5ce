/* Causal attention for MHA, GQA and MQA as cuDNN operation graphs, and the choice of an engine for
 * one. Needs no CUDA runtime and, given a device description, no device: tests/cuda/ asks cuDNN's
 * own support checks about exactly the graphs that sdpa_cudnn.c runs, and computes them on the
 * host. */
#ifndef REGROUP_KERNELS_CUDA_SDPA_CUDNN_GRAPH_H
#define REGROUP_KERNELS_CUDA_SDPA_CUDNN_GRAPH_H

#include "core/status.h"

#include <cudnn_graph.h>
#include <stdbool.h>
#include <stdint.h>

/* The functions of cuDNN that we call; one table per process. */
struct cudnn_api {
    size_t (*version)(void);
    void (*last_error)(char *message, size_t max_size);
    cudnnStatus_t (*create)(cudnnHandle_t *);
    cudnnStatus_t (*destroy)(cudnnHandle_t);
    cudnnStatus_t (*set_stream)(cudnnHandle_t, cudaStream_t);
    cudnnStatus_t (*descriptor_create)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *);
    cudnnStatus_t (*descriptor_destroy)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*set)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                         cudnnBackendAttributeType_t, int64_t count, const void *);
    cudnnStatus_t (*get)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                         cudnnBackendAttributeType_t, int64_t asked, int64_t *count, void *);
    cudnnStatus_t (*execute)(cudnnHandle_t, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t variant_pack);
};
/* The table, loaded at the first call; fails (every time) where the library is missing or older
 * than SDPA_CUDNN_OLDEST. */
enum { SDPA_CUDNN_OLDEST = 91600 };
enum status cudnn_api_get(const struct cudnn_api **out) MUST_USE;
/* A status of cuDNN as ours: message "cudnn: <what>: <cuDNN's words>". */
enum status cudnn_status(const struct cudnn_api *, cudnnStatus_t, const char *what) MUST_USE;

/* Tensors of the graphs: unique ids in the variant pack. */
enum sdpa_tensor {
    SDPA_Q,
    SDPA_K,
    SDPA_V,
    SDPA_O,
    SDPA_LSE,
    SDPA_D_O, /* from here on backward only */
    SDPA_D_Q,
    SDPA_D_K,
    SDPA_D_V,
    SDPA_DELTA, /* rowsum(dO * O), [n_batch, n_head, n_seq] F32: the caller's scratch */
    SDPA_TENSOR_COUNT,
    SDPA_SCALE = SDPA_TENSOR_COUNT, /* float on the host, as the two below */
    SDPA_MASKED,                    /* -infinity */
    SDPA_ONE,                       /* 1: the pattern has a dropout scale where we have none */
    SDPA_ID_COUNT
};

/* What a plan is made for and found again by: compare bytes, so start from zeros. */
struct sdpa_shape {
    int64_t n_batch, n_head, n_kv_head, n_seq, head_dim;
    int64_t stride[SDPA_TENSOR_COUNT][3]; /* batch, row, head in elements; LSE, DELTA unused */
    int64_t backward;                     /* 0 or 1 */
    int64_t keep_lse;                     /* forward: LSE is written */
};

/* Everything made for one graph, destroyed together. */
struct sdpa_graph {
    const struct cudnn_api *api;
    cudnnBackendDescriptor_t held[192], op[32], graph;
    int n_held, n_op;
    int64_t next_id;
};
/* handle NULL: for support checks against a described device only. */
enum status sdpa_graph_open(const struct cudnn_api *, cudnnHandle_t handle,
                            const struct sdpa_shape *, struct sdpa_graph *out) MUST_USE;
void sdpa_graph_close(struct sdpa_graph *);

/* The engine configurations that pass cuDNN's support checks, its favourite first, less those it
 * calls non-deterministic; fails when none is left. They belong to the graph.
 * device: a device description, or NULL for the device of the graph's handle. */
enum { SDPA_MAX_CONFIG = 16 };
struct sdpa_configs {
    cudnnBackendDescriptor_t config[SDPA_MAX_CONFIG];
    int n;
};
enum status sdpa_graph_configs(struct sdpa_graph *, cudnnBackendDescriptor_t device,
                               struct sdpa_configs *out) MUST_USE;
/* The first of them that the device takes, ready to execute. It belongs to the graph. */
enum status sdpa_graph_plan(struct sdpa_graph *, cudnnHandle_t, cudnnBackendDescriptor_t *out,
                            int64_t *workspace_bytes) MUST_USE;
/* Enqueues a plan on the handle's stream: n tensors by id, at their addresses (those by value are
 * host floats, read before this returns). */
enum status sdpa_graph_execute(const struct cudnn_api *, cudnnHandle_t,
                               cudnnBackendDescriptor_t plan, const int64_t *id, void *const *at,
                               int64_t n, void *workspace) MUST_USE;

#endif
