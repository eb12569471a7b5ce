/* See train_config.h. */
#include "train/train_config.h"

#include "kernels/backend.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const all_parameters[] = {"all"};
static const char *const attention_parameters[] = {"attention"};

struct train_config train_config_default(void) {
    return (struct train_config){
        .objective = "distill",
        .heldout_fraction = 0.05,
        .seq_len = 256,
        .batch = 8,
        .grad_accum = 1,
        .steps = 400,
        .lr = 1e-4,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .clip = 1,
        .schedule = "cosine",
        .warmup = 20,
        .final = 0.1,
        .alpha = 0.9,
        .temperature = 1,
        .trainable = {(const char **)all_parameters, 1},
        .dtype = "f32",
        .backend = "auto",
        .eval_every = 50,
        .eval_windows = 64,
        .save_every = 100,
        .seed = 1,
    };
}

bool train_config_is_layerwise(const struct train_config *c) {
    return !strcmp(c->objective, "attention");
}

#define ENTRY(name, kind, field, text, ...)                                                        \
    { .key = name, .type = kind, .value = &c->field, .help = text, __VA_ARGS__ }
#define TEXT(name, field, text, among) ENTRY(name, OPTION_STRING, field, text, .choices = among)
#define LIST(name, field, text) ENTRY(name, OPTION_LIST, field, text, .choices = NULL)
#define FLAG(name, field, text) ENTRY(name, OPTION_BOOL, field, text, .choices = NULL)
#define REAL(name, field, text, lo, hi)                                                            \
    ENTRY(name, OPTION_DOUBLE, field, text, .min = lo, .max = hi)
#define WHOLE(name, field, text, lo, hi) ENTRY(name, OPTION_INT, field, text, .min = lo, .max = hi)

int train_config_options(struct train_config *c, struct option *options) {
    const double big = 1e9;
    const struct option table[] = {
        TEXT("objective", objective,
             "what is minimised; attention: the error of each layer's attention, alone",
             "distill|attention|ce|pretrain"),
        TEXT("teacher", teacher, "model folder the student learns from (distill, attention)", NULL),
        TEXT("student", student, "model folder that is trained (distill, attention, ce)", NULL),
        TEXT("model_config", model_config,
             "folder with config.json, and a tokenizer, of the new model (pretrain)", NULL),
        TEXT("tokenizer", tokenizer,
             "folder or file for text data; default: the student's or model_config's", NULL),
        TEXT("out", out, "folder for the run: last/, best/, log.jsonl", NULL),
        LIST("data.train", train, "training text (.txt .jsonl .gz) or ids (.u16 .u32)"),
        LIST("data.heldout", heldout, "held-out files, of the same kinds"),
        FLAG("data.rows", rows, "each window of seq_len ids is a row of its own"),
        REAL("data.heldout_fraction", heldout_fraction,
             "without data.heldout: this last part of the training ids is held out", 0, 0.5),
        WHOLE("seq_len", seq_len, "tokens in a sequence", 2, 1 << 20),
        WHOLE("batch", batch, "sequences in a micro-batch", 1, 1 << 16),
        WHOLE("grad_accum", grad_accum, "micro-batches in a step", 1, 1 << 16),
        WHOLE("steps", steps, "optimiser steps", 1, big),
        REAL("optimizer.lr", lr, "peak learning rate", 0, 10),
        REAL("optimizer.beta1", beta1, "AdamW's first decay", 0, 0.999999),
        REAL("optimizer.beta2", beta2, "AdamW's second decay", 0, 0.999999),
        REAL("optimizer.eps", eps, "AdamW's epsilon", 1e-30, 1),
        REAL("optimizer.weight_decay", weight_decay,
             "decoupled decay of matrices (not of norms and biases)", 0, 10),
        REAL("optimizer.clip", clip, "gradient norm is clipped to this; 0: never", 0, big),
        FLAG("optimizer.stochastic_rounding", stochastic_rounding,
             "bf16 weights are rounded from their masters at random, unbiased"),
        TEXT("schedule.kind", schedule, "after the warm-up", "cosine|linear|constant"),
        WHOLE("schedule.warmup", warmup, "steps of linear warm-up", 0, big),
        REAL("schedule.final", final, "fraction of lr at the last step", 0, 1),
        REAL("distill.alpha", alpha, "loss = alpha KL + (1 - alpha) CE", 0, 1),
        REAL("distill.temperature", temperature,
             "of both distributions in KL, which is scaled by its square", 0.01, 100),
        LIST("trainable", trainable,
             "all, attention, or patterns of tensor names like *k_proj* (the rest stays); with "
             "objective attention only attention"),
        TEXT("dtype", dtype, "compute type; master weights are f32 (f64: slow, for checks)",
             "f32|bf16|f64"),
        FLAG("recompute", recompute,
             "keep only each layer's input and run it again in the backward pass"),
        TEXT("backend", backend, "where it runs", backend_names()),
        WHOLE("threads", threads, "0: the machine's", 0, 4096),
        WHOLE("log_every", log_every,
              "steps between looks at the losses; 0: 1, and 16 on a GPU, which would wait", 0,
              4096),
        WHOLE("eval_every", eval_every,
              "steps between held-out evaluations; 0: only first and last", 0, big),
        WHOLE("eval_windows", eval_windows, "held-out windows used, at most; 0: all", 0, big),
        WHOLE("save_every", save_every, "steps between checkpoints; 0: only the last", 0, big),
        WHOLE("seed", seed, "of the data order and of a new model's weights", 0,
              9007199254740992.0),
    };
    _Static_assert(sizeof table / sizeof *table <= TRAIN_CONFIG_OPTIONS, "room for the table");
    memcpy(options, table, sizeof table);
    return (int)(sizeof table / sizeof *table);
}

enum status train_config_parse(const struct json *object, const char *what,
                               const struct string_list *assignments, struct arena *arena,
                               struct train_config *out) {
    static const char *const ignored[] = {"comment", NULL};
    struct option options[TRAIN_CONFIG_OPTIONS];
    *out = train_config_default();
    int n = train_config_options(out, options);
    TRY(options_parse_json(options, n, object, what, ignored, arena));
    for (int64_t i = 0; assignments && i < assignments->n; i++)
        TRY(options_set(options, n, assignments->items[i], arena));
    if (train_config_is_layerwise(out) &&
        (const char *const *)out->trainable.items == all_parameters)
        out->trainable = (struct string_list){(const char **)attention_parameters, 1};
    return train_config_check(out, what);
}

enum status train_config_load(const char *path, const struct string_list *assignments,
                              struct arena *arena, struct train_config *out) {
    struct json *json;
    TRY(json_load(path, &json));
    enum status status = train_config_parse(json, path, assignments, arena, out);
    json_free(json);
    return status;
}

static bool given(const char *s) {
    return s && *s;
}

static enum status need(const struct train_config *c, const char *what, const char *key,
                        const char *value) {
    if (given(value))
        return STATUS_OK;
    return status_fail(STATUS_USAGE,
                       "%s: objective \"%s\" needs the key '%s'; add it or --set %s=...", what,
                       c->objective, key, key);
}

enum status train_config_check(const struct train_config *c, const char *what) {
    TRY(need(c, what, "out", c->out));
    if (!strcmp(c->objective, "pretrain")) {
        TRY(need(c, what, "model_config", c->model_config));
    } else {
        TRY(need(c, what, "student", c->student));
    }
    if (!strcmp(c->objective, "distill") || train_config_is_layerwise(c))
        TRY(need(c, what, "teacher", c->teacher));
    if (c->train.n < 1)
        return need(c, what, "data.train", NULL);
    if (c->trainable.n < 1)
        return need(c, what, "trainable", NULL);
    if (c->stochastic_rounding && strcmp(c->dtype, "bf16") != 0)
        return status_fail(STATUS_USAGE,
                           "%s: optimizer.stochastic_rounding is of bf16 weights; the dtype is %s",
                           what, c->dtype);
    if (c->warmup > c->steps)
        return status_fail(STATUS_USAGE,
                           "%s: schedule.warmup %lld is longer than the run (steps %lld)", what,
                           (long long)c->warmup, (long long)c->steps);
    return STATUS_OK;
}

enum dtype train_config_dtype(const struct train_config *c) {
    return !strcmp(c->dtype, "bf16")  ? DTYPE_BF16
           : !strcmp(c->dtype, "f64") ? DTYPE_F64
                                      : DTYPE_F32;
}

struct json *train_config_to_json(const struct train_config *c) {
    struct train_config copy = *c;
    struct option options[TRAIN_CONFIG_OPTIONS];
    int n = train_config_options(&copy, options);
    return options_to_json(options, n);
}

/* Keys that may change between a run and its continuation: where things are and how often one
 * looks. The data itself is compared by its hash. */
static const char *const free_keys[] = {"student",      "tokenizer",  "out",       "data.train",
                                        "data.heldout", "recompute",  "backend",   "threads",
                                        "eval_every",   "save_every", "log_every", NULL};

static bool is_free(const char *key, const struct train_config *now) {
    for (int i = 0; free_keys[i]; i++)
        if (!strcmp(free_keys[i], key))
            return true;
    return !strcmp(key, "steps") && !strcmp(now->schedule, "constant");
}

static const struct json *descend(const struct json *j, const char *key) {
    const char *dot = strchr(key, '.');
    if (!dot)
        return json_get(j, key);
    char head[64];
    snprintf(head, sizeof head, "%.*s", (int)(dot - key), key);
    return json_get(json_get(j, head), dot + 1);
}

bool train_config_same_run(const struct json *stored, const struct train_config *now, char *why,
                           int64_t n_why) {
    struct train_config copy = *now;
    struct option options[TRAIN_CONFIG_OPTIONS];
    int n = train_config_options(&copy, options);
    struct json *json = options_to_json(options, n);
    bool same = true;
    for (int i = 0; i < n && same; i++) {
        if (is_free(options[i].key, now))
            continue;
        struct text a = {0}, b = {0};
        const struct json *x = descend(stored, options[i].key), *y = descend(json, options[i].key);
        bool printed = (!x || json_print(x, false, &a) == STATUS_OK) &&
                       (!y || json_print(y, false, &b) == STATUS_OK);
        const char *left = a.data ? a.data : "absent", *right = b.data ? b.data : "absent";
        if (!printed || strcmp(left, right)) {
            snprintf(why, (size_t)n_why, "%s: %s -> %s", options[i].key, left, right);
            same = false;
        }
        text_free(&a);
        text_free(&b);
    }
    json_free(json);
    return same;
}

double train_config_lr(const struct train_config *c, int64_t step) {
    if (step <= c->warmup)
        return c->lr * (double)step / (double)c->warmup;
    double done = (double)(step - c->warmup) / (double)(c->steps - c->warmup);
    if (!strcmp(c->schedule, "constant"))
        return c->lr;
    if (!strcmp(c->schedule, "linear"))
        return c->lr * (1 + (c->final - 1) * done);
    return c->lr * (c->final + (1 - c->final) * 0.5 * (1 + cos(acos(-1.0) * done)));
}
