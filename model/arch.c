/* The rows of the architecture table, and roles seen through a configuration. */
#include "model/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER "model.layers.%lld."
#define ATTN LAYER "self_attn."
#define LLAMA_NAMES                                                                                \
    [ROLE_EMBED] = "model.embed_tokens.weight", [ROLE_ATTN_NORM] = LAYER "input_layernorm.weight", \
    [ROLE_Q] = ATTN "q_proj.weight", [ROLE_K] = ATTN "k_proj.weight",                              \
    [ROLE_V] = ATTN "v_proj.weight", [ROLE_O] = ATTN "o_proj.weight",                              \
    [ROLE_FFN_NORM] = LAYER "post_attention_layernorm.weight",                                     \
    [ROLE_GATE] = LAYER "mlp.gate_proj.weight", [ROLE_UP] = LAYER "mlp.up_proj.weight",            \
    [ROLE_DOWN] = LAYER "mlp.down_proj.weight", [ROLE_FINAL_NORM] = "model.norm.weight",           \
    [ROLE_HEAD] = "lm_head.weight"
#define QKV_BIAS_NAMES                                                                             \
    [ROLE_Q_BIAS] = ATTN "q_proj.bias", [ROLE_K_BIAS] = ATTN "k_proj.bias",                        \
    [ROLE_V_BIAS] = ATTN "v_proj.bias"

static const struct arch archs[] = {
    {.family = "llama",
     .causal_lm = "LlamaForCausalLM",
     .names = {LLAMA_NAMES, QKV_BIAS_NAMES, [ROLE_O_BIAS] = ATTN "o_proj.bias"},
     .o_bias_follows = true,
     .max_position = 2048},
    {.family = "mistral",
     .causal_lm = "MistralForCausalLM",
     .names = {LLAMA_NAMES},
     .kv_heads_absent = 8,
     .window_absent = 4096,
     .max_position = 131072},
    {.family = "qwen2",
     .causal_lm = "Qwen2ForCausalLM",
     .names = {LLAMA_NAMES, QKV_BIAS_NAMES},
     .qkv_bias_default = true,
     .kv_heads_absent = 32,
     .window_absent = 4096,
     .window_switch = true,
     .max_position = 32768},
};
enum { ARCH_COUNT = sizeof archs / sizeof archs[0] };

static const struct {
    const char *name;
    bool in_layer, attention;
} roles[ROLE_COUNT] = {
    [ROLE_EMBED] = {"embed_tokens", false, false},
    [ROLE_ATTN_NORM] = {"input_layernorm", true, false},
    [ROLE_Q] = {"q_proj", true, true},
    [ROLE_K] = {"k_proj", true, true},
    [ROLE_V] = {"v_proj", true, true},
    [ROLE_Q_BIAS] = {"q_proj.bias", true, true},
    [ROLE_K_BIAS] = {"k_proj.bias", true, true},
    [ROLE_V_BIAS] = {"v_proj.bias", true, true},
    [ROLE_O] = {"o_proj", true, true},
    [ROLE_O_BIAS] = {"o_proj.bias", true, true},
    [ROLE_FFN_NORM] = {"post_attention_layernorm", true, false},
    [ROLE_GATE] = {"gate_proj", true, false},
    [ROLE_UP] = {"up_proj", true, false},
    [ROLE_DOWN] = {"down_proj", true, false},
    [ROLE_FINAL_NORM] = {"norm", false, false},
    [ROLE_HEAD] = {"lm_head", false, false},
};

const char *role_name(enum role r) {
    return roles[r].name;
}

bool role_in_layer(enum role r) {
    return roles[r].in_layer;
}

bool role_is_attention(enum role r) {
    return roles[r].attention;
}

const struct arch *arch_find(const char *family) {
    for (int i = 0; i < ARCH_COUNT; i++)
        if (!strcmp(archs[i].family, family))
            return &archs[i];
    return NULL;
}

const char *arch_families(void) {
    return "llama, mistral, qwen2";
}

/* A pattern is "prefix%lldsuffix" or a plain name; split it without trusting printf to. */
static const char *layer_mark(const char *pattern) {
    return strstr(pattern, "%lld");
}

void arch_tensor_name(const struct arch *a, enum role r, int64_t layer, char *out, int64_t n_out) {
    const char *pattern = a->names[r] ? a->names[r] : "";
    const char *mark = layer_mark(pattern);
    if (mark)
        snprintf(out, (size_t)n_out, "%.*s%lld%s", (int)(mark - pattern), pattern, (long long)layer,
                 mark + strlen("%lld"));
    else
        snprintf(out, (size_t)n_out, "%s", pattern);
}

bool arch_match(const struct arch *a, const char *name, enum role *role, int64_t *layer) {
    for (int r = 0; r < ROLE_COUNT; r++) {
        const char *pattern = a->names[r];
        if (!pattern)
            continue;
        const char *mark = layer_mark(pattern);
        int64_t l = -1;
        if (!mark) {
            if (strcmp(name, pattern))
                continue;
        } else {
            size_t prefix = (size_t)(mark - pattern);
            const char *p = name + prefix;
            if (strncmp(name, pattern, prefix) || *p < '0' || *p > '9')
                continue;
            size_t digits = strspn(p, "0123456789");
            if (digits > 9 || (digits > 1 && *p == '0') ||
                strcmp(p + digits, mark + strlen("%lld")))
                continue;
            l = strtoll(p, NULL, 10);
        }
        *role = (enum role)r;
        *layer = l;
        return true;
    }
    return false;
}

bool config_has_role(const struct model_config *c, enum role r) {
    switch (r) {
    case ROLE_Q_BIAS:
    case ROLE_K_BIAS:
    case ROLE_V_BIAS:
        return c->qkv_bias;
    case ROLE_O_BIAS:
        return c->o_bias;
    case ROLE_HEAD:
        return !c->tied_head;
    default:
        return true;
    }
}

int config_role_shape(const struct model_config *c, enum role r, int64_t layer, int64_t shape[2]) {
    int64_t q = c->n_head * c->head_dim;
    int64_t kv = role_in_layer(r) ? c->n_kv_head[layer] * c->head_dim : 0;
    int64_t rows = 0, cols = c->width; /* cols 0: a vector */
    switch (r) {
    case ROLE_EMBED:
    case ROLE_HEAD:
        rows = c->n_vocab;
        break;
    case ROLE_Q:
        rows = q;
        break;
    case ROLE_K:
    case ROLE_V:
        rows = kv;
        break;
    case ROLE_O:
        rows = c->width, cols = q;
        break;
    case ROLE_GATE:
    case ROLE_UP:
        rows = c->n_ff;
        break;
    case ROLE_DOWN:
        rows = c->width, cols = c->n_ff;
        break;
    case ROLE_Q_BIAS:
        rows = q, cols = 0;
        break;
    case ROLE_K_BIAS:
    case ROLE_V_BIAS:
        rows = kv, cols = 0;
        break;
    default: /* the norms and o_proj's bias */
        rows = c->width, cols = 0;
        break;
    }
    shape[0] = rows;
    shape[1] = cols ? cols : 1;
    return cols ? 2 : 1;
}
