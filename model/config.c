/* config.json into struct model_config: every key that changes the mathematics is read, and what
 * this program does not compute is refused by the key's name and value, never guessed. */
#include "model/config.h"

#include "core/file.h"
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Bounds far above any model, low enough that products of two stay inside int64_t. */
enum { MAX_WIDTH = 1 << 24, MAX_VOCAB = 1 << 28, MAX_HEAD = 1 << 16 };
static const int64_t MAX_POSITION = (int64_t)1 << 40;

/* What a key holds, for messages: "-3", "\"gelu\"", "1.5", "an array". */
static const char *json_text(const struct json *v, char out[96]) {
    if (!v)
        snprintf(out, 96, "nothing");
    else if (json_is_string(v))
        snprintf(out, 96, "\"%.80s\"", json_string(v));
    else if (json_is_number(v))
        snprintf(out, 96, "%.17g", json_number(v));
    else if (json_is_bool(v))
        snprintf(out, 96, json_true(v) ? "true" : "false");
    else
        snprintf(out, 96, "%s",
                 json_is_null(v)    ? "null"
                 : json_is_array(v) ? "an array"
                                    : "an object");
    return out;
}

static enum status refuse(const char *what, const char *key, const struct json *v,
                          const char *supported) {
    char found[96];
    return status_fail(STATUS_FAILED, "%s: %s is %s, which is not supported (supported: %s)", what,
                       key, json_text(v, found), supported);
}

static bool absent(const struct json *v) {
    return !v || json_is_null(v);
}

/* An integer in [min, max]. */
static enum status read_int(const struct json *v, const char *what, const char *key, int64_t min,
                            int64_t max, int64_t *out) {
    char found[96];
    if (!json_is_int(v) || json_int(v) < min || json_int(v) > max)
        return status_fail(STATUS_FAILED, "%s: %s: expected an integer from %lld to %lld, found %s",
                           what, key, (long long)min, (long long)max, json_text(v, found));
    *out = json_int(v);
    return STATUS_OK;
}

static enum status need_int(const struct json *j, const char *what, const char *key, int64_t max,
                            int64_t *out) {
    return read_int(json_get(j, key), what, key, 1, max, out);
}

static enum status opt_int(const struct json *j, const char *what, const char *key, int64_t min,
                           int64_t max, int64_t *out) {
    const struct json *v = json_get(j, key);
    return absent(v) ? STATUS_OK : read_int(v, what, key, min, max, out);
}

static enum status read_positive(const struct json *v, const char *what, const char *key,
                                 double *out) {
    char found[96];
    double x = json_number(v);
    if (!json_is_number(v) || !(x > 0) || !(x < 1e30))
        return status_fail(STATUS_FAILED, "%s: %s: expected a number greater than 0, found %s",
                           what, key, json_text(v, found));
    *out = x;
    return STATUS_OK;
}

static enum status opt_positive(const struct json *j, const char *what, const char *key,
                                double *out) {
    const struct json *v = json_get(j, key);
    return absent(v) ? STATUS_OK : read_positive(v, what, key, out);
}

/* "rope_scaling" (older) or "rope_parameters" (newer, holds rope_theta too). */
static enum status parse_rope_object(const struct json *rope, const char *what, const char *name,
                                     struct model_config *c) {
    char key[64];
    if (!json_is_object(rope))
        return refuse(what, name, rope, "an object or null");
    const struct json *type = json_get(rope, "rope_type");
    const char *spelling = absent(type) ? "type" : "rope_type";
    if (absent(type))
        type = json_get(rope, "type");
    TRY(opt_positive(rope, what, "rope_theta", &c->rope_theta));
    double partial = 1;
    TRY(opt_positive(rope, what, "partial_rotary_factor", &partial));
    if (partial != 1)
        return refuse(what, "partial_rotary_factor", json_get(rope, "partial_rotary_factor"), "1");
    for (const struct json *v = json_first(rope); v; v = json_next(v))
        if (json_is_object(v)) {
            snprintf(key, sizeof key, "%s.%.40s", name, json_key(v));
            return refuse(what, key, v, "one set of rotary parameters for all layers");
        }
    const char *text = json_string(type);
    if (absent(type)) {
        if (json_get(rope, "factor")) /* a scaling without a name would be a guess */
            return status_fail(STATUS_FAILED,
                               "%s: %s has a factor but no rope_type; expected "
                               "\"linear\", \"llama3\" or \"default\"",
                               what, name);
        return STATUS_OK;
    }
    snprintf(key, sizeof key, "%s.%s", name, spelling);
    if (!text)
        return refuse(what, key, type, "default, linear, llama3");
    if (!strcmp(text, "default"))
        return STATUS_OK;
    bool llama3 = !strcmp(text, "llama3");
    if (!llama3 && strcmp(text, "linear"))
        return refuse(what, key, type, "default, linear, llama3");
    snprintf(key, sizeof key, "%s.factor", name);
    TRY(read_positive(json_get(rope, "factor"), what, key, &c->rope_factor));
    c->rope_scaling = llama3 ? ROPE_LLAMA3 : ROPE_LINEAR;
    if (!llama3)
        return STATUS_OK;
    snprintf(key, sizeof key, "%s.low_freq_factor", name);
    TRY(read_positive(json_get(rope, "low_freq_factor"), what, key, &c->rope_low_freq));
    snprintf(key, sizeof key, "%s.high_freq_factor", name);
    TRY(read_positive(json_get(rope, "high_freq_factor"), what, key, &c->rope_high_freq));
    if (!(c->rope_low_freq < c->rope_high_freq))
        return status_fail(STATUS_FAILED,
                           "%s: %s: expected low_freq_factor below "
                           "high_freq_factor, found %g and %g",
                           what, name, c->rope_low_freq, c->rope_high_freq);
    snprintf(key, sizeof key, "%s.original_max_position_embeddings", name);
    return read_int(json_get(rope, "original_max_position_embeddings"), what, key, 1, MAX_POSITION,
                    &c->rope_original_position);
}

static enum status parse_rope(const struct json *j, const char *what, struct model_config *c) {
    c->rope_theta = 10000;
    c->rope_factor = 1;
    TRY(opt_positive(j, what, "rope_theta", &c->rope_theta));
    const struct json *newer = json_get(j, "rope_parameters"), *older = json_get(j, "rope_scaling");
    if (!absent(newer))
        TRY(parse_rope_object(newer, what, "rope_parameters", c));
    if (!absent(older) && (absent(newer) || json_len(older) > 0)) {
        struct model_config with = *c;
        TRY(parse_rope_object(older, what, "rope_scaling", &with));
        if (!absent(newer) && with.rope_scaling != c->rope_scaling)
            return status_fail(STATUS_FAILED,
                               "%s: rope_scaling and rope_parameters disagree; "
                               "remove one",
                               what);
        *c = with;
    }
    return STATUS_OK;
}

/* One window for all layers or none; a mixture is refused. */
static enum status parse_window(const struct json *j, const char *what, const struct arch *arch,
                                struct model_config *c) {
    const struct json *window = json_get(j, "sliding_window");
    c->sliding_window = arch->window_absent;
    if (window)
        c->sliding_window = 0;
    TRY(opt_int(j, what, "sliding_window", 1, MAX_POSITION, &c->sliding_window));
    bool use = !arch->window_switch;
    TRY(json_opt_bool(j, what, "use_sliding_window", &use));
    if (!use)
        c->sliding_window = 0;
    if (arch->window_switch && c->sliding_window) { /* the first max_window_layers see all */
        int64_t full = 28;
        TRY(opt_int(j, what, "max_window_layers", 0, INT32_MAX, &full));
        if (full >= c->n_layer)
            c->sliding_window = 0;
        else if (full > 0)
            return refuse(what, "max_window_layers", json_get(j, "max_window_layers"),
                          "0, or all layers: one sliding window for the whole model");
    }
    const struct json *types = json_get(j, "layer_types");
    const char *expected = c->sliding_window ? "sliding_attention" : "full_attention";
    if (!absent(types) && !json_is_array(types))
        return refuse(what, "layer_types", types, "an array of one kind of layer");
    for (const struct json *t = json_first(types); t; t = json_next(t))
        if (!json_string(t) || strcmp(json_string(t), expected))
            return refuse(what, "layer_types", t, expected);
    return STATUS_OK;
}

static enum status check_kv_heads(const char *what, const char *key, int64_t n_kv, int64_t n_head) {
    if (n_kv < 1 || n_kv > n_head || n_head % n_kv)
        return status_fail(STATUS_FAILED,
                           "%s: %s is %lld: expected a divisor of "
                           "num_attention_heads (%lld)",
                           what, key, (long long)n_kv, (long long)n_head);
    return STATUS_OK;
}

static enum status parse_kv_heads(const struct json *j, const char *what, const struct arch *arch,
                                  struct model_config *c) {
    const struct json *v = json_get(j, "num_key_value_heads");
    const char *key = "num_key_value_heads";
    int64_t n = c->n_head;
    if (!v && arch->kv_heads_absent) {
        n = arch->kv_heads_absent;
        key = "num_key_value_heads (absent, which in this family means its default)";
    }
    TRY(opt_int(j, what, key, 1, MAX_HEAD, &n));
    TRY(check_kv_heads(what, key, n, c->n_head));
    /* Some servers prefer this spelling: two that disagree would serve another model. */
    int64_t stray = n;
    TRY(opt_int(j, what, "num_kv_heads", 1, MAX_HEAD, &stray));
    if (stray != n)
        return status_fail(STATUS_FAILED,
                           "%s: num_kv_heads is %lld but num_key_value_heads is "
                           "%lld; remove the wrong one",
                           what, (long long)stray, (long long)n);
    for (int64_t l = 0; l < c->n_layer; l++)
        c->n_kv_head[l] = (int32_t)n;
    const struct json *list = json_get(j, "num_key_value_heads_per_layer");
    if (absent(list))
        return STATUS_OK;
    key = "num_key_value_heads_per_layer";
    if (!json_is_array(list) || json_len(list) != c->n_layer)
        return status_fail(STATUS_FAILED, "%s: %s: expected an array of %lld integers, one a layer",
                           what, key, (long long)c->n_layer);
    int64_t l = 0;
    for (const struct json *e = json_first(list); e; e = json_next(e), l++) {
        TRY(read_int(e, what, key, 1, MAX_HEAD, &n));
        TRY(check_kv_heads(what, key, n, c->n_head));
        c->n_kv_head[l] = (int32_t)n;
    }
    return STATUS_OK;
}

static enum status parse_token_id(const struct json *j, const char *what, const char *key,
                                  int64_t *out) {
    const struct json *v = json_get(j, key);
    *out = -1;
    if (json_is_array(v)) /* several end tokens: the first is the model's own */
        v = json_first(v);
    if (absent(v) || (json_is_int(v) && json_int(v) == -1))
        return STATUS_OK;
    return read_int(v, what, key, 0, INT32_MAX, out);
}

static enum status parse_dtype(const struct json *j, const char *what, enum dtype *out) {
    const char *keys[] = {"dtype", "torch_dtype"};
    *out = DTYPE_F32;
    for (int i = 0; i < 2; i++) {
        const struct json *v = json_get(j, keys[i]);
        if (absent(v))
            continue;
        if (!json_string(v) || !dtype_parse(json_string(v), out) || !dtype_is_float(*out))
            return refuse(what, keys[i], v, "float32, float16, bfloat16");
        return STATUS_OK;
    }
    return STATUS_OK;
}

enum status model_config_parse(const struct json *j, const char *what, struct model_config *out) {
    struct model_config c = {0};
    const char *family, *act = "silu";
    if (!json_is_object(j))
        return status_fail(STATUS_FAILED, "%s: expected a JSON object", what);
    TRY(json_need_string(j, what, "model_type", &family));
    const struct arch *arch = arch_find(family);
    if (!arch)
        return refuse(what, "model_type", json_get(j, "model_type"), arch_families());
    snprintf(c.family, sizeof c.family, "%s", arch->family);
    if (!absent(json_get(j, "quantization_config")))
        return status_fail(STATUS_FAILED,
                           "%s: quantization_config: quantised weights are not "
                           "supported; start from the unquantised model",
                           what);
    TRY(need_int(j, what, "vocab_size", MAX_VOCAB, &c.n_vocab));
    TRY(need_int(j, what, "num_hidden_layers", MODEL_MAX_LAYER, &c.n_layer));
    TRY(need_int(j, what, "hidden_size", MAX_WIDTH, &c.width));
    TRY(need_int(j, what, "num_attention_heads", MAX_HEAD, &c.n_head));
    TRY(need_int(j, what, "intermediate_size", MAX_WIDTH, &c.n_ff));
    c.max_position = arch->max_position;
    TRY(opt_int(j, what, "max_position_embeddings", 1, MAX_POSITION, &c.max_position));
    TRY(opt_int(j, what, "head_dim", 1, MAX_HEAD, &c.head_dim));
    if (!c.head_dim) {
        if (c.width % c.n_head)
            return status_fail(STATUS_FAILED,
                               "%s: head_dim is absent and hidden_size %lld is not "
                               "a multiple of num_attention_heads %lld; give head_dim",
                               what, (long long)c.width, (long long)c.n_head);
        c.head_dim = c.width / c.n_head;
    }
    if (c.head_dim % 2)
        return status_fail(STATUS_FAILED,
                           "%s: head_dim is %lld: expected an even number (rotary "
                           "embeddings turn pairs)",
                           what, (long long)c.head_dim);
    if (c.n_head * c.head_dim > MAX_WIDTH)
        return status_fail(STATUS_FAILED,
                           "%s: num_attention_heads x head_dim is %lld: expected at "
                           "most %d",
                           what, (long long)(c.n_head * c.head_dim), MAX_WIDTH);
    TRY(parse_kv_heads(j, what, arch, &c));
    TRY(json_opt_string(j, what, "hidden_act", &act));
    if (strcmp(act, "silu") && strcmp(act, "swish"))
        return refuse(what, "hidden_act", json_get(j, "hidden_act"), "silu");
    c.norm_eps = 1e-6;
    TRY(opt_positive(j, what, "rms_norm_eps", &c.norm_eps));
    double partial = 1;
    TRY(opt_positive(j, what, "partial_rotary_factor", &partial));
    if (partial != 1)
        return refuse(what, "partial_rotary_factor", json_get(j, "partial_rotary_factor"), "1");
    TRY(parse_rope(j, what, &c));
    TRY(parse_window(j, what, arch, &c));
    bool mlp_bias = false, bias = arch->qkv_bias_default;
    TRY(json_opt_bool(j, what, "mlp_bias", &mlp_bias));
    if (mlp_bias)
        return refuse(what, "mlp_bias", json_get(j, "mlp_bias"), "false");
    TRY(json_opt_bool(j, what, "attention_bias", &bias));
    if (bias && !arch->names[ROLE_Q_BIAS])
        return refuse(what, "attention_bias", json_get(j, "attention_bias"),
                      "false in this family");
    c.qkv_bias = bias;
    c.o_bias = bias && arch->o_bias_follows;
    TRY(json_opt_bool(j, what, "tie_word_embeddings", &c.tied_head));
    TRY(parse_token_id(j, what, "bos_token_id", &c.bos_id));
    TRY(parse_token_id(j, what, "eos_token_id", &c.eos_id));
    TRY(parse_dtype(j, what, &c.dtype));
    *out = c;
    return STATUS_OK;
}

enum status model_config_load(const char *dir, struct model_config *out) {
    struct arena arena = {0};
    struct json *j = NULL;
    char *path;
    enum status status;
    if (path_exists(dir) && !path_is_dir(dir)) {
        status = status_fail(STATUS_FAILED, "%s is a file; give the folder that holds it", dir);
        goto out;
    }
    TRY_OUT(path_join(&arena, dir, "config.json", &path));
    TRY_OUT(json_load(path, &j));
    TRY_OUT(model_config_parse(j, path, out));
out:
    json_free(j);
    arena_free(&arena);
    return status;
}

/* Loaders that give every layer num_key_value_heads must not take a model whose layers differ:
 * they look up the architecture by its name, and do not know this one. */
static const char OURS[] = "Regroup";

static const char *config_architecture(const struct model_config *c, char *out, size_t n) {
    const struct arch *arch = arch_find(c->family);
    snprintf(out, n, "%s%s", model_kv_uniform(c) ? "" : OURS, arch ? arch->causal_lm : c->family);
    return out;
}

static bool config_is_ours(const struct json *j) {
    const char *name = json_string(json_first(json_get(j, "architectures")));
    return name && !strncmp(name, OURS, sizeof OURS - 1);
}

struct json *model_config_to_json(const struct model_config *c) {
    const struct arch *arch = arch_find(c->family);
    char name[64];
    struct json *j = json_object();
    json_push_string(json_set_array(j, "architectures"), config_architecture(c, name, sizeof name));
    json_set_string(j, "model_type", c->family);
    json_set_int(j, "vocab_size", c->n_vocab);
    json_set_int(j, "hidden_size", c->width);
    json_set_int(j, "intermediate_size", c->n_ff);
    json_set_int(j, "num_hidden_layers", c->n_layer);
    json_set_int(j, "num_attention_heads", c->n_head);
    json_set_int(j, "num_key_value_heads", model_kv_max(c));
    if (!model_kv_uniform(c)) {
        struct json *list = json_set_array(j, "num_key_value_heads_per_layer");
        for (int64_t l = 0; l < c->n_layer; l++)
            json_push_number(list, c->n_kv_head[l]);
    }
    json_set_int(j, "head_dim", c->head_dim);
    json_set_int(j, "max_position_embeddings", c->max_position);
    json_set_number(j, "rms_norm_eps", c->norm_eps);
    json_set_number(j, "rope_theta", c->rope_theta);
    if (c->rope_scaling != ROPE_PLAIN) {
        bool llama3 = c->rope_scaling == ROPE_LLAMA3;
        struct json *rope = json_set_object(j, "rope_scaling");
        json_set_string(rope, "rope_type", llama3 ? "llama3" : "linear");
        json_set_number(rope, "factor", c->rope_factor);
        if (llama3) {
            json_set_number(rope, "low_freq_factor", c->rope_low_freq);
            json_set_number(rope, "high_freq_factor", c->rope_high_freq);
            json_set_int(rope, "original_max_position_embeddings", c->rope_original_position);
        }
    }
    json_set_string(j, "hidden_act", "silu");
    if (arch && arch->names[ROLE_Q_BIAS])
        json_set_bool(j, "attention_bias", c->qkv_bias);
    if (arch && arch->window_switch) {
        json_set_bool(j, "use_sliding_window", c->sliding_window > 0);
        json_set_int(j, "max_window_layers", c->sliding_window > 0 ? 0 : c->n_layer);
    }
    if (c->sliding_window > 0)
        json_set_int(j, "sliding_window", c->sliding_window);
    else if (arch && arch->window_absent)
        json_set_string(j, "sliding_window", NULL);
    json_set_bool(j, "tie_word_embeddings", c->tied_head);
    if (c->bos_id >= 0)
        json_set_int(j, "bos_token_id", c->bos_id);
    if (c->eos_id >= 0)
        json_set_int(j, "eos_token_id", c->eos_id);
    json_set_string(j, "torch_dtype", dtype_torch(c->dtype));
    return j;
}

static enum status text_set_int(struct text *text, const char *key, int64_t v) {
    char value[32];
    snprintf(value, sizeof value, "%lld", (long long)v);
    return json_text_set(text, key, value);
}

enum status model_config_edit(struct text *text, const struct model_config *c, enum dtype dtype) {
    struct json *j;
    struct text list = {0};
    char value[96], name[64];
    TRY(json_parse(text->data, text->n, "config.json", &j));
    bool stray = json_get(j, "num_kv_heads") != NULL;
    bool per_layer = json_get(j, "num_key_value_heads_per_layer") || !model_kv_uniform(c);
    bool renamed = config_is_ours(j) == model_kv_uniform(c);
    bool newer = json_get(j, "dtype") != NULL;
    bool older = json_get(j, "torch_dtype") != NULL;
    json_free(j);

    enum status status;
    TRY_OUT(text_set_int(text, "num_key_value_heads", model_kv_max(c)));
    if (stray)
        TRY_OUT(text_set_int(text, "num_kv_heads", model_kv_max(c)));
    if (per_layer) {
        for (int64_t l = 0; l < c->n_layer; l++)
            TRY_OUT(text_printf(&list, "%s%d", l ? ", " : "[", (int)c->n_kv_head[l]));
        TRY_OUT(text_puts(&list, "]"));
        TRY_OUT(json_text_set(text, "num_key_value_heads_per_layer", list.data));
    }
    if (renamed) {
        snprintf(value, sizeof value, "[\"%s\"]", config_architecture(c, name, sizeof name));
        TRY_OUT(json_text_set(text, "architectures", value));
    }
    TRY_OUT(text_set_int(text, "head_dim", c->head_dim));
    if (dtype != DTYPE_COUNT) {
        snprintf(value, sizeof value, "\"%s\"", dtype_torch(dtype));
        if (newer)
            TRY_OUT(json_text_set(text, "dtype", value));
        if (older || !newer)
            TRY_OUT(json_text_set(text, "torch_dtype", value));
    }
    status = STATUS_OK;
out:
    text_free(&list);
    return status;
}

bool model_kv_uniform(const struct model_config *c) {
    for (int64_t l = 1; l < c->n_layer; l++)
        if (c->n_kv_head[l] != c->n_kv_head[0])
            return false;
    return true;
}

int64_t model_kv_max(const struct model_config *c) {
    int64_t most = 0;
    for (int64_t l = 0; l < c->n_layer; l++)
        most = size_max(most, c->n_kv_head[l]);
    return most;
}

void model_kv_text(const struct model_config *c, char *out, size_t n) {
    int64_t most = model_kv_max(c), least = most;
    for (int64_t l = 0; l < c->n_layer; l++)
        least = size_min(least, c->n_kv_head[l]);
    if (least == most)
        snprintf(out, n, "%lld", (long long)most);
    else
        snprintf(out, n, "%lld-%lld", (long long)least, (long long)most);
}

int64_t model_kv_bytes_per_token(const struct model_config *c, enum dtype cache_dtype) {
    int64_t heads = 0;
    for (int64_t l = 0; l < c->n_layer; l++)
        heads += c->n_kv_head[l];
    return 2 * heads * c->head_dim * dtype_size(cache_dtype);
}

int64_t model_tensor_parallel(const struct model_config *c, int64_t *out, int64_t max) {
    int64_t n = 0;
    for (int64_t t = 1; t <= c->n_head && n < max; t++) {
        bool fits = c->n_head % t == 0;
        for (int64_t l = 0; l < c->n_layer && fits; l++)
            fits = c->n_kv_head[l] % t == 0 || t % c->n_kv_head[l] == 0;
        if (fits)
            out[n++] = t;
    }
    return n;
}

void model_rope_inv_freq(const struct model_config *c, float *out) {
    static const double two_pi = 6.283185307179586476925286766559;
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double f = pow(c->rope_theta, -2.0 * (double)i / (double)c->head_dim);
        if (c->rope_scaling == ROPE_LINEAR) {
            f /= c->rope_factor;
        } else if (c->rope_scaling == ROPE_LLAMA3) {
            /* Turns over the original context decide: slow pairs are stretched by the factor,
             * fast ones kept, those between blended. */
            double turns = (double)c->rope_original_position * f / two_pi;
            if (turns < c->rope_low_freq) {
                f /= c->rope_factor;
            } else if (turns <= c->rope_high_freq) {
                double keep = (turns - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
                f = (1 - keep) * f / c->rope_factor + keep * f;
            }
        }
        out[i] = (float)f;
    }
}
