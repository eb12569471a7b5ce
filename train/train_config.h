/* What `regroup train` is asked to do: one JSON object, one table of keys. Relative paths are
 * relative to the current directory. The key "comment" is free text and ignored. */
#ifndef REGROUP_TRAIN_TRAIN_CONFIG_H
#define REGROUP_TRAIN_TRAIN_CONFIG_H

#include "core/options.h"
#include "core/tensor.h"

struct train_config {
    const char *objective; /* distill | attention | ce | pretrain */
    const char *teacher, *student, *model_config, *tokenizer, *out; /* NULL or "": not given */
    struct string_list train, heldout;                              /* text or token files */
    bool rows;
    double heldout_fraction;
    int64_t seq_len, batch, grad_accum, steps;
    double lr, beta1, beta2, eps, weight_decay, clip; /* clip 0: none */
    bool stochastic_rounding;
    const char *schedule; /* cosine | linear | constant */
    int64_t warmup;
    double final; /* fraction of lr reached at the last step */
    double alpha, temperature;
    struct string_list trainable; /* "all", "attention", or tensor name patterns with * */
    const char *dtype;            /* f32 | bf16 | f64 */
    bool recompute;
    const char *backend;
    int64_t threads;   /* 0: the machine's */
    int64_t log_every; /* 0: by the device */
    int64_t eval_every, eval_windows, save_every;
    int64_t seed;
};

enum { TRAIN_CONFIG_OPTIONS = 48 };

struct train_config train_config_default(void);
/* Objective "attention": each layer's attention branch on its own, not the whole model. */
bool train_config_is_layerwise(const struct train_config *c);
/* The table over *c; fills options[TRAIN_CONFIG_OPTIONS] and returns how many. */
int train_config_options(struct train_config *c, struct option *options);
/* Defaults, then the object, then the assignments ("key=value"), then train_config_check. */
enum status train_config_parse(const struct json *object, const char *what,
                               const struct string_list *assignments, struct arena *arena,
                               struct train_config *out) MUST_USE;
enum status train_config_load(const char *path, const struct string_list *assignments,
                              struct arena *arena, struct train_config *out) MUST_USE;
/* What one key alone cannot tell: which paths the objective needs, and the like. */
enum status train_config_check(const struct train_config *c, const char *what) MUST_USE;
enum dtype train_config_dtype(const struct train_config *c);
/* The resolved values as JSON; the caller frees. */
struct json *train_config_to_json(const struct train_config *c);
/* Compares the keys that decide a run's numbers; true when a stored run may be continued under
 * *now. Otherwise `why` receives "key: stored -> now". */
bool train_config_same_run(const struct json *stored, const struct train_config *now, char *why,
                           int64_t n_why);

/* Learning rate of step 1..steps: linear warm-up to lr at step `warmup`, then cosine, linear or
 * constant down to final * lr at the last step. */
double train_config_lr(const struct train_config *c, int64_t step);

#endif
