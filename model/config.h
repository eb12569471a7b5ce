/* config.json <-> struct model_config: plain data for every family, nothing owned. KV heads are
 * kept per layer; head_dim is always explicit. */
#ifndef REGROUP_MODEL_CONFIG_H
#define REGROUP_MODEL_CONFIG_H

#include "core/json.h"
#include "core/tensor.h"

#include <stddef.h>

enum { MODEL_MAX_LAYER = 1024 };

enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

struct model_config {
    char family[32]; /* model_type: "llama" */
    int64_t n_vocab, n_layer, width, n_head, head_dim, n_ff, max_position;
    int32_t n_kv_head[MODEL_MAX_LAYER]; /* [n_layer] */
    double norm_eps, rope_theta;
    enum rope_scaling rope_scaling;
    double rope_factor, rope_low_freq, rope_high_freq; /* llama3: low/high_freq_factor */
    int64_t rope_original_position;                    /* original_max_position_embeddings */
    bool qkv_bias, o_bias, tied_head;
    int64_t sliding_window; /* 0: none */
    int64_t bos_id, eos_id; /* -1: none */
    enum dtype dtype;       /* torch_dtype; F32 when absent */
};

/* `what` names the file in messages. Unsupported families and features are refused by name, with
 * the value found (e.g. hidden_act, rope_scaling.rope_type, mlp_bias). */
enum status model_config_parse(const struct json *j, const char *what,
                               struct model_config *out) MUST_USE;
enum status model_config_load(const char *dir, struct model_config *out) MUST_USE; /* config.json */
/* A fresh config.json (for pretraining) as transformers writes it. Caller frees. */
struct json *model_config_to_json(const struct model_config *c);
/* Edit a config.json's text for new KV-head counts and dtype, every other key untouched: sets
 * num_key_value_heads, head_dim and torch_dtype (`dtype` DTYPE_COUNT: keep). When the layers differ
 * also num_key_value_heads_per_layer, and an architecture's name that no other loader knows. */
enum status model_config_edit(struct text *text, const struct model_config *c,
                              enum dtype dtype) MUST_USE;

bool model_kv_uniform(const struct model_config *c); /* same count in every layer */
int64_t model_kv_max(const struct model_config *c);
/* "4", or the least and the most when the layers differ: "1-4". */
void model_kv_text(const struct model_config *c, char *out, size_t n);
/* 2 * sum over layers of n_kv_head * head_dim * bytes per element. */
int64_t model_kv_bytes_per_token(const struct model_config *c, enum dtype cache_dtype);
/* Tensor-parallel sizes t such that n_head % t == 0 and, in every layer, n_kv % t == 0 or
 * t % n_kv == 0 (servers then copy KV heads): how many, sizes in out[], ascending, at most `max`.
 */
int64_t model_tensor_parallel(const struct model_config *c, int64_t *out, int64_t max);
/* inv_freq[head_dim / 2] with scaling applied (HF modeling_rope_utils). */
void model_rope_inv_freq(const struct model_config *c, float *out);

#endif
