/* Evaluations as JSON for machines and as a table for people. */
#include "eval/evaluate.h"

#include "core/file.h"
#include "eval/environment.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void set_estimate(struct json *o, const char *key, const struct estimate *e) {
    char name[64];
    json_set_number(o, key, e->mean);
    snprintf(name, sizeof name, "%s_se", key);
    json_set_number(o, name, e->se);
    snprintf(name, sizeof name, "%s_se_iid", key);
    json_set_number(o, name, e->se_iid);
}

static void set_spread(struct json *o, const char *key, const struct spread *s) {
    struct json *j = json_set_object(o, key);
    json_set_number(j, "median", s->median);
    json_set_number(j, "min", s->min);
    json_set_number(j, "max", s->max);
}

static const char *attention_name(const struct model_config *c) {
    int64_t most = model_kv_max(c);
    return most == 1 ? "MQA" : most < c->n_head || !model_kv_uniform(c) ? "GQA" : "MHA";
}

static void set_speed(struct json *a, const struct speed *s) {
    struct json *o = json_push_object(a);
    json_set_int(o, "context", s->options.context);
    json_set_int(o, "batch", s->options.n_batch);
    json_set_int(o, "decode_steps", s->options.n_decode);
    json_set_int(o, "repeats", s->options.n_repeat);
    set_spread(o, "prefill_tokens_per_s", &s->prefill);
    set_spread(o, "decode_tokens_per_s", &s->decode);
    json_set_int(o, "kv_cache_bytes", s->cache_bytes);
    json_set_number(o, "kv_cache_bytes_per_token", s->cache_bytes_per_token);
}

static void set_model(struct json *a, const struct evaluator *e, const struct evaluation *r) {
    const struct model_config *c = &r->config;
    struct json *o = json_push_object(a);
    json_set_string(o, "model", r->path);
    json_set_string(o, "family", c->family);
    json_set_string(o, "attention", attention_name(c));
    json_set_int(o, "parameters", r->n_param);
    json_set_int(o, "layers", c->n_layer);
    json_set_int(o, "heads", c->n_head);
    if (model_kv_uniform(c))
        json_set_int(o, "kv_heads", c->n_kv_head[0]);
    struct json *per_layer = json_set_array(o, "kv_heads_per_layer");
    for (int64_t l = 0; l < c->n_layer; l++)
        json_push_number(per_layer, c->n_kv_head[l]);
    json_set_int(o, "head_dim", c->head_dim);
    json_set_string(o, "file_dtype", dtype_torch(c->dtype));
    struct json *cache = json_set_object(o, "kv_cache");
    json_set_string(cache, "dtype", dtype_torch(e->options.dtype));
    json_set_int(cache, "bytes_per_token_formula", r->cache_formula);
    json_set_number(cache, "bytes_per_token_allocated", r->cache_allocated);
    if (r->has_perplexity) {
        const struct perplexity *p = &r->perplexity;
        struct json *j = json_set_object(o, "perplexity");
        json_set_number(j, "value", p->value);
        json_set_number(j, "se", p->se);
        set_estimate(j, "nll", &p->nll);
        json_set_int(j, "tokens", p->n_token);
        json_set_int(j, "windows", p->n_window);
        json_set_number(j, "seconds", p->seconds);
        if (p->has_teacher) {
            j = json_set_object(o, "divergence");
            set_estimate(j, "kl", &p->kl);
            set_estimate(j, "agreement", &p->agree);
        }
    }
    struct json *speed = json_set_array(o, "speed");
    for (int64_t i = 0; i < r->n_speed; i++)
        set_speed(speed, &r->speed[i]);
}

struct json *evaluation_json(const struct evaluator *e, const struct evaluation *models,
                             int64_t n) {
    const struct eval_options *o = &e->options;
    char now[32], hash[32];
    environment_time(now);
    snprintf(hash, sizeof hash, "%016" PRIx64, e->data.hash);
    struct json *j = json_object();
    json_set_string(j, "kind", "regroup evaluation");
    json_set_string(j, "version", REGROUP_VERSION);
    json_set_string(j, "created", now);
    json_set_string(j, "compute_dtype", dtype_torch(o->dtype));
    if (o->teacher)
        json_set_string(j, "teacher", o->teacher);
    if (e->has_data) {
        struct json *p = json_set_object(j, "protocol");
        json_set_string(p, "name", protocol_name(o->protocol));
        json_set_string(p, "rule", protocol_rule(o->protocol));
        json_set_int(p, "window", e->plan.n_seq);
        json_set_int(p, "stride", e->plan.stride);
        json_set_int(p, "bos", e->plan.bos);
        json_set_string(p, "standard_error",
                        "_se: windows as clusters; _se_iid: tokens as if independent");
        struct json *d = json_set_object(j, "data");
        json_set_string(d, "path", o->text ? o->text : o->tokens);
        json_set_string(d, "hash_fnv1a64", hash);
        json_set_int(d, "tokens", e->data.n);
        json_set_int(d, "tokens_used", e->plan.n_token);
        json_set_int(d, "tokens_counted", e->plan.n_counted);
        json_set_int(d, "windows", e->plan.n_window);
    }
    struct json *environment = environment_json(e->be);
    json_set_copy(j, "environment", environment);
    json_free(environment);
    struct json *a = json_set_array(j, "models");
    for (int64_t i = 0; i < n; i++)
        set_model(a, e, &models[i]);
    return j;
}

/* Cells of one column share a width; the first column is left-aligned, numbers are not. */
enum { MAX_COLUMN = 6 + 2 * EVAL_MAX_CONTEXT, CELL = 96 };

static void kv_heads_text(const struct model_config *c, char *out, size_t n) {
    char heads[48];
    model_kv_text(c, heads, sizeof heads);
    snprintf(out, n, "%s of %" PRId64, heads, c->n_head);
}

/* One window gives no standard error: the value then stands alone. value NULL: the heading. */
static void estimate_text(const char *heading, const double *value, double se, char out[CELL]) {
    if (!value)
        snprintf(out, CELL, "%s", heading);
    else if (isnan(se))
        snprintf(out, CELL, "%.4f", *value);
    else
        snprintf(out, CELL, "%.4f ± %.4f", *value, se);
}

static int fill_row(const struct evaluator *e, const struct evaluation *r, char (*cell)[CELL]) {
    int n = 0;
    bool head = !r;
    if (head) {
        strcpy(cell[n++], "model");
        strcpy(cell[n++], "KV heads");
        strcpy(cell[n++], "KV B/token");
    } else {
        size_t length = strlen(r->path);
        snprintf(cell[n++], CELL, "%s%s", length > 60 ? "..." : "",
                 length > 60 ? r->path + length - 57 : r->path);
        kv_heads_text(&r->config, cell[n++], CELL);
        snprintf(cell[n++], CELL, "%.0f", r->cache_allocated);
    }
    if (e->has_data) {
        estimate_text("perplexity", r ? &r->perplexity.value : NULL, r ? r->perplexity.se : 0,
                      cell[n++]);
        if (e->teacher) {
            estimate_text("KL", r ? &r->perplexity.kl.mean : NULL, r ? r->perplexity.kl.se : 0,
                          cell[n++]);
            snprintf(cell[n++], CELL, head ? "agree" : "%.2f %%",
                     head ? 0 : 100 * r->perplexity.agree.mean);
        }
    }
    for (int64_t i = 0; i < e->options.n_context; i++) {
        if (head) {
            snprintf(cell[n++], CELL, "prefill@%" PRId64, e->options.contexts[i]);
            snprintf(cell[n++], CELL, "decode@%" PRId64, e->options.contexts[i]);
        } else {
            snprintf(cell[n++], CELL, "%.0f tok/s", r->speed[i].prefill.median);
            snprintf(cell[n++], CELL, "%.0f tok/s", r->speed[i].decode.median);
        }
    }
    return n;
}

/* Columns on the screen: UTF-8 continuation bytes take none. */
static int columns(const char *s) {
    int n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

enum status evaluation_table(const struct evaluator *e, const struct evaluation *models, int64_t n,
                             struct text *out) {
    char cell[MAX_COLUMN][CELL];
    int width[MAX_COLUMN] = {0};
    for (int64_t i = -1; i < n; i++) {
        int n_cell = fill_row(e, i < 0 ? NULL : &models[i], cell);
        for (int c = 0; c < n_cell; c++)
            width[c] = columns(cell[c]) > width[c] ? columns(cell[c]) : width[c];
    }
    for (int64_t i = -1; i < n; i++) {
        int n_cell = fill_row(e, i < 0 ? NULL : &models[i], cell);
        for (int c = 0; c < n_cell; c++) {
            int pad = width[c] - columns(cell[c]);
            if (c == 0)
                TRY(text_printf(out, "%s%*s", cell[c], n_cell > 1 ? pad : 0, ""));
            else
                TRY(text_printf(out, "  %*s%s", pad, "", cell[c]));
        }
        TRY(text_puts(out, "\n"));
    }
    return STATUS_OK;
}
