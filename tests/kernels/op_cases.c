/* The declarations. A function declares an op for the dimensions in c->dim; the table at the end
 * lists the shapes. Buffers are named as the op's arguments are. */
#include "op_cases.h"

#include <stdio.h>
#include <string.h>

static int64_t add(struct op_case *c, const char *name, enum buffer_kind kind,
                   enum buffer_role role, int64_t count) {
    c->buffer[c->n_buffer] = (struct op_buffer){name, kind, role, count, count, -1, 1, NULL, NULL};
    return c->n_buffer++;
}
static void range(struct op_case *c, double low, double high) {
    c->buffer[c->n_buffer - 1].low = low;
    c->buffer[c->n_buffer - 1].high = high;
}
static void traffic(struct op_case *c, int64_t most) {
    struct op_buffer *b = &c->buffer[c->n_buffer - 1];
    b->traffic = b->count < most ? b->count : most;
}
static void seed_of(struct op_case *c, const char *name) {
    c->buffer[c->n_buffer - 1].seed_of = name;
}
static void grad_of(struct op_case *c, const char *name) {
    c->buffer[c->n_buffer - 1].grad_of = name;
}
#define IN(name, count) add(c, name, BUFFER_COMPUTE, ROLE_IN, count)
#define OUT(name, count) add(c, name, BUFFER_COMPUTE, ROLE_OUT, count)
#define FORWARD(name, count) add(c, name, BUFFER_COMPUTE, ROLE_FORWARD, count)

/* Buffer `i` as a tensor. */
static struct tensor vec(const struct op_case *c, enum dtype t, void *const *data, int64_t i) {
    return tensor_1d(op_buffer_dtype(&c->buffer[i], t), data[i], c->buffer[i].count);
}
static struct tensor mat(const struct op_case *c, enum dtype t, void *const *data, int64_t i,
                         int64_t cols) {
    struct tensor x = vec(c, t, data, i);
    return tensor_2d(x.dtype, x.data, x.shape[0] / cols, cols);
}
#define RUN(name)                                                                                  \
    static enum status name(struct backend *be, const struct op_case *c, enum dtype t,             \
                            void *const *data)
#define VEC(i) vec(c, t, data, i)
#define MAT(i, cols) mat(c, t, data, i, cols)

/* embed: rows, vocabulary, width */
RUN(run_embed) {
    const int64_t w = c->dim[2];
    return be->embed(be, &(struct embed_args){data[0], MAT(1, w), MAT(2, w)});
}
static void declare_embed(struct op_case *c) {
    const int64_t *d = c->dim;
    c->op = "embed";
    add(c, "ids", BUFFER_I32, ROLE_IN, d[0]);
    range(c, 0, (double)d[1]);
    IN("table", d[1] * d[2]);
    traffic(c, d[0] * d[2]);
    OUT("out", d[0] * d[2]);
    c->run = run_embed;
}
RUN(run_embed_bwd) {
    const int64_t w = c->dim[2];
    return be->embed_bwd(be, &(struct embed_args){data[0], MAT(2, w), MAT(1, w)});
}
RUN(forward_embed) {
    const int64_t w = c->dim[2];
    return be->embed(be, &(struct embed_args){data[0], MAT(3, w), MAT(4, w)});
}
static void declare_embed_bwd(struct op_case *c) {
    const int64_t *d = c->dim;
    c->op = "embed_bwd";
    add(c, "ids", BUFFER_I32, ROLE_IN, d[0]);
    range(c, 0, (double)d[1]);
    IN("d_out", d[0] * d[2]);
    seed_of(c, "out");
    add(c, "d_table", BUFFER_GRAD, ROLE_INOUT, d[1] * d[2]);
    traffic(c, d[0] * d[2]);
    grad_of(c, "table");
    add(c, "table", BUFFER_COMPUTE, ROLE_IN, c->bench ? 0 : d[1] * d[2]);
    FORWARD("out", c->bench ? 0 : d[0] * d[2]);
    c->run = run_embed_bwd;
    c->forward = forward_embed;
}

/* norm: rows, width, residual?, center?, no weight?, bias? */
static struct tensor optional(struct tensor t) {
    return tensor_count(&t) ? t : (struct tensor){0};
}
RUN(run_norm) {
    const int64_t w = c->dim[1];
    struct norm_args a = {.x = MAT(0, w), .eps = 1e-5, .out = MAT(2, w), .center = c->dim[3]};
    a.weight = optional(VEC(1)), a.rstd = VEC(3);
    if (c->dim[2])
        a.residual = MAT(4, w), a.sum = MAT(5, w);
    a.bias = optional(VEC(c->n_buffer - 1));
    return be->norm(be, &a);
}
static void declare_norm(struct op_case *c) {
    const int64_t *d = c->dim, n = d[0] * d[1];
    c->op = d[2] ? "norm+residual" : "norm";
    IN("x", n);
    IN("weight", d[4] ? 0 : d[1]);
    OUT("out", n);
    add(c, "rstd", BUFFER_GRAD, ROLE_OUT, d[0]);
    if (d[2]) {
        IN("residual", n);
        OUT("sum", n);
    }
    IN("bias", d[5] ? d[1] : 0); /* last */
    c->run = run_norm;
}
RUN(run_norm_bwd) {
    const int64_t w = c->dim[1];
    struct norm_bwd_args a = {.x = MAT(0, w), .rstd = VEC(2), .center = c->dim[3]};
    a.weight = optional(VEC(1)), a.d_out = MAT(3, w), a.d_x = MAT(4, w);
    a.d_weight = optional(VEC(5)), a.d_bias = optional(VEC(c->n_buffer - 1));
    if (c->dim[2])
        a.d_residual = MAT(7, w);
    return be->norm_bwd(be, &a);
}
RUN(forward_norm) {
    const int64_t w = c->dim[1];
    return be->norm(be, &(struct norm_args){.x = MAT(0, w),
                                            .weight = optional(VEC(1)),
                                            .bias = optional(VEC(c->n_buffer - 2)),
                                            .eps = 1e-5,
                                            .rstd = VEC(2),
                                            .out = MAT(6, w),
                                            .center = c->dim[3]});
}
static void declare_norm_bwd(struct op_case *c) {
    const int64_t *d = c->dim, n = d[0] * d[1];
    c->op = d[2] ? "norm_bwd+residual" : "norm_bwd";
    IN("x", n);
    IN("weight", d[4] ? 0 : d[1]);
    add(c, "rstd", BUFFER_GRAD, ROLE_DERIVED, d[0]);
    IN("d_out", n);
    seed_of(c, "out");
    OUT("d_x", n);
    grad_of(c, "x");
    add(c, "d_weight", BUFFER_GRAD, ROLE_INOUT, d[4] ? 0 : d[1]);
    if (!d[4])
        grad_of(c, "weight");
    FORWARD("out", n);
    if (d[2]) {
        IN("d_residual", n);
        seed_of(c, "x");
    }
    IN("bias", d[5] ? d[1] : 0); /* this and the next stand last */
    traffic(c, 0);
    add(c, "d_bias", BUFFER_GRAD, ROLE_INOUT, d[5] ? d[1] : 0);
    if (d[5])
        grad_of(c, "bias");
    c->run = run_norm_bwd;
    c->prepare = c->forward = forward_norm;
}

/* matmul: m, n, k, trans_a, trans_b, beta, bias?, c in G? */
RUN(run_matmul) {
    const int64_t *d = c->dim;
    struct matmul_args a = {.a = MAT(0, d[3] ? d[0] : d[2]), .b = MAT(1, d[4] ? d[2] : d[1])};
    a.c = MAT(2, d[1]), a.trans_a = d[3], a.trans_b = d[4], a.beta = (double)d[5];
    if (d[6])
        a.bias = VEC(3);
    return be->matmul(be, &a);
}
static void declare_matmul(struct op_case *c) {
    const int64_t *d = c->dim;
    c->op = "matmul";
    IN("a", d[0] * d[2]);
    IN("b", d[1] * d[2]);
    add(c, "c", d[7] ? BUFFER_GRAD : BUFFER_COMPUTE, d[5] ? ROLE_INOUT : ROLE_OUT, d[0] * d[1]);
    if (d[6])
        IN("bias", d[1]);
    c->run = run_matmul;
    c->flop = 2.0 * (double)d[0] * (double)d[1] * (double)d[2];
}
/* A linear layer y = x W^T + bias and its three gradients: rows, in, out */
RUN(run_linear_bwd) {
    const int64_t *d = c->dim;
    struct matmul_args dx = {.a = MAT(3, d[2]), .b = MAT(1, d[1]), .c = MAT(4, d[1])};
    struct matmul_args dw = {.a = MAT(3, d[2]), .b = MAT(0, d[1]), .c = MAT(5, d[1])};
    dw.trans_a = true, dw.beta = 1;
    TRY(be->matmul(be, &dx));
    TRY(be->matmul(be, &dw));
    return be->bias_bwd(be, &(struct bias_bwd_args){data[3], t, d[0], d[2], d[2], VEC(6)});
}
RUN(forward_linear) {
    const int64_t *d = c->dim;
    return be->matmul(be, &(struct matmul_args){.a = MAT(0, d[1]),
                                                .b = MAT(1, d[1]),
                                                .bias = VEC(2),
                                                .trans_b = true,
                                                .c = MAT(7, d[2])});
}
static void declare_linear_bwd(struct op_case *c) {
    const int64_t *d = c->dim;
    c->op = "linear_bwd";
    IN("x", d[0] * d[1]);
    IN("weight", d[1] * d[2]);
    IN("bias", d[2]);
    IN("d_y", d[0] * d[2]);
    seed_of(c, "y");
    OUT("d_x", d[0] * d[1]);
    grad_of(c, "x");
    add(c, "d_weight", BUFFER_GRAD, ROLE_INOUT, d[1] * d[2]);
    grad_of(c, "weight");
    add(c, "d_bias", BUFFER_GRAD, ROLE_INOUT, d[2]);
    grad_of(c, "bias");
    FORWARD("y", d[0] * d[2]);
    c->run = run_linear_bwd;
    c->forward = forward_linear;
    c->flop = 4.0 * (double)d[0] * (double)d[1] * (double)d[2];
}

/* bias_bwd: rows, columns, row stride */
RUN(run_bias_bwd) {
    const int64_t *d = c->dim;
    return be->bias_bwd(be, &(struct bias_bwd_args){data[0], t, d[0], d[1], d[2], VEC(1)});
}
static void declare_bias_bwd(struct op_case *c) {
    const int64_t *d = c->dim;
    c->op = "bias_bwd";
    IN("d_out", d[0] * d[2]);
    add(c, "d_bias", BUFFER_GRAD, ROLE_INOUT, d[1]);
    c->run = run_bias_bwd;
}

/* rope: sequences, length, heads, head_dim, row stride, rotary, first position, interleaved? */
static struct rope_args rope_args(const struct op_case *c, enum dtype t, void *x, void *inv_freq) {
    const int64_t *d = c->dim;
    return (struct rope_args){x,    t,    d[0] * d[1], d[1], d[2], d[3],
                              d[4], d[5], inv_freq,    d[6], d[7], false};
}
RUN(run_rope) {
    struct rope_args a = rope_args(c, t, data[0], data[1]);
    return be->rope(be, &a);
}
static void declare_rope(struct op_case *c) {
    const int64_t *d = c->dim;
    c->op = d[7] ? "rope interleaved" : "rope";
    add(c, "x", BUFFER_COMPUTE, ROLE_INOUT, d[0] * d[1] * d[4]);
    add(c, "inv_freq", BUFFER_F32, ROLE_IN, d[5] / 2);
    range(c, 0, 1);
    c->run = run_rope;
}
/* The gradient is the inverse rotation of what arrives. */
RUN(run_rope_bwd) {
    struct rope_args a = rope_args(c, t, data[3], data[1]);
    a.inverse = true;
    TRY(be->copy(be, data[3], data[2], c->buffer[2].count * dtype_size(t)));
    return be->rope(be, &a);
}
RUN(forward_rope) {
    struct rope_args a = rope_args(c, t, data[4], data[1]);
    TRY(be->copy(be, data[4], data[0], c->buffer[0].count * dtype_size(t)));
    return be->rope(be, &a);
}
static void declare_rope_bwd(struct op_case *c) {
    const int64_t *d = c->dim, n = d[0] * d[1] * d[4];
    c->op = d[7] ? "rope inverse interleaved" : "rope inverse";
    IN("x", n);
    add(c, "inv_freq", BUFFER_F32, ROLE_IN, d[5] / 2);
    range(c, 0, 1);
    IN("d_y", n);
    seed_of(c, "y");
    OUT("d_x", n);
    grad_of(c, "x");
    FORWARD("y", n);
    c->run = run_rope_bwd;
    c->forward = forward_rope;
}

/* attention: batch, queries, keys, heads, KV heads, head_dim, first query, window, BF16 cache?
 * Without a first query and with as many keys as queries q, k and v lie packed in one buffer; else
 * k and v are a cache [batch, KV head, capacity, head_dim] with 3 unused positions at the end. */
static bool packed(const int64_t *d) {
    return d[6] == 0 && d[1] == d[2];
}
static struct heads heads(const struct op_case *c, enum dtype t, void *data, int64_t head) {
    int64_t d = c->dim[5], row = (c->dim[3] + 2 * c->dim[4]) * d;
    return (struct heads){(char *)data + head * d * dtype_size(t), c->dim[1] * row, row, d};
}
static struct attention_args attention_args(const struct op_case *c, enum dtype t,
                                            void *const *data) {
    const int64_t *d = c->dim, hd = d[3] * d[5];
    struct attention_args a = {.dtype = t, .kv_dtype = t, .n_batch = d[0], .n_query = d[1]};
    a.n_key = d[2], a.n_head = d[3], a.n_kv_head = d[4], a.head_dim = d[5], a.q_first = d[6];
    a.window = d[7], a.scale = 0.37, a.lse = data[4];
    a.o = (struct heads){data[3], d[1] * hd, hd, d[5]};
    if (packed(d)) {
        a.q = heads(c, t, data[0], 0);
        a.k = heads(c, t, data[0], d[3]);
        a.v = heads(c, t, data[0], d[3] + d[4]);
    } else {
        int64_t head = (d[2] + 3) * d[5];
        a.kv_dtype = op_buffer_dtype(&c->buffer[1], t);
        a.q = (struct heads){data[0], d[1] * hd, hd, d[5]};
        a.k = (struct heads){data[1], d[4] * head, d[5], head};
        a.v = (struct heads){data[2], d[4] * head, d[5], head};
    }
    return a;
}
RUN(run_attention) {
    struct attention_args a = attention_args(c, t, data);
    return be->attention(be, &a);
}
static double visible_pairs(const int64_t *d) {
    double pairs = 0;
    for (int64_t i = 0; i < d[1]; i++) {
        int64_t seen = d[6] + i + 1 < d[2] ? d[6] + i + 1 : d[2];
        pairs += (double)(d[7] > 0 && d[7] < seen ? d[7] : seen);
    }
    return pairs * (double)(d[0] * d[3]);
}
static void attention_buffers(struct op_case *c, enum buffer_role results) {
    const int64_t *d = c->dim;
    enum buffer_kind kv = d[8] ? BUFFER_BF16 : BUFFER_COMPUTE;
    int64_t cache = packed(d) ? 0 : d[0] * d[4] * (d[2] + 3) * d[5];
    IN("q", d[0] * d[1] * (packed(d) ? d[3] + 2 * d[4] : d[3]) * d[5]);
    add(c, "k", kv, ROLE_IN, cache);
    add(c, "v", kv, ROLE_IN, cache);
    add(c, "o", BUFFER_COMPUTE, results, d[0] * d[1] * d[3] * d[5]);
    add(c, "lse", BUFFER_GRAD, results, d[0] * d[3] * d[1]);
}
static void declare_attention(struct op_case *c) {
    c->op = packed(c->dim) ? "attention" : "attention cached";
    attention_buffers(c, ROLE_OUT);
    c->run = run_attention;
    c->flop = 4 * visible_pairs(c->dim) * (double)c->dim[5];
}
RUN(run_attention_bwd) {
    const int64_t *d = c->dim, hd = d[3] * d[5];
    struct attention_bwd_args a = {.fwd = attention_args(c, t, data)};
    a.d_o = (struct heads){data[5], d[1] * hd, hd, d[5]};
    a.d_q = heads(c, t, data[6], 0);
    a.d_k = heads(c, t, data[6], d[3]);
    a.d_v = heads(c, t, data[6], d[3] + d[4]);
    return be->attention_bwd(be, &a);
}
static void declare_attention_bwd(struct op_case *c) {
    const int64_t *d = c->dim;
    c->op = "attention_bwd";
    attention_buffers(c, ROLE_DERIVED);
    IN("d_o", d[0] * d[1] * d[3] * d[5]);
    seed_of(c, "o");
    OUT("d_qkv", c->buffer[0].count);
    grad_of(c, "q");
    c->run = run_attention_bwd;
    c->prepare = c->forward = run_attention;
    c->flop = 10 * visible_pairs(d) * (double)d[5];
}

/* copy_heads: batch, rows, heads, head_dim, kind of the target. Rows of a packed buffer with one
 * more head, into a cache with two more positions. */
RUN(run_copy_heads) {
    const int64_t *d = c->dim, row = (d[2] + 1) * d[3], head = (d[1] + 2) * d[3];
    struct copy_heads_args a = {t,
                                op_buffer_dtype(&c->buffer[1], t),
                                d[0],
                                d[1],
                                d[2],
                                d[3],
                                {data[0], d[1] * row, row, d[3]},
                                {data[1], d[2] * head, d[3], head}};
    return be->copy_heads(be, &a);
}
static void declare_copy_heads(struct op_case *c) {
    const int64_t *d = c->dim;
    c->op = "copy_heads";
    IN("from", d[0] * d[1] * (d[2] + 1) * d[3]);
    add(c, "to", (enum buffer_kind)d[4], ROLE_INOUT, d[0] * (d[1] + 2) * d[2] * d[3]);
    c->run = run_copy_heads;
}

/* activation: rows, n_ff, kind */
static enum activation_kind kind(const struct op_case *c) {
    return (enum activation_kind)c->dim[2];
}
static int64_t halves(const struct op_case *c) {
    return activation_is_gated(kind(c)) ? 2 : 1;
}
RUN(run_activation) {
    const int64_t f = c->dim[1];
    return be->activation(be, &(struct activation_args){MAT(0, halves(c) * f), MAT(1, f), kind(c)});
}
static void declare_activation(struct op_case *c) {
    c->op = "activation";
    IN("in", halves(c) * c->dim[0] * c->dim[1]);
    range(c, -6, 6);
    OUT("out", c->dim[0] * c->dim[1]);
    c->run = run_activation;
}
RUN(run_activation_bwd) {
    const int64_t f = c->dim[1], in = halves(c) * f;
    return be->activation_bwd(
        be, &(struct activation_bwd_args){MAT(0, in), MAT(1, f), MAT(2, in), kind(c)});
}
RUN(forward_activation) {
    const int64_t f = c->dim[1];
    return be->activation(be, &(struct activation_args){MAT(0, halves(c) * f), MAT(3, f), kind(c)});
}
static void declare_activation_bwd(struct op_case *c) {
    const int64_t n = c->dim[0] * c->dim[1];
    c->op = "activation_bwd";
    IN("in", halves(c) * n);
    range(c, -6, 6);
    IN("d_out", n);
    seed_of(c, "out");
    OUT("d_in", halves(c) * n);
    grad_of(c, "in");
    FORWARD("out", n);
    c->run = run_activation_bwd;
    c->forward = forward_activation;
}

/* add, difference, cast, sum_squares, adamw: elements (difference: relative?; cast: kind of the
 * result; adamw: clip * 1000, rounding seed) */
RUN(run_add) {
    return be->add(be, &(struct add_args){VEC(0), VEC(1), VEC(2)});
}
static void declare_add(struct op_case *c) {
    c->op = "add";
    IN("a", c->dim[0]);
    IN("b", c->dim[0]);
    OUT("out", c->dim[0]);
    c->run = run_add;
}
RUN(run_difference) {
    return be->difference(
        be, &(struct difference_args){VEC(0), VEC(1), VEC(2), 0.75, optional(VEC(3))});
}
static void declare_difference(struct op_case *c) {
    c->op = "difference";
    IN("a", c->dim[0]);
    IN("b", c->dim[0]);
    OUT("out", c->dim[0]);
    add(c, "size", BUFFER_F64, ROLE_IN, c->dim[1]);
    range(c, 3, 4);
    c->run = run_difference;
}
RUN(run_cast) {
    return be->cast(be, &(struct cast_args){VEC(0), VEC(1)});
}
static void declare_cast(struct op_case *c) {
    c->op = "cast";
    IN("x", c->dim[0]);
    add(c, "out", (enum buffer_kind)c->dim[1], ROLE_OUT, c->dim[0]);
    c->run = run_cast;
}
RUN(run_sum_squares) {
    return be->sum_squares(be, &(struct sum_squares_args){VEC(0), VEC(1)});
}
static void declare_sum_squares(struct op_case *c) {
    c->op = "sum_squares";
    IN("x", c->dim[0]);
    add(c, "out", BUFFER_F64, ROLE_OUT, 1);
    c->run = run_sum_squares;
}
RUN(run_adamw) {
    struct adamw_args a = {VEC(0), VEC(1), VEC(2), VEC(3), VEC(4), 1e-2,
                           0.9,    0.95,   1e-8,   0.1,    0.5,    .step = 3};
    a.clip = (double)c->dim[1] / 1000;
    a.grad_square = optional(VEC(5));
    a.rounding_seed = (uint64_t)c->dim[2];
    return be->adamw(be, &a);
}
static void declare_adamw(struct op_case *c) {
    c->op = "adamw";
    OUT("param", c->dim[0]);
    add(c, "master", BUFFER_GRAD, ROLE_INOUT, c->dim[0]);
    add(c, "m", BUFFER_GRAD, ROLE_INOUT, c->dim[0]);
    add(c, "v", BUFFER_GRAD, ROLE_INOUT, c->dim[0]);
    range(c, 0, 1);
    add(c, "grad", BUFFER_GRAD, ROLE_IN, c->dim[0]);
    add(c, "grad_square", BUFFER_F64, ROLE_IN, c->dim[1] ? 2 : 0);
    range(c, 4, 9); /* a norm of 2 to 3 */
    c->run = run_adamw;
}

/* head_loss: rows, vocabulary, width, teacher's width (0: none), temperature * 10, gradients? */
enum { LOSS_CE_64 = 24, LOSS_KL_64 = 40 }; /* weights in 64ths: exact in every dtype */
static enum status head_loss(struct backend *be, const struct op_case *c, enum dtype t,
                             void *const *data, bool gradients) {
    const int64_t *d = c->dim;
    struct head_loss_args a = {.hidden = MAT(0, d[2]), .head = MAT(1, d[2]), .targets = data[2]};
    if (d[3])
        a.teacher_hidden = MAT(3, d[3]), a.teacher_head = MAT(4, d[3]);
    a.ce_weight = LOSS_CE_64 / 64.0, a.kl_weight = LOSS_KL_64 / 64.0;
    a.temperature = (double)d[4] / 10, a.grad_scale = 0.5;
    a.nll = VEC(5), a.kl = VEC(6), a.agree = VEC(7);
    if (gradients)
        a.d_hidden = MAT(8, d[2]), a.d_head = MAT(9, d[2]);
    return be->head_loss(be, &a);
}
RUN(run_head_loss) {
    return head_loss(be, c, t, data, c->dim[5]);
}
RUN(forward_head_loss) {
    return head_loss(be, c, t, data, false);
}
static void declare_head_loss(struct op_case *c) {
    const int64_t *d = c->dim;
    c->op = d[3] ? "head_loss distill" : "head_loss";
    IN("hidden", d[0] * d[2]);
    IN("head", d[1] * d[2]);
    add(c, "targets", BUFFER_I32, ROLE_IN, d[0]);
    range(c, -1, (double)d[1]);
    IN("teacher_hidden", d[0] * d[3]);
    IN("teacher_head", d[1] * d[3]);
    add(c, "nll", BUFFER_GRAD, ROLE_OUT, d[0]);
    add(c, "kl", BUFFER_GRAD, ROLE_OUT, d[0]);
    add(c, "agree", BUFFER_GRAD, ROLE_OUT, d[0]);
    if (d[5]) {
        OUT("d_hidden", d[0] * d[2]);
        grad_of(c, "hidden");
        add(c, "d_head", BUFFER_GRAD, ROLE_INOUT, d[1] * d[2]);
        grad_of(c, "head");
        IN("seed_nll", d[0]);
        range(c, LOSS_CE_64 / 128.0, LOSS_CE_64 / 128.0);
        seed_of(c, "nll");
        IN("seed_kl", d[0]);
        range(c, LOSS_KL_64 / 128.0, LOSS_KL_64 / 128.0);
        seed_of(c, "kl");
        c->forward = forward_head_loss;
    }
    c->run = run_head_loss;
    c->flop = 2.0 * (double)d[0] * (double)d[1] * (double)((d[5] ? 3 : 1) * d[2] + d[3]);
}

static const struct {
    void (*declare)(struct op_case *);
    bool bench;
    int64_t dim[CASE_DIMS];
} shapes[] = {
#include "op_shapes.inc"
};

bool op_case_get(int64_t i, struct op_case *c) {
    if (i < 0 || i >= (int64_t)(sizeof shapes / sizeof *shapes))
        return false;
    memset(c, 0, sizeof *c);
    memcpy(c->dim, shapes[i].dim, sizeof c->dim);
    c->bench = shapes[i].bench;
    shapes[i].declare(c);
    int64_t last = CASE_DIMS, used = 0;
    while (last > 1 && !c->dim[last - 1])
        last--;
    for (int64_t k = 0; k < last; k++)
        used += snprintf(c->shape + used, sizeof c->shape - (size_t)used, k ? "x%lld" : "%lld",
                         (long long)c->dim[k]);
    return true;
}
