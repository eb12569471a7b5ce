/* The backward pass: the forward's lines in reverse; weight gradients are accumulated. */
#include "model/acts.h"

/* The gradient of one linear layer y = x W^T: d_x = d_y W and d_W += d_y^T x. */
static enum status linear_bwd(const struct model *m, struct tensor d_y, struct tensor x,
                              struct tensor w, struct tensor d_x, struct tensor d_w) {
    struct matmul_args into_x = {.a = d_y, .b = w, .c = d_x};
    TRY(m->be->matmul(m->be, &into_x));
    if (!d_w.data)
        return STATUS_OK;
    struct matmul_args into_w = {.a = d_y, .b = x, .c = d_w, .trans_a = true, .beta = 1};
    return m->be->matmul(m->be, &into_w);
}

/* What a backward needs to know of its call. */
struct pass {
    const struct model *m;
    struct acts *a;
    void *grads;
    const bool *wanted; /* NULL: all */
};

static bool wants(const struct pass *p, int64_t param) {
    return param >= 0 && (!p->wanted || p->wanted[param]);
}

/* Gradient view of params [first, last], which one op fills together; data NULL when none of them
 * is wanted. */
static struct tensor grad(const struct pass *p, int64_t first, int64_t last) {
    bool any = false;
    for (int64_t i = first; i >= 0 && i <= last; i++)
        any |= wants(p, i);
    if (!any)
        return (struct tensor){0};
    return model_span(p->m, p->grads, model_grad_dtype(p->m), first, last);
}

/* Of what was filled together, the unwanted goes back to zero. */
static enum status drop_unwanted(const struct pass *p, int64_t first, int64_t last) {
    if (!grad(p, first, last).data)
        return STATUS_OK;
    for (int64_t i = first; i <= last; i++) {
        struct tensor t = model_view(p->m, p->grads, model_grad_dtype(p->m), i);
        if (!wants(p, i))
            TRY(p->m->be->zero(p->m->be, t.data, tensor_bytes(&t)));
    }
    return STATUS_OK;
}

static enum status norm_bwd(const struct pass *p, struct tensor d_out, struct tensor x,
                            int64_t param, void *rstd, struct tensor d_residual) {
    const struct model *m = p->m;
    struct norm_bwd_args args = {.d_out = d_out,
                                 .x = x,
                                 .weight = model_view(m, m->data, m->dtype, param),
                                 .rstd = acts_rstd(p->a, rstd),
                                 .d_residual = d_residual,
                                 .d_x = acts_rows(p->a, p->a->d_x, m->config.width),
                                 .d_weight = grad(p, param, param)};
    return m->be->norm_bwd(m->be, &args);
}

static enum status bias_bwd(const struct pass *p, struct tensor d_out, int64_t first_col,
                            int64_t param) {
    if (!wants(p, param))
        return STATUS_OK;
    struct tensor d_bias = grad(p, param, param);
    struct bias_bwd_args args = {.d_out = tensor_at(&d_out, first_col),
                                 .dtype = d_out.dtype,
                                 .n_row = d_out.shape[0],
                                 .n_col = d_bias.shape[0],
                                 .row_stride = d_out.shape[1],
                                 .d_bias = d_bias};
    return p->m->be->bias_bwd(p->m->be, &args);
}

static enum status ffn_bwd(const struct pass *p, int64_t layer) {
    const struct model *m = p->m;
    const struct model_config *c = &m->config;
    const struct acts *a = p->a;
    const struct layer_acts *s = &a->layers[layer];
    const int64_t *at = m->layer_index[layer];
    struct tensor d_x = acts_rows(a, a->d_x, c->width), d_h = acts_rows(a, a->d_h, c->width);
    struct tensor ff = acts_rows(a, s->ff, c->n_ff), d_ff = acts_rows(a, a->d_ff, c->n_ff);
    struct tensor gate_up = acts_rows(a, s->gate_up, 2 * c->n_ff);
    TRY(linear_bwd(m, d_x, ff, model_view(m, m->data, m->dtype, at[ROLE_DOWN]), d_ff,
                   grad(p, at[ROLE_DOWN], at[ROLE_DOWN])));
    struct activation_bwd_args activation = {
        .in = gate_up, .d_out = d_ff, .d_in = gate_up, .kind = ACTIVATION_SWIGLU};
    TRY(m->be->activation_bwd(m->be, &activation));
    TRY(linear_bwd(m, gate_up, acts_rows(a, s->h2, c->width),
                   model_span(m, m->data, m->dtype, at[ROLE_GATE], at[ROLE_UP]), d_h,
                   grad(p, at[ROLE_GATE], at[ROLE_UP])));
    TRY(drop_unwanted(p, at[ROLE_GATE], at[ROLE_UP]));
    return norm_bwd(p, d_h, acts_rows(a, s->sum2, c->width), at[ROLE_FFN_NORM], s->rstd2, d_x);
}

static enum status attention_bwd(const struct pass *p, int64_t layer) {
    const struct model *m = p->m;
    const struct model_config *c = &m->config;
    struct acts *a = p->a;
    const struct layer_acts *s = &a->layers[layer];
    const int64_t *at = m->layer_index[layer];
    int64_t d = c->head_dim, n_kv = c->n_kv_head[layer], row = (c->n_head + 2 * n_kv) * d;
    struct tensor d_x = acts_rows(a, a->d_x, c->width), d_h = acts_rows(a, a->d_h, c->width);
    struct tensor d_att = acts_rows(a, a->d_att, c->n_head * d),
                  d_qkv = acts_rows(a, a->d_qkv, row);
    if (c->o_bias)
        TRY(bias_bwd(p, d_x, 0, at[ROLE_O_BIAS]));
    TRY(linear_bwd(m, d_x, acts_rows(a, s->att, c->n_head * d),
                   model_view(m, m->data, m->dtype, at[ROLE_O]), d_att,
                   grad(p, at[ROLE_O], at[ROLE_O])));
    struct attention_bwd_args args = {.fwd = layer_attention(m, a, layer, NULL)};
    args.d_o = args.fwd.o;
    args.d_o.data = a->d_att;
    args.d_q = args.d_k = args.d_v = args.fwd.q;
    args.d_q.data = a->d_qkv;
    args.d_k.data = tensor_at(&d_qkv, c->n_head * d);
    args.d_v.data = tensor_at(&d_qkv, (c->n_head + n_kv) * d);
    TRY(m->be->attention_bwd(m->be, &args));
    struct rope_args rope = layer_rope(m, a, layer, a->d_qkv);
    rope.inverse = true;
    TRY(m->be->rope(m->be, &rope));
    if (c->qkv_bias) {
        TRY(bias_bwd(p, d_qkv, 0, at[ROLE_Q_BIAS]));
        TRY(bias_bwd(p, d_qkv, c->n_head * d, at[ROLE_K_BIAS]));
        TRY(bias_bwd(p, d_qkv, (c->n_head + n_kv) * d, at[ROLE_V_BIAS]));
    }
    TRY(linear_bwd(m, d_qkv, acts_rows(a, s->h1, c->width),
                   model_span(m, m->data, m->dtype, at[ROLE_Q], at[ROLE_V]), d_h,
                   grad(p, at[ROLE_Q], at[ROLE_V])));
    TRY(drop_unwanted(p, at[ROLE_Q], at[ROLE_V]));
    return norm_bwd(p, d_h, acts_rows(a, s->sum1, c->width), at[ROLE_ATTN_NORM], s->rstd1, d_x);
}

enum status model_attention_branch_bwd(const struct model *m, struct acts *a, int64_t layer,
                                       void *grads, const bool *wanted) {
    struct pass p = {.m = m, .a = a, .grads = grads, .wanted = wanted};
    struct tensor d_out = acts_d_hidden(a);
    TRY(m->be->copy(m->be, a->d_x, d_out.data, tensor_bytes(&d_out)));
    return attention_bwd(&p, layer);
}

enum status model_layer_attend_bwd(const struct model *m, struct acts *a, int64_t layer,
                                   const float *d_out, void *grads, const bool *wanted) {
    struct pass p = {.m = m, .a = a, .grads = grads, .wanted = wanted};
    struct tensor d_x = acts_rows(a, a->d_x, m->config.width);
    TRY(m->be->upload(m->be, STREAM_COMPUTE, d_x.data, d_out, tensor_bytes(&d_x)));
    TRY(attention_bwd(&p, layer));
    return m->be->sync(m->be, STREAM_COMPUTE);
}

enum status model_backward(const struct model *m, struct acts *a, void *grads, const bool *wanted) {
    const struct model_config *c = &m->config;
    struct pass p = {.m = m, .a = a, .grads = grads, .wanted = wanted};
    struct tensor none = {0};
    if (a->mode == ACTS_INFER || !a->ids)
        return status_fail(STATUS_FAILED, "backward: needs a forward in a training mode first");
    TRY(norm_bwd(&p, acts_d_hidden(a), acts_rows(a, a->sum_final, c->width),
                 m->index[ROLE_FINAL_NORM], a->rstd_final, none));
    for (int64_t l = c->n_layer - 1; l >= 0; l--) {
        if (a->mode == ACTS_RECOMPUTE)
            TRY(layer_forward(m, a, l, false, NULL));
        TRY(ffn_bwd(&p, l));
        TRY(attention_bwd(&p, l));
    }
    if (!wants(&p, m->index[ROLE_EMBED]))
        return STATUS_OK;
    struct embed_args embed = {.ids = a->ids,
                               .table = grad(&p, m->index[ROLE_EMBED], m->index[ROLE_EMBED]),
                               .out = acts_rows(a, a->d_x, c->width)};
    return m->be->embed_bwd(m->be, &embed);
}
