/* One optimiser step and one held-out evaluation: models, gradients, AdamW's state, and where the
 * data stands. Everything is allocated when it opens; a step allocates nothing. */
#ifndef REGROUP_TRAIN_TRAINER_H
#define REGROUP_TRAIN_TRAINER_H

#include "data/tokens.h"
#include "model/model.h"
#include "train/train_config.h"

/* One trained parameter: where it stands in the model and in the compact optimiser buffers. */
struct trained {
    int64_t param, offset, count;
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
    struct batcher batcher;
    int64_t step; /* steps done */
    /* one micro-batch on the device: [batch * seq_len] */
    int32_t *ids, *targets;
    void *nll, *kl, *agree; /* in `grad_dtype` */
    struct tensor squares;  /* [1] F64 on the device: of the gradient */
    /* on the host: all micro-batches of a step, and the rows of one */
    int32_t *host_ids, *host_targets; /* [grad_accum * batch * seq_len] */
    double *layer_loss;               /* [n_layer] of the latest step; NULL: not layer by layer */
    void *host_rows;                  /* [3 * batch * seq_len] */
};

/* Parts of a loss, as means over the counted tokens. kl carries the factor temperature^2. */
struct loss_parts {
    double ce, kl, agree;
    int64_t n_token; /* counted */
};
struct train_step {
    struct loss_parts parts;
    double loss, grad_norm;   /* norm before clipping */
    const double *layer_loss; /* of the trainer; NULL: see parts; else parts are zero */
    int64_t n_layer;
};

/* `data` is borrowed until trainer_close. */
enum status trainer_open(const struct train_config *config, struct backend *be,
                         struct model *student, struct model *teacher,
                         const struct token_data *data, struct trainer *out) MUST_USE;
void trainer_close(struct trainer *t);
/* One step of gradient accumulation, clipping and AdamW with the given learning rate. A loss or a
 * gradient that is not finite fails before any weight changes. */
enum status trainer_step(struct trainer *t, double lr, struct train_step *out) MUST_USE;
/* Means over the first max_windows (0: all) windows in order, at temperature 1. */
enum status trainer_eval(struct trainer *t, const struct batcher *heldout, int64_t max_windows,
                         struct loss_parts *out) MUST_USE;
/* Sum of squares of a tensor on the device. */
enum status trainer_squares(struct trainer *t, struct tensor x, double *out) MUST_USE;
/* The master weight, first or second moment of a trained parameter, flat. */
enum trainer_buffer { TRAINER_MASTER, TRAINER_M, TRAINER_V, TRAINER_BUFFERS };
struct tensor trainer_state(const struct trainer *t, enum trainer_buffer which, int64_t i);

#endif
