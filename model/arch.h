/* The architecture table: which tensor name plays which role in which family. A new family is a
 * row here and a fixture. Conversion, loading and saving ask for roles, never for names. */
#ifndef REGROUP_MODEL_ARCH_H
#define REGROUP_MODEL_ARCH_H

#include "model/config.h"

/* The order is the order in the parameter buffer: what one matmul reads lies side by side
 * (Q K V; their biases; gate up). */
enum role {
    ROLE_EMBED,     /* [n_vocab, width] */
    ROLE_ATTN_NORM, /* [width] */
    ROLE_Q,         /* [n_head * head_dim, width] */
    ROLE_K,         /* [n_kv_head * head_dim, width] */
    ROLE_V,         /* [n_kv_head * head_dim, width] */
    ROLE_Q_BIAS,    /* [n_head * head_dim] */
    ROLE_K_BIAS,
    ROLE_V_BIAS,
    ROLE_O,      /* [width, n_head * head_dim] */
    ROLE_O_BIAS, /* [width] */
    ROLE_FFN_NORM,
    ROLE_GATE, /* [n_ff, width] */
    ROLE_UP,   /* [n_ff, width] */
    ROLE_DOWN, /* [width, n_ff] */
    ROLE_FINAL_NORM,
    ROLE_HEAD, /* [n_vocab, width]; absent when tied */
    ROLE_COUNT
};

const char *role_name(enum role r);  /* "k_proj": for messages and name patterns */
bool role_in_layer(enum role r);     /* one per layer, or one per model */
bool role_is_attention(enum role r); /* Q K V O and their biases */

struct arch {
    const char *family;            /* model_type */
    const char *causal_lm;         /* the class that config.json's "architectures" names */
    const char *names[ROLE_COUNT]; /* printf pattern with one %lld for the layer; NULL: has none */
    bool qkv_bias_default;         /* when config.json has no attention_bias */
    bool o_bias_follows;           /* attention_bias covers o_proj too */
    int64_t kv_heads_absent;       /* num_key_value_heads absent: this many; 0: n_head */
    int64_t window_absent;         /* sliding_window absent: this many; 0: none */
    bool window_switch;            /* the window counts only with use_sliding_window */
    int64_t max_position;          /* when config.json has no max_position_embeddings */
};
/* NULL when the family is unknown. */
const struct arch *arch_find(const char *family);
const char *arch_families(void); /* "llama, mistral, qwen2" for messages */
/* The tensor's name. */
void arch_tensor_name(const struct arch *a, enum role r, int64_t layer, char *out, int64_t n_out);
/* Is `name` one of the family's tensors? Then its role and layer (-1 outside layers). */
bool arch_match(const struct arch *a, const char *name, enum role *role, int64_t *layer);
/* Does a model of this configuration have the role (biases, tied head)? */
bool config_has_role(const struct model_config *c, enum role r);
/* Its shape; returns the rank. A vector's shape[1] is 1. */
int config_role_shape(const struct model_config *c, enum role r, int64_t layer, int64_t shape[2]);

#endif
