/* See trainer.h. */
#include "train/trainer.h"

#include "core/rng.h"
#include "train/layerwise.h"

#include <assert.h>
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

static enum status allocate_batch(struct trainer *t, int64_t rows, struct step_batch *b) {
    int64_t size = (int64_t)sizeof *b->ids;
    TRY(memory_alloc(rows, size, "batch", &b->host_ids));
    TRY(memory_alloc(rows, size, "batch", &b->host_targets));
    TRY(device(t, rows, size, "token ids", &b->ids));
    return device(t, rows, size, "targets", &b->targets);
}

/* Reading a loss makes the host wait for the device, and then the device for the host. That is
 * nothing where the ops run in the calling thread. */
static int64_t read_every(const struct trainer *t) {
    enum { ON_A_DEVICE = 16 };
    int64_t every = t->config->log_every;
    if (!every)
        every = t->be->host_memory ? 1 : ON_A_DEVICE;
    return size_min(every, t->config->steps);
}

static enum status allocate(struct trainer *t) {
    const struct train_config *c = t->config;
    bool layerwise = train_config_is_layerwise(c); /* needs the teacher's stream, layer by layer */
    int64_t rows, size = dtype_size(t->grad_dtype), every = read_every(t);
    if (!size_mul(c->batch, c->seq_len, &rows) || !size_mul(rows, c->grad_accum, &rows))
        return status_nomem("a batch", (double)c->batch * (double)c->seq_len);
    TRY(memory_alloc(t->student->n_param_tensors, (int64_t)sizeof *t->wanted, "wanted",
                     &t->wanted));
    TRY(memory_alloc(t->student->n_param_tensors, (int64_t)sizeof *t->trained, "trained parameters",
                     &t->trained));
    TRY(memory_alloc(every, (int64_t)sizeof *t->unread, "losses", &t->unread));
    TRY(choose(t));
    for (int k = 0; k < 2; k++)
        TRY(allocate_batch(t, rows, &t->batch[k]));
    TRY(loss_ring_open(t->be, t->grad_dtype, every, rows, t->teacher != NULL,
                       layerwise ? layerwise_sums(c, t->student) : 0, &t->losses));
    TRY(device(t, t->student->n_param, size, "gradients", &t->grads));
    TRY(device(t, t->n_state, size, "AdamW's first moments", &t->m));
    TRY(device(t, t->n_state, size, "AdamW's second moments", &t->v));
    if (t->dtype != t->grad_dtype) {
        TRY(device(t, t->n_state, size, "master weights", &t->master));
        TRY(start_master(t));
    }
    if (layerwise)
        TRY(memory_alloc(every * t->student->config.n_layer, (int64_t)sizeof *t->layer_loss,
                         "layer losses", &t->layer_loss));
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
    struct step_batch *b = t->batch;
    void *on_device[] = {b[0].ids, b[0].targets, b[1].ids, b[1].targets,
                         t->grads, t->master,    t->m,     t->v};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++)
        if (on_device[i])
            t->be->free(t->be, on_device[i]);
    void *on_host[] = {t->wanted,     t->trained,        t->unread,     t->layer_loss,
                       b[0].host_ids, b[0].host_targets, b[1].host_ids, b[1].host_targets};
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        memory_free(on_host[i]);
    loss_ring_close(&t->losses);
    batcher_close(&t->batcher);
    *t = (struct trainer){0};
}

void trainer_resume(struct trainer *t, int64_t step, int64_t position) {
    t->step = step;
    t->position = t->batcher.position = position;
    t->ahead = false;
}

static void to_means(struct loss_parts *p) {
    p->ce /= (double)p->n_token;
    p->kl /= (double)p->n_token;
    p->agree /= (double)p->n_token;
}

static int64_t step_rows(const struct trainer *t) {
    return t->config->grad_accum * t->config->batch * t->config->seq_len;
}

/* n_token counted afresh, and the first n rows on their way to the device. */
static enum status upload(struct trainer *t, struct step_batch *b, int64_t n,
                          enum stream_id stream) {
    int64_t bytes = n * (int64_t)sizeof *b->ids;
    b->n_token = 0;
    for (int64_t i = 0; i < n; i++)
        b->n_token += b->host_targets[i] >= 0;
    TRY(t->be->upload(t->be, stream, b->ids, b->host_ids, bytes));
    return t->be->upload(t->be, stream, b->targets, b->host_targets, bytes);
}

static enum status load(struct trainer *t, struct step_batch *b) {
    const struct train_config *c = t->config;
    int64_t rows = c->batch * c->seq_len;
    for (int64_t a = 0; a < c->grad_accum; a++)
        batcher_next(&t->batcher, b->host_ids + a * rows, b->host_targets + a * rows);
    return upload(t, b, c->grad_accum * rows, STREAM_COPY);
}

/* Forward of both models over n_batch sequences from row `first` of the step on, and the loss; with
 * `train` the gradient too. */
static enum status run_batch(struct trainer *t, const struct step_batch *b, int64_t first,
                             int64_t n_batch, bool train) {
    struct backend *be = t->be;
    const struct train_config *c = t->config;
    int64_t n = n_batch * c->seq_len;
    struct tensor all_ids = tensor_1d(DTYPE_I32, b->ids, first + n);
    struct tensor all_targets = tensor_1d(DTYPE_I32, b->targets, first + n);
    const int32_t *ids = tensor_at(&all_ids, first);
    struct head_loss_args loss = {
        .targets = tensor_at(&all_targets, first),
        .ce_weight = t->teacher ? 1 - c->alpha : 1,
        .kl_weight = t->teacher ? c->alpha : 0,
        .temperature = train ? c->temperature : 1,
        .grad_scale = train ? 1.0 / (double)b->n_token : 0,
        .nll = loss_ring_rows(&t->losses, 0, first, n),
        .kl = loss_ring_rows(&t->losses, 1, first, n),
        .agree = loss_ring_rows(&t->losses, 2, first, n),
    };
    if (t->teacher) {
        TRY(model_forward(t->teacher, t->teacher_acts, NULL, ids, n_batch, c->seq_len));
        loss.teacher_hidden = acts_hidden(t->teacher_acts);
        loss.teacher_head = model_head(t->teacher);
    }
    TRY(model_forward(t->student, t->acts, NULL, ids, n_batch, c->seq_len));
    loss.hidden = acts_hidden(t->acts);
    loss.head = model_head(t->student);
    if (!train)
        return be->head_loss(be, &loss);
    int64_t head = t->student->index[ROLE_HEAD], embed = t->student->index[ROLE_EMBED];
    loss.d_hidden = acts_d_hidden(t->acts);
    if (t->wanted[head >= 0 ? head : embed])
        loss.d_head = model_d_head(t->student, t->grads);
    TRY(be->head_loss(be, &loss));
    return model_backward(t->student, t->acts, t->grads, t->wanted);
}

/* Losses and gradients of a step. */
static enum status accumulate(struct trainer *t, const struct step_batch *b) {
    const struct train_config *c = t->config;
    struct tensor grads = flat(t, t->grads, 0, t->student->n_param);
    TRY(t->be->zero(t->be, grads.data, tensor_bytes(&grads)));
    if (t->layer_loss)
        return layerwise_losses(t, b);
    for (int64_t a = 0; a < c->grad_accum; a++)
        TRY(run_batch(t, b, a * c->batch * c->seq_len, c->batch, true));
    return STATUS_OK;
}

/* Of one parameter in one step; 0: to nearest. */
static uint64_t rounding_seed(const struct trainer *t, int64_t step, int64_t param) {
    if (!t->config->stochastic_rounding)
        return 0;
    int64_t which = step * t->student->n_param_tensors + param;
    struct rng rng = rng_stream((uint64_t)t->config->seed, (uint64_t)which);
    return rng_u64(&rng) | 1;
}

static enum status update(struct trainer *t, double lr) {
    const struct train_config *c = t->config;
    struct tensor squares = loss_ring_squares(&t->losses);
    struct sum_squares_args all = {.x = flat(t, t->grads, 0, t->student->n_param),
                                   .out = tensor_rows(squares, t->losses.n_step, 1)};
    TRY(t->be->sum_squares(t->be, &all)); /* frozen parameters' gradients and padding are zero */
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
            .beta1 = c->beta1,
            .beta2 = c->beta2,
            .eps = c->eps,
            .weight_decay = param->rank == 2 ? c->weight_decay : 0,
            .grad_scale = 1,
            .step = t->step + 1,
            .clip = c->clip,
            .grad_square = squares,
            .rounding_seed = rounding_seed(t, t->step + 1, p->param),
        };
        TRY(t->be->adamw(t->be, &args));
    }
    return STATUS_OK;
}

bool trainer_is_full(const struct trainer *t) {
    return t->losses.n_step == t->losses.n_slot;
}

/* The batch's side of a step: this one's ids have arrived, and the next one's go into the other
 * buffer as soon as the step before has done with it. Since they waited for a step themselves, the
 * host stays at most two steps ahead of the device. */
static enum status exchange(struct trainer *t) {
    struct backend *be = t->be;
    if (!t->ahead)
        TRY(load(t, &t->batch[t->turn]));
    TRY(be->sync(be, STREAM_COPY));
    TRY(be->wait(be, STREAM_COPY, STREAM_COMPUTE));
    t->ahead = true;
    return load(t, &t->batch[!t->turn]);
}

enum status trainer_step(struct trainer *t, double lr) {
    const struct train_config *c = t->config;
    struct step_batch *b = &t->batch[t->turn];
    assert(!trainer_is_full(t));
    TRY(exchange(t));
    TRY(backend_graph_begin(t->be, (int64_t)(intptr_t)t));
    enum status status = accumulate(t, b);
    if (status == STATUS_OK)
        status = update(t, lr);
    TRY(backend_graph_end(t->be, status));
    t->unread[t->losses.n_step++] =
        (struct train_step){.step = ++t->step, .lr = lr, .parts.n_token = b->n_token};
    t->position += c->grad_accum * c->batch;
    t->turn = !t->turn;
    return STATUS_OK;
}

/* The weights are as they were before step t->step + 1: its gradient again, tensor by tensor. */
static enum status blame_gradient(struct trainer *t) {
    const char *name = "all of them together";
    TRY(t->be->sync(t->be, STREAM_COPY));
    TRY(load(t, &t->batch[t->turn]));
    TRY(t->be->sync(t->be, STREAM_COPY));
    TRY(accumulate(t, &t->batch[t->turn]));
    for (int64_t i = 0; i < t->n_trained; i++) {
        const struct param *p = &t->student->params[t->trained[i].param];
        struct sum_squares_args one = {.x = flat(t, t->grads, p->offset, p->count),
                                       .out = loss_ring_squares(&t->losses)};
        TRY(t->be->sum_squares(t->be, &one));
        TRY(loss_ring_read(&t->losses, 1));
        if (!isfinite(t->losses.host_squares[0])) {
            name = p->name;
            break;
        }
    }
    return status_fail(STATUS_FAILED,
                       "step %lld: the gradient of %s is not finite; lower optimizer.lr or check "
                       "the data (the last checkpoint is untouched)",
                       (long long)t->step + 1, name);
}

static enum status read_step(struct trainer *t, int64_t slot, struct train_step *s) {
    const struct train_config *c = t->config;
    s->grad_norm = sqrt(t->losses.host_squares[slot]);
    if (t->layer_loss) {
        s->parts = (struct loss_parts){0};
        TRY(layerwise_read(t, slot, s));
    } else {
        loss_ring_add(&t->losses, slot, step_rows(t), &s->parts);
        to_means(&s->parts);
        s->loss = t->teacher ? c->alpha * s->parts.kl + (1 - c->alpha) * s->parts.ce : s->parts.ce;
        if (!isfinite(s->loss))
            return status_fail(
                STATUS_FAILED,
                "step %lld: the loss is %g (ce %g, kl %g); lower optimizer.lr or check "
                "the weights (the last checkpoint is untouched)",
                (long long)s->step, s->loss, s->parts.ce, s->parts.kl);
    }
    return STATUS_OK;
}

enum status trainer_read(struct trainer *t, const struct train_step **out, int64_t *n) {
    int64_t unread = t->losses.n_step;
    *out = t->unread;
    *n = 0;
    TRY(loss_ring_read(&t->losses, unread));
    t->losses.n_step = 0;
    for (; *n < unread; ++*n) {
        struct train_step *s = &t->unread[*n];
        enum status status = read_step(t, *n, s);
        if (status == STATUS_OK && isfinite(s->grad_norm))
            continue;
        int64_t back = unread - *n, windows = t->config->grad_accum * t->config->batch;
        trainer_resume(t, t->step - back, t->position - back * windows);
        return status == STATUS_OK ? blame_gradient(t) : status;
    }
    return STATUS_OK;
}

enum status trainer_eval(struct trainer *t, const struct batcher *heldout, int64_t max_windows,
                         struct loss_parts *out) {
    const struct train_config *c = t->config;
    int64_t n = max_windows > 0 ? size_min(max_windows, heldout->n_window) : heldout->n_window;
    struct step_batch *b = &t->batch[!t->turn]; /* the other one may hold the next step's */
    assert(t->losses.n_step == 0);
    *out = (struct loss_parts){0};
    for (int64_t w = 0; w < n; w += c->batch) {
        int64_t n_batch = size_min(c->batch, n - w), rows = n_batch * c->seq_len;
        for (int64_t i = 0; i < n_batch; i++)
            batcher_window(heldout, w + i, b->host_ids + i * c->seq_len,
                           b->host_targets + i * c->seq_len);
        TRY(upload(t, b, rows, STREAM_COMPUTE));
        TRY(run_batch(t, b, 0, n_batch, false));
        TRY(loss_ring_read(&t->losses, 1));
        loss_ring_add(&t->losses, 0, rows, out);
        out->n_token += b->n_token;
    }
    to_means(out);
    return STATUS_OK;
}
