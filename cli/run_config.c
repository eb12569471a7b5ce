/* Convert -> evaluate -> distill -> evaluate -> report, each stage skipped when its result is
 * there. Every result is complete or absent, so being there means being done. */
#include "cli/run_config.h"

#include "cli/eval_args.h"
#include "cli/method_spec.h"
#include "cli/units.h"
#include "core/file.h"
#include "core/log.h"
#include "core/parallel.h"
#include "eval/environment.h"
#include "eval/evaluate.h"
#include "eval/report.h"
#include "train/train_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct variant {
    char *id;              /* "mean-kv2" */
    const char *method;    /* as written: "fit+o" */
    const char *kv_budget; /* "25%"; NULL: one count */
    struct convert_options convert;
    char *converted, *trained;           /* folders; trained NULL: no distillation */
    char *eval_converted, *eval_trained; /* JSON files */
};

struct run {
    const char *name, *model, *out, *backend;
    struct string_list kv_heads, kv_budget, methods;
    int64_t threads;
    struct eval_args eval;
    const struct json *train; /* the config's "train" object; NULL: convert and evaluate only */
    struct string_list train_set;
    struct string_list calibrate;
    int64_t calib_tokens, seed;
    struct json *resolved;
    struct variant *variants;
    int64_t n_variant;
    struct arena arena;
};

enum { RUN_OPTIONS = 16 + EVAL_ARGS_MAX };

static int run_options(struct run *r, struct option *o) {
    const struct option own[] = {
        {.key = "name", .type = OPTION_STRING, .value = &r->name, .help = "title of the report"},
        {.key = "model",
         .type = OPTION_STRING,
         .value = &r->model,
         .help = "model folder to convert; also the teacher"},
        {.key = "out", .type = OPTION_STRING, .value = &r->out, .help = "folder for the results"},
        {.key = "kv_heads",
         .type = OPTION_LIST,
         .value = &r->kv_heads,
         .help = "KV-head counts to make, e.g. [\"8\", \"1\"]"},
        {.key = "kv_budget",
         .type = OPTION_LIST,
         .value = &r->kv_budget,
         .help = "and shares of the KV cache, divided over the layers, e.g. [\"25%\"]"},
        {.key = "methods", .type = OPTION_LIST, .value = &r->methods, .help = METHOD_SPEC_HELP},
        {.key = "calibrate",
         .type = OPTION_LIST,
         .value = &r->calibrate,
         .help = "text or token files to fit on, or self: sampled from the model"},
        {.key = "calib_tokens",
         .type = OPTION_INT,
         .value = &r->calib_tokens,
         .help = "calibration tokens at most (0: 65536)",
         .min = 0,
         .max = 1e12},
        {.key = "seed",
         .type = OPTION_INT,
         .value = &r->seed,
         .help = "of random, grouping and sampling",
         .min = 0,
         .max = 9007199254740992.0},
        {.key = "backend",
         .type = OPTION_STRING,
         .value = &r->backend,
         .help = "what computes evaluations"},
        {.key = "threads",
         .type = OPTION_INT,
         .value = &r->threads,
         .help = "threads; 0: the machine's",
         .min = 0,
         .max = 4096},
    };
    int n = sizeof own / sizeof *own;
    memcpy(o, own, sizeof own);
    return n + eval_args_options(&r->eval, "eval.", &r->arena, o + n, RUN_OPTIONS - n);
}

/* Keys under "train." go to the training configuration, the others to the run's table. */
static enum status apply_set(struct run *r, struct option *options, int n,
                             const struct string_list *assignments) {
    TRY(arena_alloc(&r->arena, assignments->n + 4, (int64_t)sizeof *r->train_set.items,
                    &r->train_set.items));
    for (int64_t i = 0; i < assignments->n; i++) {
        const char *a = assignments->items[i];
        if (!strncmp(a, "train.", 6))
            r->train_set.items[r->train_set.n++] = a + 6;
        else
            TRY(options_set(options, n, a, &r->arena));
    }
    return STATUS_OK;
}

/* `kv`: a count, or with `share` a share of the cache. */
static enum status plan_variant(struct run *r, const char *method, const char *kv, bool share,
                                struct variant *v) {
    struct arena *a = &r->arena;
    char *end = "";
    v->method = method;
    v->convert = (struct convert_options){.from = r->model,
                                          .n_kv_head = share ? 0 : strtoll(kv, &end, 10),
                                          .dtype = DTYPE_COUNT,
                                          .seed = (uint64_t)r->seed,
                                          .calib_tokens = r->calib_tokens,
                                          .backend = r->backend};
    if (share)
        TRY(unit_parse_percent(kv, "kv_budget", &v->convert.kv_budget));
    else if (*end || v->convert.n_kv_head < 1)
        return status_fail(STATUS_USAGE, "key 'kv_heads': expected positive counts, found '%s'",
                           kv);
    v->kv_budget = share ? kv : NULL;
    TRY(method_spec_parse(method, &v->convert));
    if (v->convert.method == MERGE_FIT || v->convert.method == MERGE_PROCRUSTES ||
        v->convert.refit != REFIT_NONE) {
        v->convert.calibrate = r->calibrate.items;
        v->convert.n_calibrate = r->calibrate.n;
    }
    if (share)
        TRY(arena_printf(a, &v->id, "%s-kv%.6gpct", method, 100 * v->convert.kv_budget));
    else
        TRY(arena_printf(a, &v->id, "%s-kv%lld", method, (long long)v->convert.n_kv_head));
    TRY(arena_printf(a, &v->converted, "%s/convert/%s", r->out, v->id));
    v->convert.to = v->converted;
    TRY(arena_printf(a, &v->eval_converted, "%s/eval/%s-converted.json", r->out, v->id));
    if (!r->train)
        return STATUS_OK;
    TRY(arena_printf(a, &v->trained, "%s/train/%s", r->out, v->id));
    return arena_printf(a, &v->eval_trained, "%s/eval/%s-distilled.json", r->out, v->id);
}

static enum status plan_variants(struct run *r) {
    int64_t counts = r->kv_heads.n, n = counts + r->kv_budget.n;
    TRY(arena_alloc(&r->arena, r->methods.n * n, (int64_t)sizeof *r->variants, &r->variants));
    for (int64_t m = 0; m < r->methods.n; m++)
        for (int64_t k = 0; k < n; k++) {
            struct variant *v = &r->variants[r->n_variant];
            bool share = k >= counts;
            TRY(plan_variant(r, r->methods.items[m],
                             share ? r->kv_budget.items[k - counts] : r->kv_heads.items[k], share,
                             v));
            for (int64_t i = 0; i < r->n_variant; i++)
                if (!strcmp(r->variants[i].id, v->id))
                    return status_fail(STATUS_USAGE,
                                       "keys 'methods', 'kv_heads' and 'kv_budget' ask for %s "
                                       "twice",
                                       v->id);
            r->n_variant++;
        }
    return STATUS_OK;
}

/* The training configuration of a variant (NULL: of none, to check the section early). */
static enum status train_config_of(struct run *r, const struct variant *v, const char *what,
                                   struct train_config *out) {
    struct string_list set = r->train_set;
    static const char *const ours[] = {"teacher", "student", "out"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (json_get(r->train, ours[i]))
            return status_fail(STATUS_USAGE,
                               "%s: key 'train.%s' is set by the run itself; remove "
                               "it",
                               what, ours[i]);
    char *assignment;
    TRY(arena_alloc(&r->arena, set.n + 3, (int64_t)sizeof *set.items, &set.items));
    memcpy(set.items, r->train_set.items, (size_t)r->train_set.n * sizeof *set.items);
    TRY(arena_printf(&r->arena, &assignment, "teacher=%s", r->model));
    set.items[set.n++] = assignment;
    TRY(arena_printf(&r->arena, &assignment, "student=%s", v ? v->converted : r->model));
    set.items[set.n++] = assignment;
    TRY(arena_printf(&r->arena, &assignment, "out=%s", v ? v->trained : r->out));
    set.items[set.n++] = assignment;
    char *label;
    TRY(arena_printf(&r->arena, &label, "%s: train", what));
    return train_config_parse(r->train, label, &set, &r->arena, out);
}

/* From a configuration object, which must outlive the run. */
static enum status load(struct run *r, const struct json *config, const char *what,
                        const struct string_list *set) {
    struct option options[RUN_OPTIONS];
    int n = run_options(r, options);
    static const char *const elsewhere[] = {"train", "comment", NULL};
    TRY(options_parse_json(options, n, config, what, elsewhere, &r->arena));
    TRY(apply_set(r, options, n, set));
    r->train = json_get(config, "train");
    if (r->train && json_is_null(r->train))
        r->train = NULL;
    bool model = r->model && *r->model, out = r->out && *r->out; /* out "" would be the root */
    if (!model || !out || r->kv_heads.n + r->kv_budget.n == 0 || !r->methods.n)
        return status_fail(STATUS_USAGE, "%s: key '%s' is missing; see 'regroup run --help'", what,
                           !model          ? "model"
                           : !out          ? "out"
                           : !r->methods.n ? "methods"
                                           : "kv_heads' or 'kv_budget");
    if (!r->name)
        r->name = path_base(r->out);
    TRY(eval_args_resolve(&r->eval));
    if (!r->eval.options.text && !r->eval.options.tokens)
        return status_fail(STATUS_USAGE,
                           "%s: key 'eval.text' (or 'eval.tokens') is missing: which held-out "
                           "file measures the perplexity?",
                           what);
    TRY(plan_variants(r));
    r->resolved = options_to_json(options, n);
    if (r->train) {
        struct train_config c;
        TRY(train_config_of(r, NULL, what, &c));
        struct json *resolved = train_config_to_json(&c);
        json_set_copy(r->resolved, "train", resolved);
        json_free(resolved);
    }
    return STATUS_OK;
}

/* Where two JSON values first differ, as a dotted key; false when they are the same. */
static bool differ(const struct json *a, const struct json *b, char *key, size_t n_key) {
    struct text x = {0}, y = {0};
    bool different = !a || !b || json_print(a, false, &x) != STATUS_OK ||
                     json_print(b, false, &y) != STATUS_OK || strcmp(x.data, y.data);
    text_free(&x);
    text_free(&y);
    if (!different || !json_is_object(a) || !json_is_object(b))
        return different;
    for (const struct json *c = json_first(b); c; c = json_next(c)) {
        size_t used = strlen(key);
        snprintf(key + used, n_key - used, "%s%s", used ? "." : "", json_key(c));
        if (differ(json_get(a, json_key(c)), c, key, n_key))
            return true;
        key[used] = 0;
    }
    return true;
}

static enum status write_run_json(struct run *r, struct backend *be) {
    enum status status = STATUS_OK;
    struct json *old = NULL, *j = NULL;
    char *path, key[256] = "", now[64];
    TRY(path_join(&r->arena, r->out, "run.json", &path));
    if (path_exists(path)) {
        TRY_OUT(json_load(path, &old));
        if (differ(json_get(old, "config"), r->resolved, key, sizeof key))
            status = status_fail(STATUS_FAILED,
                                 "%s was made with another configuration (first difference: key "
                                 "'%s'); give another 'out' or remove that folder",
                                 r->out, key);
        goto out;
    }
    time_t t = time(NULL);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime(&t));
    j = json_object();
    json_set_string(j, "name", r->name);
    json_set_string(j, "source", r->model);
    json_set_string(j, "created", now);
    json_set_string(j, "version", REGROUP_VERSION);
    struct json *environment = environment_json(be);
    json_set_copy(j, "environment", environment);
    json_free(environment);
    json_set_copy(j, "config", r->resolved);
    struct json *variants = json_set_array(j, "variants");
    for (int64_t i = 0; i < r->n_variant; i++) {
        const struct variant *v = &r->variants[i];
        struct json *o = json_push_object(variants);
        json_set_string(o, "id", v->id);
        if (v->kv_budget)
            json_set_string(o, "kv_budget", v->kv_budget);
        else
            json_set_int(o, "kv_heads", v->convert.n_kv_head);
        json_set_string(o, "method", v->method);
        json_set_string(o, "converted", v->converted + strlen(r->out) + 1);
        json_set_string(o, "trained", v->trained ? v->trained + strlen(r->out) + 1 : NULL);
    }
    TRY_OUT(json_save(j, path));
out:
    json_free(old);
    json_free(j);
    return status;
}

static enum status convert_variant(const struct variant *v) {
    if (path_exists(v->converted)) {
        log_info("convert   %-12s already done", v->id);
        return leftovers_remove(v->converted); /* of a run killed while another went on */
    }
    struct convert_plan *plan;
    TRY(convert_plan_open(&v->convert, &plan));
    enum status status = convert_choose(plan);
    log_info("convert   %-12s KV cache %lld -> %lld bytes per token", v->id,
             (long long)plan->kv_bytes_from, (long long)plan->kv_bytes_to);
    if (status == STATUS_OK)
        status = convert_run(plan, false);
    convert_plan_close(plan);
    return status;
}

/* The evaluator (data and teacher) is opened when the first missing result needs it. */
static enum status evaluate(struct run *r, struct backend *be, struct evaluator *e,
                            const char *what, const char *dir, const char *file) {
    if (path_exists(file)) {
        log_info("evaluate  %-12s already done", what);
        return STATUS_OK;
    }
    if (!e->be) {
        r->eval.options.teacher = r->model;
        TRY(evaluator_open(&r->eval.options, be, e));
    }
    log_info("evaluate  %-12s %s", what, dir);
    return evaluate_to_file(e, dir, file);
}

/* What is wrong with the request is said before the folder is bound to it. */
static enum status check_request(struct run *r) {
    char *model, *run;
    const char *text = r->eval.options.text ? r->eval.options.text : r->eval.options.tokens;
    TRY(path_join(&r->arena, r->out, "config.json", &model));
    TRY(path_join(&r->arena, r->out, "run.json", &run));
    if (path_exists(model) && !path_exists(run))
        return status_fail(STATUS_FAILED, "%s holds a model; give another 'out'", r->out);
    if (!path_exists(text))
        return status_fail(STATUS_FAILED, "%s does not exist; it is to be scored", text);
    for (int64_t i = 0; i < r->n_variant; i++) {
        struct convert_plan *plan;
        if (path_exists(r->variants[i].converted))
            continue;
        TRY(convert_plan_open(&r->variants[i].convert, &plan));
        convert_plan_close(plan);
    }
    return STATUS_OK;
}

static enum status run_stages(struct run *r, struct backend *be, struct evaluator *e) {
    char *path;
    TRY(check_request(r));
    TRY(path_mkdirs(r->out));
    TRY(write_run_json(r, be));
    for (int64_t i = 0; i < r->n_variant; i++)
        TRY(convert_variant(&r->variants[i]));
    TRY(path_join(&r->arena, r->out, "eval", &path));
    TRY(path_mkdirs(path));
    TRY(path_join(&r->arena, path, "teacher.json", &path));
    TRY(evaluate(r, be, e, "teacher", r->model, path));
    for (int64_t i = 0; i < r->n_variant; i++)
        TRY(evaluate(r, be, e, r->variants[i].id, r->variants[i].converted,
                     r->variants[i].eval_converted));
    for (int64_t i = 0; r->train && i < r->n_variant; i++) {
        const struct variant *v = &r->variants[i];
        struct train_config c;
        TRY(train_config_of(r, v, r->out, &c));
        log_info("distill   %-12s %lld steps of %lld x %lld tokens", v->id, (long long)c.steps,
                 (long long)(c.batch * c.grad_accum), (long long)c.seq_len);
        struct train_result result;
        TRY(train_run(&c, TRAIN_RESUME, &result));
        char *best;
        TRY(path_join(&r->arena, v->trained, "best", &best));
        TRY(evaluate(r, be, e, v->id, best, v->eval_trained));
    }
    return report_write(r->out, NULL);
}

/* One line of the closing table from an evaluation's JSON. */
static enum status print_line(int width, const char *label, const char *stage, const char *file) {
    struct json *j;
    TRY(json_load(file, &j));
    const struct json *m = json_first(json_get(j, "models"));
    const struct json *perplexity = json_get(m, "perplexity");
    const struct json *se = json_get(perplexity, "se");
    char spread[32] = "";
    if (json_is_number(se)) /* one window gives none */
        snprintf(spread, sizeof spread, "± %.3f", json_number(se));
    printf("%-*s %-10s %10.0f %12.3f %-*s %8.4f\n", width, label, stage,
           json_number(json_get(json_get(m, "kv_cache"), "bytes_per_token_formula")),
           json_number(json_get(perplexity, "value")), *spread ? 11 : 10, spread,
           json_number(json_get(json_get(m, "divergence"), "kl")));
    json_free(j);
    return STATUS_OK;
}

static enum status print_summary(struct run *r) {
    char *path;
    int width = 12;
    for (int64_t i = 0; i < r->n_variant; i++)
        width = (int)size_max(width, (int64_t)strlen(r->variants[i].id));
    printf("%-*s %-10s %10s %12s %10s %8s\n", width, "variant", "stage", "KV B/token", "perplexity",
           "", "KL");
    TRY(path_join(&r->arena, r->out, "eval/teacher.json", &path));
    TRY(print_line(width, "teacher", "", path));
    for (int64_t i = 0; i < r->n_variant; i++) {
        const struct variant *v = &r->variants[i];
        TRY(print_line(width, v->id, "converted", v->eval_converted));
        if (v->trained)
            TRY(print_line(width, v->id, "distilled", v->eval_trained));
    }
    TRY(path_join(&r->arena, r->out, "report.html", &path));
    printf("%s\n", path);
    return STATUS_OK;
}

static struct run run_default(void) {
    static const char *const fit[] = {"fit"};
    struct run r = {.backend = "auto", .methods = {(const char **)(uintptr_t)fit, 1}, .seed = 1};
    eval_args_default(&r.eval);
    return r;
}

void run_print_keys(void) {
    struct run r = run_default();
    struct option options[RUN_OPTIONS];
    options_print_help(options, run_options(&r, options));
    arena_free(&r.arena);
}

enum status run_config(const struct json *config, const char *what, const struct string_list *set) {
    struct run r = run_default();
    struct evaluator evaluator = {0};
    struct backend *be = NULL;
    enum status status;
    double started = clock_seconds();
    TRY_OUT(load(&r, config, what, set));
    if (r.threads)
        parallel_set_threads((int)r.threads);
    TRY_OUT(backend_open(r.backend, &be));
    TRY_OUT(run_stages(&r, be, &evaluator));
    log_info("done in %.0f s", clock_seconds() - started);
    TRY_OUT(print_summary(&r));
out:
    evaluator_close(&evaluator);
    backend_close(be);
    json_free(r.resolved);
    arena_free(&r.arena);
    return status;
}
