/* See trainer.h. */
#include "train/trainer.h"

#include "train/layerwise.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

static struct tensor flat(const struct trainer *t, void *data, int64_t first, int64_t n) {
    return tensor_rows(tensor_1d(t->grad_dtype, data, first + n), first, n);
}

struct tensor trainer_state(const struct trainer *t, enum trainer_buffer which, int64_t i) {
    const struct trained *p = &t->trained[i];
    if (which == TRAINER_MASTER && !t->master)
        return flat(t, t->student->data, t->student->params[p->param].offset, p->count);
    void *buffers[] = {t->master, t->m, t->v};
    return flat(t, buffers[which], p->offset, p->count);
}

/* Which parameters `trainable` means. A pattern that names nothing is a mistake worth stopping. */
static enum status choose(struct trainer *t) {
    const struct model *m = t->student;
    for (int64_t k = 0; k < t->config->trainable.n; k++) {
        const char *pattern = t->config->trainable.items[k];
        bool used = false;
        for (int64_t i = 0; i < m->n_param_tensors; i++) {
            const struct param *p = &m->params[i];
            if (!strcmp(pattern, "all") ||
                (!strcmp(pattern, "attention") && role_is_attention(p->role)) ||
                fnmatch(pattern, p->name, 0) == 0 || !strcmp(pattern, role_name(p->role)))
                used = t->wanted[i] = true;
        }
        if (!used)
            return status_fail(STATUS_USAGE,
                               "trainable: '%s' matches no tensor; write all, attention or a "
                               "pattern such as *k_proj*",
                               pattern);
    }
    for (int64_t i = 0; i < m->n_param_tensors; i++) {
        if (!t->wanted[i])
            continue;
        if (train_config_is_layerwise(t->config) && !role_is_attention(m->params[i].role))
            return status_fail(STATUS_USAGE,
                               "trainable: objective \"attention\" says nothing about %s; leave "
                               "'trainable' out, or write attention or a pattern such as *k_proj*",
                               m->params[i].name);
        int64_t offset = size_align(t->n_state, 16);
        t->trained[t->n_trained++] = (struct trained){i, offset, m->params[i].count};
        t->n_state = offset + m->params[i].count;
    }
    return STATUS_OK;
}

static enum status device(struct trainer *t, int64_t count, int64_t size, const char *what,
                          void *out) {
    int64_t bytes;
    if (!size_mul(count, size, &bytes))
        return status_nomem(what, (double)count * (double)size);
    return t->be->alloc(t->be, bytes, what, (void **)out);
}

static enum status start_master(struct trainer *t) {
    struct backend *be = t->be;
    for (int64_t i = 0; i < t->n_trained; i++) {
        int64_t param = t->trained[i].param;
        struct tensor weights = model_view(t->student, t->student->data, t->dtype, param);
        struct cast_args cast = {.x = tensor_1d(t->dtype, weights.data, t->trained[i].count),
                                 .out = trainer_state(t, TRAINER_MASTER, i)};
        TRY(be->cast(be, &cast));
    }
    return be->sync(be, STREAM_COMPUTE);
}

static enum status allocate(struct trainer *t) {
    const struct train_config *c = t->config;
    int64_t rows, step_rows, size = dtype_size(t->grad_dtype);
    if (!size_mul(c->batch, c->seq_len, &rows) || !size_mul(rows, c->grad_accum, &step_rows))
        return status_nomem("a batch", (double)c->batch * (double)c->seq_len);
    TRY(memory_alloc(t->student->n_param_tensors, (int64_t)sizeof *t->wanted, "wanted",
                     &t->wanted));
    TRY(memory_alloc(t->student->n_param_tensors, (int64_t)sizeof *t->trained, "trained parameters",
                     &t->trained));
    TRY(memory_alloc(step_rows, (int64_t)sizeof(int32_t), "batch", &t->host_ids));
    TRY(memory_alloc(step_rows, (int64_t)sizeof(int32_t), "batch", &t->host_targets));
    TRY(memory_alloc(rows, 3 * size, "row losses", &t->host_rows));
    TRY(choose(t));
    TRY(device(t, rows, (int64_t)sizeof(int32_t), "token ids", &t->ids));
    TRY(device(t, rows, (int64_t)sizeof(int32_t), "targets", &t->targets));
    TRY(device(t, rows, size, "row losses", &t->nll));
    TRY(device(t, rows, size, "row losses", &t->kl));
    TRY(device(t, rows, size, "row losses", &t->agree));
    TRY(device(t, 1, (int64_t)sizeof(double), "the gradient's size", &t->squares.data));
    t->squares = tensor_1d(DTYPE_F64, t->squares.data, 1);
    TRY(device(t, t->student->n_param, size, "gradients", &t->grads));
    TRY(device(t, t->n_state, size, "AdamW's first moments", &t->m));
    TRY(device(t, t->n_state, size, "AdamW's second moments", &t->v));
    if (t->dtype != t->grad_dtype) {
        TRY(device(t, t->n_state, size, "master weights", &t->master));
        TRY(start_master(t));
    }
    bool layerwise = train_config_is_layerwise(c); /* needs the teacher's stream, layer by layer */
    if (layerwise)
        TRY(memory_alloc(t->student->config.n_layer, (int64_t)sizeof *t->layer_loss, "layer losses",
                         &t->layer_loss));
    TRY(acts_open(t->student, c->recompute || layerwise ? ACTS_RECOMPUTE : ACTS_TRAIN, c->batch,
                  c->seq_len, &t->acts));
    if (t->teacher)
        TRY(acts_open(t->teacher, layerwise ? ACTS_RECOMPUTE : ACTS_INFER, c->batch, c->seq_len,
                      &t->teacher_acts));
    return STATUS_OK;
}

enum status trainer_open(const struct train_config *config, struct backend *be,
                         struct model *student, struct model *teacher,
                         const struct token_data *data, struct trainer *out) {
    *out = (struct trainer){.config = config, .be = be, .student = student, .teacher = teacher};
    out->dtype = student->dtype;
    out->grad_dtype = student->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    if (teacher && teacher->config.n_vocab != student->config.n_vocab)
        return status_fail(
            STATUS_FAILED,
            "the teacher has a vocabulary of %lld, the student of %lld; distillation "
            "needs the same one",
            (long long)teacher->config.n_vocab, (long long)student->config.n_vocab);
    if (train_config_is_layerwise(config))
        TRY(layerwise_check(student, teacher));
    enum status status = batcher_open(data, config->batch, config->seq_len, config->rows,
                                      (uint64_t)config->seed, &out->batcher);
    if (status == STATUS_OK)
        status = allocate(out);
    if (status != STATUS_OK)
        trainer_close(out);
    return status;
}

void trainer_close(struct trainer *t) {
    acts_close(t->acts);
    acts_close(t->teacher_acts);
    void *on_device[] = {t->ids,   t->targets, t->nll, t->kl, t->agree,
                         t->grads, t->master,  t->m,   t->v,  t->squares.data};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        if (on_device[i])
            t->be->free(t->be, on_device[i]);
    void *on_host[] = {t->wanted,       t->trained,   t->host_ids,
                       t->host_targets, t->host_rows, t->layer_loss};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        memory_free(on_host[i]);
    batcher_close(&t->batcher);
    *t = (struct trainer){0};
}

static double row_value(const struct trainer *t, int64_t i) {
    return t->grad_dtype == DTYPE_F64 ? ((const double *)t->host_rows)[i]
                                      : ((const float *)t->host_rows)[i];
}

static struct tensor host_rows(const struct trainer *t, int64_t first, int64_t n) {
    return flat(t, t->host_rows, first, n);
}

/* Row losses of n rows from the device, summed in double in row order. */
static enum status add_rows(struct trainer *t, int64_t n, const int32_t *targets,
                            struct loss_parts *sum) {
    struct backend *be = t->be;
    void *sources[] = {t->nll, t->teacher ? t->kl : NULL, t->teacher ? t->agree : NULL};
    double *sums[] = {&sum->ce, &sum->kl, &sum->agree};
    for (int k = 0; k < 3; k++) {
        if (!sources[k])
            continue;
        struct tensor host = host_rows(t, k * n, n);
        TRY(be->download(be, STREAM_COMPUTE, host.data, sources[k], tensor_bytes(&host)));
    }
    TRY(be->sync(be, STREAM_COMPUTE));
    for (int k = 0; k < 3; k++)
        for (int64_t r = 0; sources[k] && r < n; r++)
            if (targets[r] >= 0)
                *sums[k] += row_value(t, k * n + r);
    for (int64_t r = 0; r < n; r++)
        sum->n_token += targets[r] >= 0;
    return STATUS_OK;
}

static void to_means(struct loss_parts *p) {
    p->ce /= (double)p->n_token;
    p->kl /= (double)p->n_token;
    p->agree /= (double)p->n_token;
}

/* Forward of both models over n_batch sequences, and the loss; with `train` the gradient too. */
static enum status run_batch(struct trainer *t, int64_t n_batch, const int32_t *ids,
                             const int32_t *targets, bool train, double grad_scale,
                             struct loss_parts *sum) {
    struct backend *be = t->be;
    const struct train_config *c = t->config;
    int64_t n = n_batch * c->seq_len, bytes = n * (int64_t)sizeof *ids;
    TRY(be->upload(be, STREAM_COMPUTE, t->ids, ids, bytes));
    TRY(be->upload(be, STREAM_COMPUTE, t->targets, targets, bytes));
    struct head_loss_args loss = {
        .targets = t->targets,
        .ce_weight = t->teacher ? 1 - c->alpha : 1,
        .kl_weight = t->teacher ? c->alpha : 0,
        .temperature = train ? c->temperature : 1,
        .grad_scale = grad_scale,
        .nll = flat(t, t->nll, 0, n),
    };
    if (t->teacher) {
        TRY(model_forward(t->teacher, t->teacher_acts, NULL, t->ids, n_batch, c->seq_len));
        loss.teacher_hidden = acts_hidden(t->teacher_acts);
        loss.teacher_head = model_head(t->teacher);
        loss.kl = flat(t, t->kl, 0, n);
        loss.agree = flat(t, t->agree, 0, n);
    }
    TRY(model_forward(t->student, t->acts, NULL, t->ids, n_batch, c->seq_len));
    loss.hidden = acts_hidden(t->acts);
    loss.head = model_head(t->student);
    if (train) {
        loss.d_hidden = acts_d_hidden(t->acts);
        int64_t head = t->student->index[ROLE_HEAD], embed = t->student->index[ROLE_EMBED];
        if (t->wanted[head >= 0 ? head : embed])
            loss.d_head = model_d_head(t->student, t->grads);
    }
    TRY(be->head_loss(be, &loss));
    if (train)
        TRY(model_backward(t->student, t->acts, t->grads, t->wanted));
    return add_rows(t, n, targets, sum);
}

enum status trainer_squares(struct trainer *t, struct tensor x, double *out) {
    struct sum_squares_args args = {.x = x, .out = t->squares};
    TRY(t->be->sum_squares(t->be, &args));
    TRY(t->be->download(t->be, STREAM_COMPUTE, out, t->squares.data, sizeof *out));
    return t->be->sync(t->be, STREAM_COMPUTE);
}

static enum status gradient_norm(struct trainer *t, double *out) {
    double sum = 0;
    /* frozen parameters' gradients and padding are zero */
    TRY(trainer_squares(t, flat(t, t->grads, 0, t->student->n_param), &sum));
    *out = sqrt(sum);
    if (isfinite(*out))
        return STATUS_OK;
    const char *name = "all of them together";
    for (int64_t i = 0; i < t->n_trained; i++) {
        const struct param *p = &t->student->params[t->trained[i].param];
        TRY(trainer_squares(t, flat(t, t->grads, p->offset, p->count), &sum));
        if (!isfinite(sum)) {
            name = p->name;
            break;
        }
    }
    return status_fail(STATUS_FAILED,
                       "step %lld: the gradient of %s is not finite; lower optimizer.lr or check "
                       "the data (the last checkpoint is untouched)",
                       (long long)t->step + 1, name);
}

static enum status update(struct trainer *t, double lr, double grad_scale) {
    for (int64_t i = 0; i < t->n_trained; i++) {
        const struct trained *p = &t->trained[i];
        const struct param *param = &t->student->params[p->param];
        struct tensor weights = model_view(t->student, t->student->data, t->dtype, p->param);
        struct adamw_args args = {
            .param = tensor_1d(t->dtype, weights.data, p->count),
            .master = trainer_state(t, TRAINER_MASTER, i),
            .m = trainer_state(t, TRAINER_M, i),
            .v = trainer_state(t, TRAINER_V, i),
            .grad = flat(t, t->grads, param->offset, p->count),
            .lr = lr,
            .beta1 = t->config->beta1,
            .beta2 = t->config->beta2,
            .eps = t->config->eps,
            .weight_decay = param->rank == 2 ? t->config->weight_decay : 0,
            .grad_scale = grad_scale,
            .step = t->step + 1,
        };
        TRY(t->be->adamw(t->be, &args));
    }
    return t->be->sync(t->be, STREAM_COMPUTE);
}

/* Loss and gradient of the step's micro-batches, which stand in host_ids and host_targets. */
static enum status end_to_end(struct trainer *t, struct train_step *out) {
    const struct train_config *c = t->config;
    int64_t rows = c->batch * c->seq_len, n_counted = 0;
    for (int64_t i = 0; i < c->grad_accum * rows; i++)
        n_counted += t->host_targets[i] >= 0;
    for (int64_t a = 0; a < c->grad_accum; a++)
        TRY(run_batch(t, c->batch, t->host_ids + a * rows, t->host_targets + a * rows, true,
                      1.0 / (double)n_counted, &out->parts));
    to_means(&out->parts);
    out->loss =
        t->teacher ? c->alpha * out->parts.kl + (1 - c->alpha) * out->parts.ce : out->parts.ce;
    if (!isfinite(out->loss))
        return status_fail(STATUS_FAILED,
                           "step %lld: the loss is %g (ce %g, kl %g); lower optimizer.lr or check "
                           "the weights (the last checkpoint is untouched)",
                           (long long)t->step + 1, out->loss, out->parts.ce, out->parts.kl);
    return STATUS_OK;
}

enum status trainer_step(struct trainer *t, double lr, struct train_step *out) {
    const struct train_config *c = t->config;
    int64_t rows = c->batch * c->seq_len;
    for (int64_t a = 0; a < c->grad_accum; a++)
        batcher_next(&t->batcher, t->host_ids + a * rows, t->host_targets + a * rows);

    *out = (struct train_step){0};
    struct tensor grads = flat(t, t->grads, 0, t->student->n_param);
    TRY(t->be->zero(t->be, grads.data, tensor_bytes(&grads)));
    TRY(t->layer_loss ? layerwise_losses(t, out) : end_to_end(t, out));
    TRY(gradient_norm(t, &out->grad_norm));
    double scale = c->clip > 0 ? c->clip / (out->grad_norm + 1e-6) : 1;
    TRY(update(t, lr, scale < 1 ? scale : 1));
    t->step++;
    return STATUS_OK;
}

enum status trainer_eval(struct trainer *t, const struct batcher *heldout, int64_t max_windows,
                         struct loss_parts *out) {
    const struct train_config *c = t->config;
    int64_t n = max_windows > 0 ? size_min(max_windows, heldout->n_window) : heldout->n_window;
    *out = (struct loss_parts){0};
    for (int64_t w = 0; w < n; w += c->batch) {
        int64_t n_batch = size_min(c->batch, n - w);
        for (int64_t b = 0; b < n_batch; b++)
            batcher_window(heldout, w + b, t->host_ids + b * c->seq_len,
                           t->host_targets + b * c->seq_len);
        TRY(run_batch(t, n_batch, t->host_ids, t->host_targets, false, 0, out));
    }
    to_means(out);
    return STATUS_OK;
}
