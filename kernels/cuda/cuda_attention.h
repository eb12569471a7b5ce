/* Between the files of the backend's own attention. Every function enqueues on the compute stream;
 * the arguments have been checked (cuda_attention.c). */
#ifndef REGROUP_KERNELS_CUDA_CUDA_ATTENTION_H
#define REGROUP_KERNELS_CUDA_CUDA_ATTENTION_H

#include "kernels/cuda/cuda_internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tensor cores, bf16: head_dim 64, 80, 96, 128 or 256, data and strides in whole 16 bytes; a GPU
 * whose blocks may have SHARED_MOST bytes of shared memory (sm_80; sm_90 has 227 KiB, but sm_86 and
 * sm_89 only 99). */
enum { SHARED_MOST = 163 * 1024 };
enum status attention_tile_forward(struct backend *be, const struct attention_args *a) MUST_USE;
enum status attention_tile_backward(struct backend *be,
                                    const struct attention_bwd_args *a) MUST_USE;
/* The same for few queries and many keys. */
enum status attention_tile_decode(struct backend *be, const struct attention_args *a) MUST_USE;

/* Anything else: F32 or BF16, any cache dtype, head_dim up to ATTENTION_PLAIN_MOST. */
enum { ATTENTION_PLAIN_MOST = 512 };
enum status attention_plain_forward(struct backend *be, const struct attention_args *a) MUST_USE;
enum status attention_plain_backward(struct backend *be,
                                     const struct attention_bwd_args *a) MUST_USE;

/* delta[b, h, i] = sum_c d_o o, [n_batch, n_head, n_query], in scratch: what the gradient of
 * softmax subtracts. */
enum status attention_delta(struct backend *be, const struct attention_bwd_args *a,
                            float **delta) MUST_USE;

/* The keys that the queries see, divided among blocks: split s has [first + s * n_key, + n_key).
 * Each leaves its part of row r = (b * n_head + h) * n_query + i: the maximum of the scaled scores
 * and the sum of exp(score - maximum) in stats [n_split, rows, 2], the sum of exp() v in
 * o [n_split, rows, head_dim]; attention_combine puts them together in order. With one split the
 * buffers are NULL and the block finishes its rows itself. */
struct attention_split {
    int n_split, first, n_key;
    float *stats, *o;
};
/* As many splits as keep the device busy when each has n_block blocks; n_key a multiple of unit. */
enum status attention_split_keys(struct backend *be, const struct attention_args *a,
                                 int64_t n_block, int unit, struct attention_split *out) MUST_USE;
enum status attention_combine(struct backend *be, const struct attention_args *a,
                              const struct attention_split *split) MUST_USE;

#ifdef __cplusplus
}
#endif

#endif
