/* Reading a run folder: run.json, eval/ID.json, train/ID/log.jsonl. */
#include "core/file.h"
#include "eval/report_data.h"

#include <math.h>
#include <string.h>

static double number(const struct json *o, const char *key) {
    return json_number(json_get(o, key));
}

static struct spread spread(const struct json *o, const char *key) {
    const struct json *j = json_get(o, key);
    return (struct spread){number(j, "median"), number(j, "min"), number(j, "max")};
}

static void read_layers(const struct json *layers, struct report_point *p) {
    for (const struct json *l = json_first(layers); l; l = json_next(l)) {
        int64_t n = json_int(l);
        p->kv_heads = size_max(p->kv_heads, n);
        p->kv_least = p->kv_least ? size_min(p->kv_least, n) : n;
    }
}

static void read_model(const struct json *m, struct report_point *p) {
    const struct json *cache = json_get(m, "kv_cache"), *ppl = json_get(m, "perplexity");
    const struct json *divergence = json_get(m, "divergence");
    p->measured = true;
    p->model = m;
    p->attention = json_string(json_get(m, "attention"));
    p->heads = json_int(json_get(m, "heads"));
    p->parameters = json_int(json_get(m, "parameters"));
    if (json_get(m, "kv_heads"))
        p->kv_heads = p->kv_least = json_int(json_get(m, "kv_heads"));
    else
        read_layers(json_get(m, "kv_heads_per_layer"), p);
    p->kv_bytes = number(cache, "bytes_per_token_formula");
    p->kv_allocated = number(cache, "bytes_per_token_allocated");
    p->has_perplexity = json_is_object(ppl);
    p->perplexity = number(ppl, "value");
    p->perplexity_se = number(ppl, "se");
    p->nll = number(ppl, "nll");
    p->nll_se = number(ppl, "nll_se");
    if (isnan(p->perplexity)) /* infinity has no JSON */
        p->perplexity = exp(p->nll);
    p->has_divergence = json_is_object(divergence);
    p->kl = number(divergence, "kl");
    p->kl_se = number(divergence, "kl_se");
    p->agreement = number(divergence, "agreement");
    for (const struct json *s = json_first(json_get(m, "speed")); s; s = json_next(s)) {
        if (p->n_speed == REPORT_MAX_SPEED)
            break;
        p->speed[p->n_speed++] = (struct report_speed){.context = json_int(json_get(s, "context")),
                                                       .batch = json_int(json_get(s, "batch")),
                                                       .prefill = spread(s, "prefill_tokens_per_s"),
                                                       .decode = spread(s, "decode_tokens_per_s")};
    }
}

/* eval/NAME.json, if it is there. */
static enum status read_point(struct report *r, const char *name, const char *id,
                              enum report_kind kind, struct report_point *p) {
    char *path;
    *p = (struct report_point){.id = id, .kind = kind};
    p->kv_bytes = p->kv_allocated = NAN;
    TRY(arena_printf(&r->arena, &path, "%s/eval/%s.json", r->dir, name));
    if (!path_exists(path))
        return STATUS_OK;
    struct json *document;
    TRY(json_load(path, &document));
    r->documents[r->n_document++] = document;
    const struct json *m = json_first(json_get(document, "models"));
    if (!json_is_object(m))
        return status_fail(STATUS_FAILED,
                           "%s: expected an evaluation (an object with 'models'); write it with "
                           "'regroup eval --json'",
                           path);
    read_model(m, p);
    if (!r->protocol)
        r->protocol = json_get(document, "protocol");
    if (!r->data)
        r->data = json_get(document, "data");
    if (!r->environment)
        r->environment = json_get(document, "environment");
    if (!r->compute_dtype)
        r->compute_dtype = json_string(json_get(document, "compute_dtype"));
    return STATUS_OK;
}

/* A resumed run may log a step again: the later line wins, and what followed it is gone. */
static enum status add_sample(struct report_series *s, double x, double y) {
    while (s->n && s->x[s->n - 1] >= x)
        s->n--;
    int64_t capacity = s->capacity;
    TRY(memory_grow(&s->x, &capacity, s->n + 1, sizeof *s->x, "curve"));
    TRY(memory_grow(&s->y, &s->capacity, s->n + 1, sizeof *s->y, "curve"));
    s->x[s->n] = x;
    s->y[s->n++] = y;
    return STATUS_OK;
}

static enum status read_log_line(const struct json *j, struct report_curve *c) {
    double step = number(j, "step");
    const struct json *eval = json_get(j, "eval");
    if (isnan(step))
        return STATUS_OK;
    if (json_is_object(eval))
        return add_sample(&c->held_out, step, number(eval, "nll"));
    if (!json_get(j, "loss"))
        return STATUS_OK;
    return add_sample(&c->loss, step, number(j, "loss"));
}

static enum status read_log(struct report *r, const char *path, struct report_curve *c) {
    struct text text = {0};
    enum status status = STATUS_OK;
    if (!path_exists(path))
        return STATUS_OK;
    c->present = true;
    TRY_OUT(file_read(path, 0, &text));
    int64_t line = 1;
    for (int64_t at = 0; at < text.n; line++) {
        const char *start = text.data + at;
        const char *end = memchr(start, '\n', (size_t)(text.n - at));
        if (!end)
            break; /* the run is being written, or was killed inside its last line */
        at = end - text.data + 1;
        if (end == start)
            continue;
        char *what;
        struct json *j;
        TRY_OUT(arena_printf(&r->arena, &what, "%s line %lld", path, (long long)line));
        TRY_OUT(json_parse(start, end - start, what, &j));
        status = read_log_line(j, c);
        json_free(j);
        if (status != STATUS_OK)
            goto out;
    }
out:
    text_free(&text);
    return status;
}

static enum status read_variant(struct report *r, const struct json *j, const char *what,
                                struct report_variant *v) {
    char *name;
    v->kv_heads = 0;
    v->kv_budget = NULL;
    v->method = "";
    TRY(json_need_string(j, what, "id", &v->id));
    TRY(json_opt_int(j, what, "kv_heads", &v->kv_heads));
    TRY(json_opt_string(j, what, "kv_budget", &v->kv_budget));
    TRY(json_opt_string(j, what, "method", &v->method));
    if (!*v->id || strchr(v->id, '/') || v->id[0] == '.')
        return status_fail(STATUS_FAILED, "%s: variant id '%s' cannot be a file's name", what,
                           v->id);
    v->trains = json_is_string(json_get(j, "trained"));
    TRY(arena_printf(&r->arena, &name, "%s-converted", v->id));
    TRY(read_point(r, name, v->id, REPORT_CONVERTED, &v->converted));
    TRY(arena_printf(&r->arena, &name, "%s-distilled", v->id));
    TRY(read_point(r, name, v->id, REPORT_DISTILLED, &v->distilled));
    if (!v->converted.kv_heads)
        v->converted.kv_heads = v->kv_heads;
    if (!v->distilled.kv_heads)
        v->distilled.kv_heads = v->kv_heads;
    TRY(arena_printf(&r->arena, &name, "%s/train/%s/log.jsonl", r->dir, v->id));
    return read_log(r, name, &v->curve);
}

static enum status load_run(struct report *r, const char *path) {
    TRY(json_load(path, &r->run));
    if (!json_is_object(r->run))
        return status_fail(STATUS_FAILED, "%s: expected an object", path);
    TRY(json_opt_string(r->run, path, "name", &r->name));
    TRY(json_opt_string(r->run, path, "source", &r->source));
    TRY(json_opt_string(r->run, path, "created", &r->created));
    TRY(json_opt_string(r->run, path, "version", &r->version));
    r->config = json_get(r->run, "config");
    r->environment = json_get(r->run, "environment");
    const struct json *variants = json_get(r->run, "variants");
    if (!json_is_array(variants))
        return status_fail(STATUS_FAILED, "%s: key 'variants': expected an array", path);
    int64_t n = json_len(variants);
    TRY(arena_alloc(&r->arena, n + 1, sizeof *r->variants, &r->variants));
    TRY(arena_alloc(&r->arena, 2 * n + 1, sizeof *r->documents, &r->documents));
    TRY(read_point(r, "teacher", "teacher", REPORT_TEACHER, &r->teacher));
    for (const struct json *j = json_first(variants); j; j = json_next(j))
        TRY(read_variant(r, j, path, &r->variants[r->n_variant++]));
    return STATUS_OK;
}

/* A plain training folder: one variant that has only its curve. */
static enum status load_training(struct report *r, const char *log) {
    TRY(arena_alloc(&r->arena, 1, sizeof *r->variants, &r->variants));
    struct report_variant *v = &r->variants[0];
    v->id = r->name;
    v->method = "";
    v->converted.kv_bytes = v->distilled.kv_bytes = r->teacher.kv_bytes = NAN;
    r->n_variant = 1;
    return read_log(r, log, &v->curve);
}

enum status report_load(const char *dir, const char *title, struct report *out) {
    struct report r = {.dir = dir};
    char *run, *log, *text;
    enum status status;
    TRY_OUT(arena_strdup(&r.arena, dir, &text));
    for (size_t n = strlen(text); n > 1 && text[n - 1] == '/'; n--)
        text[n - 1] = 0;
    r.name = path_base(text);
    TRY_OUT(path_join(&r.arena, dir, "run.json", &run));
    TRY_OUT(path_join(&r.arena, dir, "log.jsonl", &log));
    if (path_exists(run)) {
        TRY_OUT(load_run(&r, run));
    } else if (path_exists(log)) {
        TRY_OUT(load_training(&r, log));
    } else {
        status = status_fail(STATUS_FAILED,
                             "%s: neither run.json nor log.jsonl is there; give the folder that "
                             "'regroup run' or 'regroup train' wrote",
                             dir);
        goto out;
    }
    r.title = title ? title : r.name;
    report_mark_pareto(&r);
    *out = r;
    return STATUS_OK;
out:
    report_free(&r);
    return status;
}

void report_free(struct report *r) {
    for (int64_t v = 0; v < r->n_variant; v++) {
        struct report_curve *c = &r->variants[v].curve;
        memory_free(c->loss.x);
        memory_free(c->loss.y);
        memory_free(c->held_out.x);
        memory_free(c->held_out.y);
    }
    for (int64_t i = 0; i < r->n_document; i++)
        json_free(r->documents[i]);
    json_free(r->run);
    arena_free(&r->arena);
    *r = (struct report){0};
}

const struct report_point *report_best(const struct report_variant *v) {
    return v->distilled.measured ? &v->distilled : &v->converted;
}
