/* What a run needs to continue bit-exactly, beside the model in OUT/last:
 *   OUT/last/training/state.safetensors  master.*, m.*, v.* of the trained parameters; rounded.*
 *                                        when chance rounds them
 *   OUT/last/training/state.json         step, data position, best evaluation, hashes, settings
 * The folder OUT/last is replaced as a whole, atomically. */
#ifndef REGROUP_TRAIN_STATE_H
#define REGROUP_TRAIN_STATE_H

#include "train/trainer.h"

struct run_state {
    int64_t step, position;            /* steps done; windows served */
    int64_t best_step;                 /* -1: no evaluation yet */
    double best_nll;                   /* of best_step */
    uint64_t train_hash, heldout_hash; /* of the token ids */
};

bool state_exists(const char *out_dir);
/* Reads OUT/last/training/state.json. *settings: the stored configuration; the caller frees. */
enum status state_load(const char *out_dir, struct run_state *out, struct json **settings) MUST_USE;
/* Puts the stored weights and moments into a trainer whose student was opened from OUT/last. */
enum status state_restore(struct trainer *t, const char *out_dir) MUST_USE;
/* The student as a model folder; its tokenizer beside it. */
enum status state_save_model(const struct trainer *t, const char *dir) MUST_USE;
/* OUT/last with the training state, and OUT/best without. */
enum status state_save_last(const struct trainer *t, const struct run_state *s,
                            const char *out_dir) MUST_USE;
enum status state_save_best(const struct trainer *t, const char *out_dir) MUST_USE;

#endif
