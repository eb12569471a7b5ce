/* A whole training run: data, models, the loop, its log, evaluations and checkpoints.
 *   OUT/config.resolved.json  every setting, and the environment it ran in
 *   OUT/log.jsonl        lines {"step", "loss", "ce", "kl", "agree", "grad_norm", "lr", "tokens",
 *                        "tokens_per_s", "seconds"} ("layer_loss": [...] for the middle three with
 *                        objective attention) and {"step", "eval": {...}}, as often as log_every
 *   OUT/last, OUT/best   model folders; last with the training state (train/state.h) */
#ifndef REGROUP_TRAIN_TRAIN_RUN_H
#define REGROUP_TRAIN_TRAIN_RUN_H

#include "train/train_config.h"

enum train_start {
    TRAIN_NEW,    /* OUT must not exist, or be empty */
    TRAIN_RESUME, /* continue OUT/last bit-exactly; start when there is none yet */
    TRAIN_FORCE,  /* replace an earlier run in OUT */
};
struct train_result {
    int64_t step;      /* steps done in all */
    bool was_complete; /* nothing was left to do */
    double loss;       /* of the last step; NaN when none ran */
    int64_t best_step; /* -1: nothing held out */
    double best_nll;
};
/* SIGINT and SIGTERM finish the step, save OUT/last and return STATUS_INTERRUPTED. */
enum status train_run(const struct train_config *config, enum train_start start,
                      struct train_result *out) MUST_USE;

#endif
