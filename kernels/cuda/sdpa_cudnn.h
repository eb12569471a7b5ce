/* Attention by cuDNN, for the calls it can take; cuda_attention.c chooses. Built only where CMake
 * finds cuDNN's headers (REGROUP_CUDNN). lse is the same number as everywhere in the project, so
 * forward and backward may be computed by different kernels. */
#ifndef REGROUP_KERNELS_CUDA_SDPA_CUDNN_H
#define REGROUP_KERNELS_CUDA_SDPA_CUDNN_H

#include "kernels/backend.h"

/* Whether the call below will be taken: cuDNN is there, this file takes such calls and cuDNN has
 * an engine for it. The first question about a shape compiles its plan; the answer is remembered.
 * backward: d_o, d_q, d_k, d_v are assumed to lie as o, q, k, v do. status_message() tells why
 * not. */
bool sdpa_cudnn_can(const struct backend *be, const struct attention_args *a, bool backward);

enum status sdpa_cudnn_forward(struct backend *be, const struct attention_args *a) MUST_USE;
enum status sdpa_cudnn_backward(struct backend *be, const struct attention_bwd_args *a) MUST_USE;

#endif
