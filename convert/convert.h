/* A checkpoint with other KV heads: plan (every output tensor known before a byte is read), merge,
 * stream, edit the configuration. Works on roles; names live in model/arch. */
#ifndef REGROUP_CONVERT_CONVERT_H
#define REGROUP_CONVERT_CONVERT_H

#include "core/json.h"
#include "model/folder.h"

enum merge_method {
    MERGE_MEAN,       /* average of a group's heads, GQA paper 2305.13245 */
    MERGE_FIRST,      /* the first head of each group */
    MERGE_RANDOM,     /* normal with the tensor's own spread: the paper's lower bound */
    MERGE_REPEAT,     /* each head copied: GQA -> more heads, exactly the same function */
    MERGE_PROCRUSTES, /* heads turned onto each other, then averaged (after 2412.20677) */
    MERGE_FIT,        /* the best shared heads in closed form: docs/methods.md */
    MERGE_COUNT
};
const char *merge_method_name(enum merge_method m);
bool merge_method_parse(const char *name, enum merge_method *out) MUST_USE;

enum refit {
    REFIT_NONE,
    REFIT_O,    /* o_proj by least squares against the source model's residual stream */
    REFIT_QO,   /* and then queries and o_proj together, so that attention adds what it should */
    REFIT_QKVO, /* and then all four */
    REFIT_COUNT
};
const char *refit_name(enum refit r);
bool refit_parse(const char *name, enum refit *out) MUST_USE;

enum grouping { GROUPING_CONTIGUOUS, GROUPING_FIT /* the groups whose fit loses least */ };

/* Who must be able to load the result. One number of KV heads in every layer loads everywhere. */
enum convert_target {
    TARGET_REGROUP,
    TARGET_TRANSFORMERS,
    TARGET_VLLM,
    TARGET_LLAMA_CPP,
    TARGET_COUNT
};
const char *convert_target_name(enum convert_target t);
bool convert_target_parse(const char *name, enum convert_target *out) MUST_USE;

enum { CALIB_TOKENS = 65536, CALIB_WINDOW = 256 }; /* at most, unless the options say otherwise */

struct convert_options {
    const char *from, *to; /* model folder, output folder; `to` may be NULL for a plan alone */
    int64_t n_kv_head;     /* in every layer; 0: as many in each as kv_budget allows it */
    double kv_budget;      /* share of the source's KV cache, in (0, 1] */
    enum convert_target target;
    enum merge_method method;
    enum dtype dtype;        /* DTYPE_COUNT: keep each tensor's */
    int64_t max_shard_bytes; /* <= 0: one file */
    uint64_t seed;           /* MERGE_RANDOM, GROUPING_FIT, sampled calibration */
    /* Text or token files to calibrate on, or the one word "self": sampled from the model. */
    const char *const *calibrate;
    int64_t n_calibrate, calib_tokens, calib_window; /* 0: the defaults above */
    int64_t stream_memory; /* bytes of residual streams kept in memory, not in a file; 0: 1 GiB */
    enum refit refit;      /* needs calibration */
    enum grouping grouping;
    const char *backend; /* what computes the calibration; NULL: auto */
};

struct convert_item { /* one tensor on its way */
    const struct checkpoint_tensor *from;
    struct tensor_spec to;
    int64_t to_bytes;
    enum role role; /* ROLE_COUNT: unknown to the family, passed through as it is */
    int64_t layer;
    /* K and V rows fall into n_in head blocks that become n_out; 1 and 1: one block, kept. */
    int64_t n_in, n_out;
    bool fitted;            /* values come from the fit, not from merging blocks */
    bool redraw;            /* random: new values even when n_in == n_out */
    struct nonfinite found; /* after the run: in what was read */
    int64_t n_overflow;     /* after the run: finite values that the new type made infinite */
};

struct layer_fit {           /* after the run, of a layer that was fitted */
    double k_error, v_error; /* relative squared errors of scores and of values through o_proj */
    double before, after;    /* relative held-out error of the stream behind attention */
    bool fitted, refitted;   /* refitted false: the held-out error did not improve */
    int64_t *order;          /* [n_kv_head from]: source KV head at each place; NULL: as it was */
};

struct budget_candidate { /* a number of KV heads for a layer, and what it loses */
    int64_t n_kv;
    double loss; /* share of the stream behind the layer that is wrong: docs/methods.md */
};
struct budget_layer {
    struct budget_candidate *candidates; /* [n], most heads first */
    int64_t n, chosen;
};

struct calibration;
struct convert_plan {
    struct convert_options options;
    struct model_folder *folder;
    struct model_config config; /* of the output */
    struct convert_item *items; /* in the input's order */
    int64_t n_item, from_bytes, to_bytes, from_params, to_params;
    int64_t kv_bytes_from, kv_bytes_to;               /* KV cache per token, in K's type */
    struct layer_fit *layers;                         /* [n_layer] */
    struct budget_layer *budget;                      /* [n_layer]; NULL: no budget, or not yet */
    int64_t budget_heads;                             /* in all layers together */
    struct calibration *calibration;                  /* once it was needed */
    int64_t calib_used, calib_windows, calib_heldout; /* tokens and windows; 0: none */
    uint64_t calib_hash;
    bool head_differs; /* after the run: tied, but a separate lm_head has other values */
    struct arena arena;
};
/* Fails where the head counts do not fit, naming them. With a budget the output's head counts are
 * still the source's, until convert_choose. */
enum status convert_plan_open(const struct convert_options *options,
                              struct convert_plan **out) MUST_USE;
void convert_plan_close(struct convert_plan *p);
/* With a budget: measures what fewer heads lose in each layer (one walk over the source model, or
 * weights alone without calibration) and decides the head counts; fails when the target cannot load
 * them. Nothing to do otherwise, or again. */
enum status convert_choose(struct convert_plan *p) MUST_USE;
/* Write options.to: complete or not at all; an existing one only with `force`. Chooses first. Warns
 * about NaN, infinities and overflow, which also stay in the items. */
enum status convert_run(struct convert_plan *p, bool force) MUST_USE;
/* What was planned and, after the run, found. Caller frees. */
struct json *convert_to_json(const struct convert_plan *p);

#endif
