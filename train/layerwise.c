/* See layerwise.h. */
#include "train/layerwise.h"

#include <math.h>

enum status layerwise_check(const struct model *student, const struct model *teacher) {
    const struct model_config *s = &student->config, *t = &teacher->config;
    if (s->width == t->width && s->n_layer == t->n_layer)
        return STATUS_OK;
    return status_fail(
        STATUS_FAILED,
        "objective \"attention\" compares layer by layer: the teacher has %lld layers "
        "of width %lld, the student %lld of %lld",
        (long long)t->n_layer, (long long)t->width, (long long)s->n_layer, (long long)s->width);
}

/* Of each micro-batch and layer: |teacher|^2, and the square of the gradient, which is the error.
 */
enum { SUM_SIZE, SUM_ERROR, SUMS };

int64_t layerwise_sums(const struct train_config *c, const struct model *student) {
    return c->grad_accum * student->config.n_layer * SUMS;
}

static int64_t sum_at(const struct trainer *t, int64_t accum, int64_t layer) {
    return (accum * t->student->config.n_layer + layer) * SUMS;
}

/* The gradient is this times (student - teacher) / |teacher|^2. */
static double error_scale(const struct trainer *t) {
    return 2.0 / (double)t->config->grad_accum / (double)t->student->config.n_layer;
}

static enum status layer_step(struct trainer *t, int64_t accum, int64_t layer) {
    const struct train_config *c = t->config;
    struct backend *be = t->be;
    struct tensor stream = acts_layer_input(t->teacher_acts, layer), taught, learnt;
    TRY(model_attention_branch(t->teacher, t->teacher_acts, layer, c->batch, c->seq_len, stream,
                               &taught));
    TRY(model_attention_branch(t->student, t->acts, layer, c->batch, c->seq_len, stream, &learnt));
    int64_t at = sum_at(t, accum, layer);
    struct sum_squares_args size = {taught, loss_ring_sum(&t->losses, at + SUM_SIZE)};
    struct difference_args off = {.a = learnt,
                                  .b = taught,
                                  .out = acts_d_hidden(t->acts),
                                  .scale = error_scale(t),
                                  .size = size.out};
    struct sum_squares_args error = {off.out, loss_ring_sum(&t->losses, at + SUM_ERROR)};
    TRY(be->sum_squares(be, &size));
    TRY(be->difference(be, &off));
    TRY(be->sum_squares(be, &error));
    return model_attention_branch_bwd(t->student, t->acts, layer, t->grads, t->wanted);
}

enum status layerwise_losses(struct trainer *t, const struct step_batch *batch) {
    const struct train_config *c = t->config;
    int64_t rows = c->batch * c->seq_len;
    struct tensor ids = tensor_1d(DTYPE_I32, batch->ids, c->grad_accum * rows);
    for (int64_t a = 0; a < c->grad_accum; a++) {
        TRY(model_forward(t->teacher, t->teacher_acts, NULL, tensor_at(&ids, a * rows), c->batch,
                          c->seq_len));
        for (int64_t l = 0; l < t->student->config.n_layer; l++)
            TRY(layer_step(t, a, l));
    }
    return STATUS_OK;
}

enum status layerwise_read(struct trainer *t, int64_t slot, struct train_step *out) {
    const struct train_config *c = t->config;
    int64_t n_layer = t->student->config.n_layer, count = c->batch * c->seq_len;
    const double *sums = t->losses.host_sums + slot * t->losses.n_sum;
    double *loss = t->layer_loss + slot * n_layer;
    out->layer_loss = loss;
    out->n_layer = n_layer;
    for (int64_t l = 0; l < n_layer; l++) {
        loss[l] = 0;
        for (int64_t a = 0; a < c->grad_accum; a++) {
            double size = sums[sum_at(t, a, l) + SUM_SIZE];
            if (size == 0) /* a branch that adds nothing: its absolute error */
                size = (double)(count * t->student->config.width);
            double scale = error_scale(t) / size;
            double error = sums[sum_at(t, a, l) + SUM_ERROR] / scale / scale;
            loss[l] += error / size / (double)c->grad_accum;
        }
        out->loss += loss[l] / (double)n_layer;
    }
    for (int64_t l = 0; l < n_layer; l++)
        if (!isfinite(loss[l]))
            return status_fail(
                STATUS_FAILED,
                "step %lld: the loss of layer %lld is %g; lower optimizer.lr or check "
                "the weights (the last checkpoint is untouched)",
                (long long)out->step, (long long)l, loss[l]);
    return STATUS_OK;
}
