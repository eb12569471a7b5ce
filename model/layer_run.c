/* One layer at a time for a caller that keeps the residual stream itself. */
#include "model/acts.h"

static enum status fetch(const struct acts *a, const void *from, int64_t cols, float *to) {
    if (!to)
        return STATUS_OK;
    struct tensor rows = acts_rows(a, (void *)(uintptr_t)from, cols);
    return a->be->download(a->be, STREAM_COMPUTE, to, rows.data, tensor_bytes(&rows));
}

static enum status put_stream(const struct model *m, struct acts *a, int64_t layer, int64_t n_batch,
                              int64_t n_seq, const float *in) {
    int64_t n_row;
    if (m->dtype != DTYPE_F32 || a->mode == ACTS_INFER || !size_mul(n_batch, n_seq, &n_row) ||
        n_row < 1 || n_row > a->max_row)
        return status_fail(STATUS_FAILED,
                           "a layer alone: needs F32, buffers of a training mode, and at most %lld "
                           "tokens, not %lld x %lld",
                           (long long)a->max_row, (long long)n_batch, (long long)n_seq);
    a->n_batch = n_batch;
    a->n_seq = n_seq;
    struct tensor x = acts_rows(a, a->layers[layer].sum1, m->config.width);
    return m->be->upload(m->be, STREAM_COMPUTE, x.data, in, tensor_bytes(&x));
}

enum status model_layer_run(const struct model *m, struct acts *a, int64_t layer, int64_t n_batch,
                            int64_t n_seq, const struct layer_io *io) {
    const struct model_config *c = &m->config;
    struct backend *be = m->be;
    const struct layer_acts *s = &a->layers[layer];
    TRY(put_stream(m, a, layer, n_batch, n_seq, io->in));
    struct tensor mid = acts_rows(a, s->sum2, c->width);
    TRY(layer_forward(m, a, layer, false, NULL));
    TRY(fetch(a, s->h1, c->width, io->normed));
    TRY(fetch(a, s->att, c->n_head * c->head_dim, io->heads));
    TRY(fetch(a, s->sum2, c->width, io->mid));
    if (io->out) {
        struct tensor branch = acts_rows(a, a->branch, c->width);
        struct matmul_args down = {
            .a = acts_rows(a, s->ff, c->n_ff),
            .b = model_view(m, m->data, m->dtype, m->layer_index[layer][ROLE_DOWN]),
            .c = branch,
            .trans_b = true};
        struct add_args add = {.a = mid, .b = branch, .out = branch};
        TRY(be->matmul(be, &down));
        TRY(be->add(be, &add));
        TRY(fetch(a, a->branch, c->width, io->out));
    }
    return be->sync(be, STREAM_COMPUTE);
}

enum status model_layer_seen(const struct model *m, struct acts *a, int64_t layer, int64_t first,
                             int64_t n, int64_t value, float *out) {
    const struct model_config *c = &m->config;
    int64_t d = c->head_dim, n_q = c->n_head / c->n_kv_head[layer], width = n * n_q * d;
    struct attention_args args = layer_attention(m, a, layer, NULL);
    struct tensor q = tensor_1d(m->dtype, args.q.data, (first + n) * n_q * d);
    struct tensor k = tensor_1d(m->dtype, args.k.data, (first + n) * d);
    struct tensor v = tensor_1d(m->dtype, args.v.data, (value + 1) * d);
    args.n_head = n * n_q;
    args.n_kv_head = n;
    args.q.data = tensor_at(&q, first * n_q * d);
    args.k.data = tensor_at(&k, first * d);
    args.v.data = tensor_at(&v, value * d);
    args.v.head = 0; /* every KV head reads the same value */
    args.o =
        (struct heads){.data = args.o.data, .batch = a->n_seq * width, .row = width, .head = d};
    args.lse = NULL;
    TRY(m->be->attention(m->be, &args));
    TRY(fetch(a, args.o.data, width, out));
    return m->be->sync(m->be, STREAM_COMPUTE);
}

enum status model_layer_attend(const struct model *m, struct acts *a, int64_t layer,
                               int64_t n_batch, int64_t n_seq, const float *in, float *out) {
    TRY(put_stream(m, a, layer, n_batch, n_seq, in));
    TRY(layer_attend(m, a, layer, false, NULL));
    TRY(fetch(a, a->branch, m->config.width, out));
    return m->be->sync(m->be, STREAM_COMPUTE);
}
