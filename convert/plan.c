/* What happens to each tensor, decided from the configuration and the headers alone. */
#include "convert/budget.h"
#include "convert/calibrate.h"
#include "convert/refit.h"
#include "core/file.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *merge_method_name(enum merge_method m) {
    static const char *const names[MERGE_COUNT] = {
        [MERGE_MEAN] = "mean",     [MERGE_FIRST] = "first",           [MERGE_RANDOM] = "random",
        [MERGE_REPEAT] = "repeat", [MERGE_PROCRUSTES] = "procrustes", [MERGE_FIT] = "fit",
    };
    return names[m];
}

bool merge_method_parse(const char *name, enum merge_method *out) {
    for (int m = 0; m < MERGE_COUNT; m++)
        if (!strcmp(name, merge_method_name((enum merge_method)m))) {
            *out = (enum merge_method)m;
            return true;
        }
    return false;
}

const char *refit_name(enum refit r) {
    static const char *const names[REFIT_COUNT] = {"none", "o", "qo", "qkvo"};
    return names[r];
}

bool refit_parse(const char *name, enum refit *out) {
    for (int r = 0; r < REFIT_COUNT; r++)
        if (!strcmp(name, refit_name((enum refit)r))) {
            *out = (enum refit)r;
            return true;
        }
    return false;
}

const char *convert_target_name(enum convert_target t) {
    static const char *const names[TARGET_COUNT] = {"regroup", "transformers", "vllm", "llama.cpp"};
    return names[t];
}

bool convert_target_parse(const char *name, enum convert_target *out) {
    for (int t = 0; t < TARGET_COUNT; t++)
        if (!strcmp(name, convert_target_name((enum convert_target)t))) {
            *out = (enum convert_target)t;
            return true;
        }
    return false;
}

/* What a conversion that measures cannot do. */
static enum status check_fit(const struct convert_options *o) {
    if (o->kv_budget && (o->method == MERGE_REPEAT || o->method == MERGE_RANDOM))
        return status_fail(STATUS_USAGE,
                           "--method %s merges no heads whose loss a budget could weigh: use "
                           "--kv-heads",
                           merge_method_name(o->method));
    if (!convert_measures(o) && !o->kv_budget)
        return o->n_calibrate ? status_fail(STATUS_USAGE,
                                            "calibration text is given, but --method %s without a "
                                            "refit has no use for it",
                                            merge_method_name(o->method))
                              : STATUS_OK;
    if (o->method == MERGE_REPEAT || o->method == MERGE_RANDOM)
        return status_fail(STATUS_USAGE, "--method %s has nothing to group, calibrate or refit",
                           merge_method_name(o->method));
    if (o->refit != REFIT_NONE && !o->n_calibrate)
        return status_fail(
            STATUS_USAGE, "--refit %s measures on text: give --calibrate FILE, or --calibrate self",
            refit_name(o->refit));
    if (o->grouping == GROUPING_FIT && !o->n_calibrate)
        return status_fail(STATUS_USAGE,
                           "--grouping fit compares groupings on text: give --calibrate FILE, or "
                           "--calibrate self");
    return STATUS_OK;
}

/* Better now than hours later. */
static enum status check_calibration(const struct convert_options *o) {
    for (int64_t i = 0; i < o->n_calibrate; i++) {
        bool self = !strcmp(o->calibrate[i], "self");
        if (self && o->n_calibrate > 1)
            return status_fail(STATUS_USAGE, "calibration on 'self' stands alone: without files");
        if (!self && !path_exists(o->calibrate[i]))
            return status_fail(STATUS_FAILED, "%s does not exist; it is to be calibrated on",
                               o->calibrate[i]);
    }
    return STATUS_OK;
}

/* Fewer heads in some layers and more in others is two conversions. */
static enum status check_one_way(const struct convert_options *o, const struct model_config *c) {
    int64_t least = model_kv_max(c), most = least;
    for (int64_t l = 0; l < c->n_layer; l++)
        least = size_min(least, c->n_kv_head[l]);
    if (least < o->n_kv_head && o->n_kv_head < most)
        return status_fail(STATUS_FAILED,
                           "%s: its layers have %lld to %lld KV heads; to get %lld in each, first "
                           "convert with --kv-heads %lld --method repeat, then merge those",
                           o->from, (long long)least, (long long)most, (long long)o->n_kv_head,
                           (long long)c->n_head);
    return STATUS_OK;
}

/* Can n_from heads become n_to with this method? */
static enum status check_heads(const struct convert_options *o, int64_t n_head, int64_t layer,
                               int64_t n_from) {
    int64_t n_to = o->n_kv_head;
    const char *method = merge_method_name(o->method);
    if (n_to < 1 || n_to > n_head || n_head % n_to)
        return status_fail(STATUS_FAILED,
                           "%s: %lld KV heads do not divide its %lld query heads; choose a divisor "
                           "of %lld",
                           o->from, (long long)n_to, (long long)n_head, (long long)n_head);
    if (n_to > n_from && o->method != MERGE_REPEAT)
        return status_fail(STATUS_FAILED,
                           "%s: layer %lld has %lld KV heads; --method %s cannot make %lld of "
                           "them: --method repeat can",
                           o->from, (long long)layer, (long long)n_from, method, (long long)n_to);
    if (n_to < n_from && o->method == MERGE_REPEAT)
        return status_fail(STATUS_FAILED,
                           "%s: layer %lld has %lld KV heads; --method repeat only makes more, not "
                           "%lld: use mean or first",
                           o->from, (long long)layer, (long long)n_from, (long long)n_to);
    if (n_to > n_from ? n_to % n_from : n_from % n_to)
        return status_fail(STATUS_FAILED,
                           "%s: layer %lld has %lld KV heads, which cannot be regrouped into %lld; "
                           "choose a %s of %lld",
                           o->from, (long long)layer, (long long)n_from, (long long)n_to,
                           n_to > n_from ? "multiple" : "divisor", (long long)n_from);
    return STATUS_OK;
}

static bool is_kv(enum role r) {
    return r == ROLE_K || r == ROLE_V || r == ROLE_K_BIAS || r == ROLE_V_BIAS;
}

/* A layer is fitted when its heads become fewer; with a refit also when another layer's do, whose
 * errors it can make good. */
static bool layer_is_fitted(const struct convert_plan *p, int64_t layer) {
    const int32_t *from = p->folder->config.n_kv_head, *to = p->config.n_kv_head;
    if (!convert_measures(&p->options))
        return false;
    for (int64_t l = 0; l < p->config.n_layer; l++)
        if (from[l] > to[l] && (l == layer || p->options.refit != REFIT_NONE))
            return true;
    return false;
}

/* A tensor that the family does not have may be copied, unless it stands between what is merged and
 * what attention sees. */
static enum status check_stranger(const struct convert_plan *p, const struct checkpoint_tensor *t) {
    static const char *const norms[] = {"q_norm", "k_norm", "q_layernorm", "k_layernorm"};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (p->options.method != MERGE_REPEAT && strstr(t->name, norms[i]))
            return status_fail(
                STATUS_FAILED,
                "%s: tensor %s normalises queries or keys, which '%s' models do not; "
                "merging heads under such a norm is not supported",
                t->path, t->name, p->config.family);
    return STATUS_OK;
}

static enum status plan_item(const struct convert_plan *p, const struct checkpoint_tensor *t,
                             struct convert_item *item) {
    *item = (struct convert_item){.from = t,
                                  .to = {.name = t->name, .dtype = t->dtype, .rank = t->rank},
                                  .role = ROLE_COUNT,
                                  .layer = -1,
                                  .n_in = 1,
                                  .n_out = 1};
    memcpy(item->to.shape, t->shape, sizeof item->to.shape);
    if (arch_match(p->folder->arch, t->name, &item->role, &item->layer)) {
        if (p->options.dtype != DTYPE_COUNT && dtype_is_float(t->dtype))
            item->to.dtype = p->options.dtype;
        if (is_kv(item->role)) {
            int64_t from = p->folder->config.n_kv_head[item->layer];
            int64_t to = p->config.n_kv_head[item->layer];
            if (from != to) {
                item->n_in = from;
                item->n_out = to;
            }
            item->redraw = p->options.method == MERGE_RANDOM;
            item->to.shape[0] = to * p->config.head_dim;
        }
        item->fitted = role_is_attention(item->role) && layer_is_fitted(p, item->layer);
    } else {
        item->role = ROLE_COUNT;
        TRY(check_stranger(p, t));
    }
    item->to_bytes = dtype_size(item->to.dtype);
    for (int d = 0; d < item->to.rank; d++)
        if (!size_mul(item->to_bytes, item->to.shape[d], &item->to_bytes))
            return status_fail(STATUS_FAILED, "%s: tensor %s: the result is too large", t->path,
                               t->name);
    return STATUS_OK;
}

/* Heads that the budget allows in all layers together; every layer keeps one. */
static enum status budget_heads(const struct convert_plan *p, int64_t *out) {
    const struct model_config *c = &p->folder->config;
    int64_t all = 0;
    for (int64_t l = 0; l < c->n_layer; l++)
        all += c->n_kv_head[l];
    *out = (int64_t)floor(p->options.kv_budget * (double)all * (1 + 1e-12));
    if (*out < c->n_layer)
        return status_fail(STATUS_FAILED,
                           "%s: %.4g%% of the KV cache is %lld of %lld heads, but each of %lld "
                           "layers needs one: give --kv-budget at least %.4g%%",
                           p->options.from, 100 * p->options.kv_budget, (long long)*out,
                           (long long)all, (long long)c->n_layer,
                           ceil(1e4 * (double)c->n_layer / (double)all) / 100);
    return STATUS_OK;
}

/* Every output tensor, from p->config's head counts. */
static enum status plan_items(struct convert_plan *p) {
    p->from_bytes = p->to_bytes = p->from_params = p->to_params = 0;
    for (int64_t i = 0; i < p->n_item; i++) {
        struct convert_item *item = &p->items[i];
        TRY(plan_item(p, checkpoint_at(p->folder->ck, i), item));
        p->from_bytes += item->from->n_byte;
        if (!size_add(p->to_bytes, item->to_bytes, &p->to_bytes))
            return status_fail(STATUS_FAILED, "%s: the result is too large", p->options.from);
        if (item->role == ROLE_COUNT || !config_has_role(&p->config, item->role))
            continue;
        p->from_params += item->from->n_byte / dtype_size(item->from->dtype);
        p->to_params += item->to_bytes / dtype_size(item->to.dtype);
    }
    enum dtype kv = p->folder->kv_dtype, to = p->options.dtype;
    p->kv_bytes_from = model_kv_bytes_per_token(&p->folder->config, kv);
    p->kv_bytes_to = model_kv_bytes_per_token(&p->config, to == DTYPE_COUNT ? kv : to);
    return STATUS_OK;
}

enum status convert_plan_open(const struct convert_options *options, struct convert_plan **out) {
    struct convert_plan *p = NULL;
    enum status status;
    *out = NULL;
    TRY(memory_alloc(1, sizeof *p, "conversion plan", &p));
    p->options = *options;
    TRY_OUT(model_folder_open(options->from, &p->folder));
    p->config = p->folder->config;
    TRY_OUT(check_fit(options));
    TRY_OUT(check_calibration(options));
    TRY_OUT(arena_alloc(&p->arena, p->config.n_layer, (int64_t)sizeof *p->layers, &p->layers));
    if (!options->kv_budget)
        TRY_OUT(check_one_way(options, &p->config));
    for (int64_t l = 0; l < p->config.n_layer && !options->kv_budget; l++) {
        TRY_OUT(check_heads(options, p->config.n_head, l, p->config.n_kv_head[l]));
        p->config.n_kv_head[l] = (int32_t)options->n_kv_head;
    }
    if (options->dtype != DTYPE_COUNT)
        p->config.dtype = options->dtype;
    p->n_item = checkpoint_count(p->folder->ck);
    TRY_OUT(arena_alloc(&p->arena, p->n_item, (int64_t)sizeof *p->items, &p->items));
    if (options->kv_budget)
        TRY_OUT(budget_heads(p, &p->budget_heads));
    TRY_OUT(plan_items(p));
    *out = p;
    p = NULL;
out:
    convert_plan_close(p);
    return status;
}

/* Layers of different widths: what cannot load them, and the nearest that everything loads. */
static enum status check_target(const struct convert_plan *p) {
    static const char *const reasons[TARGET_COUNT] = {
        [TARGET_TRANSFORMERS] = "builds every layer of this family with one num_key_value_heads",
        [TARGET_VLLM] = "builds every layer of this family, and its cache, with one "
                        "num_key_value_heads",
        [TARGET_LLAMA_CPP] = "loads this family's layers with the KV heads of the first",
    };
    enum convert_target target = p->options.target;
    int64_t n = p->config.n_layer, heads = budget_uniform(p->budget, n, p->budget_heads);
    char nearest[160] = "no uniform count is within the budget";
    if (model_kv_uniform(&p->config))
        return STATUS_OK;
    if (heads)
        snprintf(nearest, sizeof nearest,
                 "the nearest uniform one is --kv-heads %lld (predicted loss %.4g against %.4g)",
                 (long long)heads, budget_loss_uniform(p->budget, n, heads),
                 budget_loss(p->budget, n));
    if (target != TARGET_REGROUP)
        return status_fail(STATUS_FAILED,
                           "%s: the budget's best choice gives its layers different numbers of KV "
                           "heads, but %s %s; %s",
                           p->options.from, convert_target_name(target), reasons[target], nearest);
    log_warn("%s: layers with different numbers of KV heads: regroup alone can load the result; %s",
             p->options.from, nearest);
    return STATUS_OK;
}

enum status convert_choose(struct convert_plan *p) {
    if (!p->options.kv_budget || p->budget)
        return STATUS_OK;
    TRY(budget_candidates(p));
    TRY(refit_losses(p));
    TRY(budget_choose(p->budget, p->config.n_layer, p->budget_heads));
    for (int64_t l = 0; l < p->config.n_layer; l++)
        p->config.n_kv_head[l] = (int32_t)p->budget[l].candidates[p->budget[l].chosen].n_kv;
    TRY(plan_items(p));
    return check_target(p);
}

void convert_plan_close(struct convert_plan *p) {
    if (!p)
        return;
    if (p->calibration)
        calibration_close(p->calibration);
    memory_free(p->calibration);
    model_folder_close(p->folder);
    arena_free(&p->arena);
    memory_free(p);
}

static void set_pair(struct json *o, const char *key, int64_t from, int64_t to) {
    struct json *pair = json_set_object(o, key);
    json_set_int(pair, "from", from);
    json_set_int(pair, "to", to);
}

static void set_shape(struct json *o, const char *key, int rank, const int64_t *shape) {
    struct json *list = json_set_array(o, key);
    for (int d = 0; d < rank; d++)
        json_push_number(list, (double)shape[d]);
}

struct json *convert_to_json(const struct convert_plan *p) {
    const struct convert_options *o = &p->options;
    struct json *j = json_object();
    json_set_string(j, "from", o->from);
    json_set_string(j, "to", o->to);
    json_set_string(j, "family", p->config.family);
    json_set_string(j, "method", merge_method_name(o->method));
    json_set_int(j, "n_head", p->config.n_head);
    heads_to_json(p, j);
    budget_to_json(p, j);
    set_pair(j, "parameters", p->from_params, p->to_params);
    set_pair(j, "bytes", p->from_bytes, p->to_bytes);
    set_pair(j, "kv_bytes_per_token", p->kv_bytes_from, p->kv_bytes_to);
    json_set_bool(j, "lm_head_differs_from_tied_embedding", p->head_differs);
    struct json *list = json_set_array(j, "tensors");
    for (int64_t i = 0; i < p->n_item; i++) {
        const struct convert_item *item = &p->items[i];
        struct json *e = json_push_object(list);
        json_set_string(e, "name", item->to.name);
        json_set_string(e, "role", item->role == ROLE_COUNT ? NULL : role_name(item->role));
        json_set_string(e, "dtype_from", dtype_name(item->from->dtype));
        json_set_string(e, "dtype_to", dtype_name(item->to.dtype));
        set_shape(e, "shape_from", item->from->rank, item->from->shape);
        set_shape(e, "shape_to", item->to.rank, item->to.shape);
        set_pair(e, "bytes", item->from->n_byte, item->to_bytes);
        json_set_int(e, "nan", item->found.n_nan);
        json_set_int(e, "inf", item->found.n_inf);
        json_set_int(e, "overflow", item->n_overflow);
    }
    return j;
}
