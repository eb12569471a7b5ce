/* What a report shows, read from a run folder; and the text helpers its writers share. */
#ifndef REGROUP_EVAL_REPORT_DATA_H
#define REGROUP_EVAL_REPORT_DATA_H

#include "core/json.h"
#include "core/memory.h"
#include "eval/speed.h"

enum { REPORT_MAX_SPEED = 16 };

enum report_kind { REPORT_TEACHER, REPORT_CONVERTED, REPORT_DISTILLED };

struct report_speed {
    int64_t context, batch;
    struct spread prefill, decode; /* tokens/s */
};
/* One evaluated model. NaN where a number is missing or is not a number. */
struct report_point {
    const char *id, *attention; /* variant; "MHA"... */
    enum report_kind kind;
    bool measured; /* its evaluation is there */
    bool pareto;   /* no other model of the run has as few bytes and as low a perplexity */
    const struct json *model;                      /* of the evaluation */
    int64_t kv_heads, kv_least, heads, parameters; /* kv_heads: in the layer with most */
    double kv_bytes, kv_allocated;                 /* per token */
    bool has_perplexity, has_divergence;
    double perplexity, perplexity_se, nll, nll_se, kl, kl_se, agreement;
    struct report_speed speed[REPORT_MAX_SPEED];
    int64_t n_speed;
};
struct report_series {
    double *x, *y; /* steps; nats */
    int64_t n, capacity;
};
struct report_curve {
    bool present;
    struct report_series loss, held_out;
};
struct report_variant {
    const char *id, *method, *kv_budget; /* as asked: a count in every layer, or a share */
    int64_t kv_heads;                    /* 0: a share, or unknown */
    bool trains;                         /* a distilled model is expected */
    struct report_point converted, distilled;
    struct report_curve curve;
};
struct report {
    struct arena arena;
    const char *dir, *title, *name, *source, *created, *version; /* NULL when unknown */
    struct json *run; /* run.json; NULL for a plain training folder */
    const struct json *config, *environment, *protocol, *data;
    const char *compute_dtype;
    struct report_point teacher;
    struct report_variant *variants;
    int64_t n_variant;
    struct json **documents; /* parsed evaluations, owned */
    int64_t n_document;
};
enum status report_load(const char *dir, const char *title, struct report *out) MUST_USE;
void report_free(struct report *r);

/* Sets `pareto` of every measured model. */
void report_mark_pareto(struct report *r);
#define REPORT_PARETO_MARK " ★"
#define REPORT_PARETO_NOTE                                                                         \
    "★ Pareto: no other model here has fewer KV bytes without a higher perplexity."
/* The variant's best model so far: distilled when measured, else converted. */
const struct report_point *report_best(const struct report_variant *v);
/* Short texts for numbers. */
struct report_label {
    char s[64];
};
struct report_label report_number(double v);                    /* 4.716, 83.1, 1.2e+05, NaN */
struct report_label report_bytes(double n);                     /* 640 B, 16 KiB */
struct report_label report_count(double n);                     /* 260,032 */
struct report_label report_percent(double ratio);               /* 1.05 -> "+5.0 %" */
struct report_label report_factor(double ratio);                /* 4 -> "4×" */
struct report_label report_with_error(double v, double se);     /* 4.716 ± 0.031 */
struct report_label report_heads(const struct report_point *p); /* GQA, 2 of 8; GQA, 1-4 of 8 */
/* &, <, >, " and ' as entities; bytes that are not UTF-8 or not allowed in XML as U+FFFD. */
enum status report_escape(struct text *out, const char *s) MUST_USE;

enum status report_html(const struct report *r, struct text *out) MUST_USE;
enum status report_markdown(const struct report *r, struct text *out) MUST_USE;
struct json *report_json(const struct report *r); /* caller frees */

#endif
