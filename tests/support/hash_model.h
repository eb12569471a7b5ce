/* Tiny models whose weights come from an integer hash, so that C and the Python reference script
 * (tests/train/make_reference.py) build exactly the same numbers without sharing a file. */
#ifndef REGROUP_TESTS_HASH_MODEL_H
#define REGROUP_TESTS_HASH_MODEL_H

#include "model/config.h"

/* The reference architecture: llama, vocab 64, width 32, 2 layers, 4 heads of 8, n_ff 48. */
struct model_config hash_model_config(int64_t n_kv_head, bool bias, bool tied);
/* Element i of a tensor: v = k / 2^16 - 1/2 with k the hash's top 16 bits; norms 1 + v/4, biases
 * v/4, embedding and head v, projections v/2. Exact in float32. */
float hash_model_weight(uint64_t seed, const char *name, int64_t i);
/* A model folder at `dir` (created): config.json and model.safetensors in `dtype`. */
enum status hash_model_write(const char *dir, const struct model_config *config, uint64_t seed,
                             enum dtype dtype) MUST_USE;
/* Token i of the stream `seed`, in [0, n_vocab). */
int32_t hash_model_token(uint64_t seed, int64_t i, int64_t n_vocab);

#endif
