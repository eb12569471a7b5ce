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

/* One layer: its gradient, and `weight` times its loss. */
static enum status layer_step(struct trainer *t, int64_t layer, double weight) {
    const struct train_config *c = t->config;
    struct backend *be = t->be;
    struct tensor stream = acts_layer_input(t->teacher_acts, layer), taught, learnt;
    TRY(model_attention_branch(t->teacher, t->teacher_acts, layer, c->batch, c->seq_len, stream,
                               &taught));
    TRY(model_attention_branch(t->student, t->acts, layer, c->batch, c->seq_len, stream, &learnt));
    double size, error;
    TRY(trainer_squares(t, taught, &size));
    if (size == 0) /* a branch that adds nothing: its absolute error */
        size = (double)tensor_count(&taught);
    struct difference_args off = {.a = learnt, .b = taught, .out = acts_d_hidden(t->acts)};
    off.scale = 2 * weight / (size * (double)t->student->config.n_layer);
    TRY(be->difference(be, &off));
    TRY(trainer_squares(t, off.out, &error));
    t->layer_loss[layer] += weight * (error / off.scale / off.scale) / size;
    return model_attention_branch_bwd(t->student, t->acts, layer, t->grads, t->wanted);
}

enum status layerwise_losses(struct trainer *t, struct train_step *out) {
    const struct train_config *c = t->config;
    int64_t rows = c->batch * c->seq_len, n_layer = t->student->config.n_layer;
    for (int64_t l = 0; l < n_layer; l++)
        t->layer_loss[l] = 0;
    for (int64_t a = 0; a < c->grad_accum; a++) {
        TRY(t->be->upload(t->be, STREAM_COMPUTE, t->ids, t->host_ids + a * rows,
                          rows * (int64_t)sizeof *t->ids));
        TRY(model_forward(t->teacher, t->teacher_acts, NULL, t->ids, c->batch, c->seq_len));
        for (int64_t l = 0; l < n_layer; l++)
            TRY(layer_step(t, l, 1.0 / (double)c->grad_accum));
    }
    out->layer_loss = t->layer_loss;
    out->n_layer = n_layer;
    for (int64_t l = 0; l < n_layer; l++) {
        out->loss += t->layer_loss[l] / (double)n_layer;
        if (!isfinite(t->layer_loss[l]))
            return status_fail(
                STATUS_FAILED,
                "step %lld: the loss of layer %lld is %g; lower optimizer.lr or check "
                "the weights (the last checkpoint is untouched)",
                (long long)t->step + 1, (long long)l, t->layer_loss[l]);
    }
    return STATUS_OK;
}
