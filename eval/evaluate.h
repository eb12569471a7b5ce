/* Everything that is measured about one model, with one set of options, on one text: for `eval`
 * and for `run`. */
#ifndef REGROUP_EVAL_EVALUATE_H
#define REGROUP_EVAL_EVALUATE_H

#include "eval/perplexity.h"
#include "eval/speed.h"

enum { EVAL_MAX_CONTEXT = 16 };

struct eval_options {
    const char *text, *tokens; /* paths; at most one of them; neither: no perplexity */
    const char *teacher;       /* a model folder or NULL */
    enum protocol protocol;
    int64_t window, stride; /* 0: the protocol's usual, or what the model's positions allow */
    int64_t max_tokens;     /* of the data; 0: all */
    int64_t n_batch;        /* windows at a time */
    enum dtype dtype;       /* compute type: F32 or BF16 */
    int64_t contexts[EVAL_MAX_CONTEXT], n_context; /* 0: no speed */
    int64_t speed_batch, n_decode, n_repeat;
};
/* strided, window and stride 0, 8 windows at a time, F32; speed: batch 1, 32 steps, 5 repeats. */
struct eval_options eval_defaults(void);

struct evaluation {
    const char *path; /* borrowed from the caller of evaluate_model */
    struct model_config config;
    int64_t n_param;
    int64_t cache_formula;  /* bytes per token in the compute type: model_kv_bytes_per_token */
    double cache_allocated; /* kv_cache bytes / positions */
    bool has_perplexity;
    struct perplexity perplexity;
    struct speed speed[EVAL_MAX_CONTEXT];
    int64_t n_speed;
};

/* The data and the teacher, shared by the models compared. */
struct evaluator {
    struct eval_options options; /* its strings are borrowed */
    struct backend *be;          /* borrowed */
    struct model *teacher;       /* owned; NULL: none */
    bool has_data;
    struct token_data data; /* owned; ids of the first model evaluated */
    struct window_plan plan;
    int64_t n_vocab; /* of the models so far; 0: none yet */
};
enum status evaluator_open(const struct eval_options *options, struct backend *be,
                           struct evaluator *out) MUST_USE;
void evaluator_close(struct evaluator *e); /* fine on {0} */
/* Opens the model, measures, closes it. Later models must give the same ids for the text. */
enum status evaluate_model(struct evaluator *e, const char *dir, struct evaluation *out) MUST_USE;
/* Protocol, data, environment and the models: what --json and eval/<id>.json hold. Caller frees. */
struct json *evaluation_json(const struct evaluator *e, const struct evaluation *models, int64_t n);
/* Evaluate one model and write its JSON (complete or absent). */
enum status evaluate_to_file(struct evaluator *e, const char *dir, const char *json_path) MUST_USE;
/* An aligned table, appended to `out`. */
enum status evaluation_table(const struct evaluator *e, const struct evaluation *models, int64_t n,
                             struct text *out) MUST_USE;

#endif
