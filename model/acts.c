/* Activation buffers: sizes first, then one allocation, then the same walk hands out places. */
#include "model/acts.h"

#include "core/memory.h"

/* A walk over the pool: with pool NULL it only measures. */
struct carver {
    const struct tensor *pool;
    int64_t end;
    bool overflow;
};

static void *carve(struct carver *c, int64_t rows, int64_t cols, enum dtype t) {
    int64_t bytes, at = c->end;
    if (!size_mul(rows, cols, &bytes) || !size_mul(bytes, dtype_size(t), &bytes) ||
        bytes > INT64_MAX / 2 - at) {
        c->overflow = true;
        return NULL;
    }
    c->end = at + size_align(bytes, 64);
    return c->pool ? tensor_at(c->pool, at) : NULL;
}

static void carve_all(const struct model *m, struct acts *a, struct carver *c) {
    const struct model_config *cfg = &m->config;
    int64_t n = a->max_row, w = cfg->width, d = cfg->head_dim, hd = cfg->n_head * d;
    int64_t qkv_max = hd + 2 * model_kv_max(cfg) * d;
    enum dtype t = a->dtype, g = a->grad_dtype;
    bool backward = a->mode != ACTS_INFER;
    for (int64_t l = 0; l < cfg->n_layer; l++) {
        struct layer_acts *s = &a->layers[l];
        const struct layer_acts *first = &a->layers[0];
        bool own = l == 0 || a->mode == ACTS_TRAIN;
        int64_t qkv = own && l ? hd + 2 * cfg->n_kv_head[l] * d : qkv_max;
        if (!own)
            *s = *first;
        if (own || a->mode == ACTS_RECOMPUTE)
            s->sum1 = carve(c, n, w, t);
        if (!own)
            continue;
        s->h1 = carve(c, n, w, t);
        s->qkv = carve(c, n, qkv, t);
        s->att = carve(c, n, hd, t);
        s->gate_up = carve(c, n, 2 * cfg->n_ff, t);
        s->ff = carve(c, n, cfg->n_ff, t);
        s->h2 = backward ? carve(c, n, w, t) : s->h1;
        s->sum2 = backward ? carve(c, n, w, t) : s->sum1;
        s->rstd1 = backward ? carve(c, n, 1, g) : NULL;
        s->rstd2 = backward ? carve(c, n, 1, g) : NULL;
        s->lse = backward ? carve(c, n, cfg->n_head, g) : NULL;
    }
    a->branch = carve(c, n, w, t);
    a->hidden = carve(c, n, w, t);
    a->sum_final = carve(c, n, w, t);
    if (!backward)
        return;
    a->rstd_final = carve(c, n, 1, g);
    a->d_hidden = carve(c, n, w, t);
    a->d_x = carve(c, n, w, t);
    a->d_h = carve(c, n, w, t);
    a->d_qkv = carve(c, n, qkv_max, t);
    a->d_att = carve(c, n, hd, t);
    a->d_ff = carve(c, n, cfg->n_ff, t);
}

enum status acts_open(const struct model *m, enum acts_mode mode, int64_t n_batch, int64_t n_seq,
                      struct acts **out) {
    enum status status;
    struct acts *a;
    *out = NULL;
    TRY(memory_alloc(1, (int64_t)sizeof *a, "activations", &a));
    *a = (struct acts){.be = m->be,
                       .mode = mode,
                       .dtype = m->dtype,
                       .grad_dtype = model_grad_dtype(m),
                       .width = m->config.width};
    TRY_OUT(memory_alloc(m->config.n_layer, (int64_t)sizeof *a->layers, "activations", &a->layers));
    struct carver measure = {0};
    if (size_mul(n_batch, n_seq, &a->max_row))
        carve_all(m, a, &measure);
    if (a->max_row < 1 || measure.overflow) {
        status = status_fail(STATUS_FAILED,
                             "activations for %lld sequences of %lld tokens are too large (or "
                             "none); give a smaller batch or sequence",
                             (long long)n_batch, (long long)n_seq);
        goto out;
    }
    a->n_byte = measure.end;
    TRY_OUT(m->be->alloc(m->be, a->n_byte, "activations", &a->memory));
    struct tensor pool = tensor_1d(DTYPE_U8, a->memory, a->n_byte);
    struct carver place = {.pool = &pool};
    carve_all(m, a, &place);
    *out = a;
    return STATUS_OK;
out:
    acts_close(a);
    return status;
}

void acts_close(struct acts *a) {
    if (!a)
        return;
    if (a->memory)
        a->be->free(a->be, a->memory);
    memory_free(a->layers);
    memory_free(a);
}

int64_t acts_bytes(const struct acts *a) {
    return a->n_byte;
}

struct tensor acts_rows(const struct acts *a, void *data, int64_t cols) {
    return tensor_2d(a->dtype, data, a->n_batch * a->n_seq, cols);
}

struct tensor acts_rstd(const struct acts *a, void *data) {
    return tensor_1d(a->grad_dtype, data, a->n_batch * a->n_seq);
}

struct tensor acts_layer_input(const struct acts *a, int64_t layer) {
    return acts_rows(a, a->layers[layer].sum1, a->width);
}

struct tensor acts_hidden(const struct acts *a) {
    return acts_rows(a, a->hidden, a->width);
}

struct tensor acts_d_hidden(const struct acts *a) {
    return acts_rows(a, a->d_hidden, a->width);
}
