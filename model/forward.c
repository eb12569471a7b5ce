/* The forward pass, one for training (no cache), scoring and decoding (cache).
 *
 *   sum1 = stream + branch   h1 = norm(sum1)   qkv = rope(h1 Wqkv + b)   att = attention(qkv)
 *   sum2 = sum1 + att Wo     h2 = norm(sum2)   ff = act(h2 Wgu)          branch = ff Wdown */
#include "model/acts.h"

static struct tensor weight(const struct model *m, int64_t param) {
    return model_view(m, m->data, m->dtype, param);
}

/* y = x W^T (+ bias), the linear layer. */
static enum status linear(const struct model *m, struct tensor x, struct tensor w,
                          struct tensor bias, struct tensor y) {
    struct matmul_args args = {.a = x, .b = w, .c = y, .bias = bias, .trans_b = true};
    return m->be->matmul(m->be, &args);
}

static enum status norm(const struct model *m, struct tensor x, struct tensor residual,
                        int64_t param, struct tensor sum, struct tensor out, struct tensor rstd) {
    struct norm_args args = {.x = x,
                             .residual = residual,
                             .weight = weight(m, param),
                             .eps = m->config.norm_eps,
                             .sum = sum,
                             .out = out,
                             .rstd = rstd};
    return m->be->norm(m->be, &args);
}

struct rope_args layer_rope(const struct model *m, const struct acts *a, int64_t layer, void *qkv) {
    const struct model_config *c = &m->config;
    int64_t n_kv = c->n_kv_head[layer];
    return (struct rope_args){.x = qkv,
                              .dtype = m->dtype,
                              .n_row = a->n_batch * a->n_seq,
                              .n_seq = a->n_seq,
                              .n_head = c->n_head + n_kv,
                              .head_dim = c->head_dim,
                              .row_stride = (c->n_head + 2 * n_kv) * c->head_dim,
                              .rotary = c->head_dim,
                              .inv_freq = m->inv_freq};
}

struct attention_args layer_attention(const struct model *m, const struct acts *a, int64_t layer,
                                      const struct kv_cache *cache) {
    const struct model_config *c = &m->config;
    const struct layer_acts *s = &a->layers[layer];
    int64_t d = c->head_dim, n_kv = c->n_kv_head[layer], row = (c->n_head + 2 * n_kv) * d;
    struct tensor qkv = acts_rows(a, s->qkv, row);
    struct heads in = {.batch = a->n_seq * row, .row = row, .head = d};
    struct attention_args args = {
        .dtype = m->dtype,
        .kv_dtype = m->dtype,
        .n_batch = a->n_batch,
        .n_query = a->n_seq,
        .n_key = a->n_seq,
        .n_head = c->n_head,
        .n_kv_head = n_kv,
        .head_dim = d,
        .window = c->sliding_window,
        .scale = 1.0 / __builtin_sqrt((double)d),
        .q = in,
        .k = in,
        .v = in,
        .o = {.data = s->att, .batch = a->n_seq * c->n_head * d, .row = c->n_head * d, .head = d},
        .lse = s->lse,
    };
    args.q.data = s->qkv;
    args.k.data = tensor_at(&qkv, c->n_head * d);
    args.v.data = tensor_at(&qkv, (c->n_head + n_kv) * d);
    if (cache) {
        struct tensor all =
            tensor_1d(cache->dtype, cache->data, cache->n_byte / dtype_size(cache->dtype));
        struct heads held = {
            .batch = n_kv * cache->capacity * d, .row = d, .head = cache->capacity * d};
        args.k = args.v = held;
        args.k.data = tensor_at(&all, cache->k_offset[layer]);
        args.v.data = tensor_at(&all, cache->v_offset[layer]);
        args.kv_dtype = cache->dtype;
        args.q_first = cache->length;
        args.n_key = cache->length + a->n_seq;
    }
    return args;
}

/* Copy this step's keys (or values) behind those the cache holds. */
static enum status append(const struct model *m, const struct acts *a, int64_t layer,
                          const struct kv_cache *cache, struct heads from, struct heads to) {
    int64_t d = m->config.head_dim;
    /* A view that starts at the head's first row: position `length` is that many rows on. */
    struct tensor rest = tensor_1d(cache->dtype, to.data, cache->capacity * d);
    to.data = tensor_at(&rest, cache->length * d);
    struct copy_heads_args args = {.from_dtype = m->dtype,
                                   .to_dtype = cache->dtype,
                                   .n_batch = a->n_batch,
                                   .n_row = a->n_seq,
                                   .n_head = m->config.n_kv_head[layer],
                                   .head_dim = d,
                                   .from = from,
                                   .to = to};
    return m->be->copy_heads(m->be, &args);
}

enum status layer_attend(const struct model *m, struct acts *a, int64_t layer, bool add_branch,
                         struct kv_cache *cache) {
    const struct model_config *c = &m->config;
    struct backend *be = m->be;
    const struct layer_acts *s = &a->layers[layer];
    const int64_t *at = m->layer_index[layer];
    int64_t w = c->width, d = c->head_dim, n_kv = c->n_kv_head[layer];
    int64_t row = (c->n_head + 2 * n_kv) * d;
    struct tensor none = {0}, sum1 = acts_rows(a, s->sum1, w), h1 = acts_rows(a, s->h1, w);
    struct tensor branch = acts_rows(a, a->branch, w), qkv = acts_rows(a, s->qkv, row);
    struct tensor before = add_branch ? acts_rows(a, a->layers[layer - 1].sum2, w) : sum1;

    TRY(norm(m, before, add_branch ? branch : none, at[ROLE_ATTN_NORM], sum1, h1,
             acts_rstd(a, s->rstd1)));
    struct tensor bias = none;
    if (c->qkv_bias)
        bias = model_span(m, m->data, m->dtype, at[ROLE_Q_BIAS], at[ROLE_V_BIAS]);
    TRY(linear(m, h1, model_span(m, m->data, m->dtype, at[ROLE_Q], at[ROLE_V]), bias, qkv));
    struct rope_args rope = layer_rope(m, a, layer, s->qkv);
    rope.first_position = cache ? cache->length : 0;
    TRY(be->rope(be, &rope));
    struct attention_args attention = layer_attention(m, a, layer, cache);
    if (cache) {
        struct attention_args fresh = layer_attention(m, a, layer, NULL);
        TRY(append(m, a, layer, cache, fresh.k, attention.k));
        TRY(append(m, a, layer, cache, fresh.v, attention.v));
    }
    TRY(be->attention(be, &attention));
    bias = c->o_bias ? weight(m, at[ROLE_O_BIAS]) : none;
    return linear(m, acts_rows(a, s->att, c->n_head * d), weight(m, at[ROLE_O]), bias, branch);
}

enum status layer_forward(const struct model *m, struct acts *a, int64_t layer, bool add_branch,
                          struct kv_cache *cache) {
    const struct model_config *c = &m->config;
    struct backend *be = m->be;
    const struct layer_acts *s = &a->layers[layer];
    const int64_t *at = m->layer_index[layer];
    int64_t w = c->width;
    struct tensor none = {0}, sum1 = acts_rows(a, s->sum1, w), sum2 = acts_rows(a, s->sum2, w);
    struct tensor h2 = acts_rows(a, s->h2, w), branch = acts_rows(a, a->branch, w);
    TRY(layer_attend(m, a, layer, add_branch, cache));
    TRY(norm(m, sum1, branch, at[ROLE_FFN_NORM], sum2, h2, acts_rstd(a, s->rstd2)));
    struct activation_args activation = {.in = acts_rows(a, s->gate_up, 2 * c->n_ff),
                                         .out = acts_rows(a, s->ff, c->n_ff),
                                         .kind = ACTIVATION_SWIGLU};
    TRY(linear(m, h2, model_span(m, m->data, m->dtype, at[ROLE_GATE], at[ROLE_UP]), none,
               activation.in));
    return be->activation(be, &activation);
}

static enum status run(const struct model *m, struct acts *a, struct kv_cache *cache) {
    const struct model_config *c = &m->config;
    struct tensor none = {0};
    struct embed_args embed = {.ids = a->ids,
                               .table = weight(m, m->index[ROLE_EMBED]),
                               .out = acts_rows(a, a->layers[0].sum1, c->width)};
    TRY(m->be->embed(m->be, &embed));
    for (int64_t l = 0; l < c->n_layer; l++) {
        TRY(layer_forward(m, a, l, l > 0, cache));
        TRY(linear(m, acts_rows(a, a->layers[l].ff, c->n_ff),
                   weight(m, m->layer_index[l][ROLE_DOWN]), none,
                   acts_rows(a, a->branch, c->width)));
    }
    return norm(m, acts_rows(a, a->layers[c->n_layer - 1].sum2, c->width),
                acts_rows(a, a->branch, c->width), m->index[ROLE_FINAL_NORM],
                acts_rows(a, a->sum_final, c->width), acts_hidden(a), acts_rstd(a, a->rstd_final));
}

enum status model_forward(const struct model *m, struct acts *a, struct kv_cache *cache,
                          const int32_t *ids, int64_t n_batch, int64_t n_seq) {
    int64_t n_row;
    if (n_batch < 1 || n_seq < 1 || !size_mul(n_batch, n_seq, &n_row) || n_row > a->max_row)
        return status_fail(STATUS_FAILED, "forward: %lld x %lld tokens, but the buffers hold %lld",
                           (long long)n_batch, (long long)n_seq, (long long)a->max_row);
    if (cache && (cache->n_batch != n_batch || n_seq > cache->capacity - cache->length))
        return status_fail(STATUS_FAILED,
                           "forward: the KV cache holds %lld of %lld tokens for %lld sequences; "
                           "%lld more for %lld do not fit",
                           (long long)cache->length, (long long)cache->capacity,
                           (long long)cache->n_batch, (long long)n_seq, (long long)n_batch);
    a->n_batch = n_batch;
    a->n_seq = n_seq;
    a->ids = ids;
    bool decodes = cache && n_seq == 1; /* many small ops: launched as one where that can be */
    if (decodes)
        TRY(backend_graph_begin(m->be, (int64_t)(intptr_t)a));
    enum status status = run(m, a, cache);
    if (decodes)
        status = backend_graph_end(m->be, status);
    TRY(status);
    if (cache)
        cache->length += n_seq;
    return STATUS_OK;
}

enum status model_logits(const struct model *m, const struct acts *a, int64_t first, int64_t n,
                         struct tensor logits) {
    struct tensor none = {0}, hidden = acts_hidden(a);
    return linear(m, tensor_rows(hidden, first, n), model_head(m), none, logits);
}
