/* Optimiser steps and held-out evaluations: models, gradients, AdamW's state, and where the data
 * stands. Everything is allocated when it opens; a step allocates nothing and does not wait for
 * the device: it is given the step, and the ids of the next one are on their way meanwhile. */
#ifndef REGROUP_TRAIN_TRAINER_H
#define REGROUP_TRAIN_TRAINER_H

#include "data/tokens.h"
#include "model/model.h"
#include "train/loss_ring.h"
#include "train/train_config.h"

/* One trained parameter: where it stands in the model and in the compact optimiser buffers. */
struct trained {
    int64_t param, offset, count;
};

/* All micro-batches of a step: [grad_accum * batch * seq_len]. */
struct step_batch {
    int32_t *ids, *targets;           /* on the device */
    int32_t *host_ids, *host_targets; /* where they came from */
    int64_t n_token;                  /* counted targets */
};

/* What trainer_read says of a step. */
struct train_step {
    int64_t step;
    double lr;
    struct loss_parts parts;
    double loss, grad_norm;   /* norm before clipping */
    const double *layer_loss; /* of the trainer; NULL: see parts; else parts are zero */
    int64_t n_layer;
};

struct trainer {
    const struct train_config *config; /* borrowed */
    struct backend *be;                /* borrowed */
    struct model *student, *teacher;   /* borrowed; teacher NULL: no divergence */
    struct acts *acts, *teacher_acts;
    enum dtype dtype, grad_dtype; /* compute; gradients, master weights and moments */
    bool *wanted;                 /* [student->n_param_tensors] */
    struct trained *trained;      /* [n_trained], in the model's order */
    int64_t n_trained, n_state;   /* n_state: elements of master, m and v */
    void *grads;                  /* [student->n_param] grad_dtype, device */
    void *master, *m, *v;         /* [n_state] grad_dtype; master NULL: the weights themselves */
    struct batcher batcher;       /* one step ahead of `position` when `ahead` */
    int64_t step, position;       /* steps given to the device; windows they took */
    struct step_batch batch[2];
    int turn;                  /* batch[turn]: of the next step */
    bool ahead;                /* it is already on its way to the device */
    struct loss_ring losses;   /* losses.n_step: steps not yet read */
    struct train_step *unread; /* [losses.n_slot]: what the host knows of them */
    double *layer_loss; /* [losses.n_slot * n_layer] of steps read; NULL: not layer by layer */
};

/* `data` is borrowed until trainer_close. */
enum status trainer_open(const struct train_config *config, struct backend *be,
                         struct model *student, struct model *teacher,
                         const struct token_data *data, struct trainer *out) MUST_USE;
void trainer_close(struct trainer *t);
/* Go on behind `step` steps that took `position` windows. */
void trainer_resume(struct trainer *t, int64_t step, int64_t position);
/* Enqueues one step of gradient accumulation, clipping and AdamW with the given learning rate. */
enum status trainer_step(struct trainer *t, double lr) MUST_USE;
/* As many steps as fit are unread: trainer_read must come before the next. */
bool trainer_is_full(const struct trainer *t);
/* Waits, and tells the unread steps in order: *out is borrowed until the next step. The first whose
 * loss or gradient is not finite ends them: the failure names it and the tensor. From a gradient
 * that is not finite on, no step has changed a weight. */
enum status trainer_read(struct trainer *t, const struct train_step **out, int64_t *n) MUST_USE;
/* Means over the first max_windows (0: all) windows in order, at temperature 1. All steps must have
 * been read. */
enum status trainer_eval(struct trainer *t, const struct batcher *heldout, int64_t max_windows,
                         struct loss_parts *out) MUST_USE;
/* The master weight, first or second moment of a trained parameter, flat. */
enum trainer_buffer { TRAINER_MASTER, TRAINER_M, TRAINER_V, TRAINER_BUFFERS };
struct tensor trainer_state(const struct trainer *t, enum trainer_buffer which, int64_t i);

#endif
