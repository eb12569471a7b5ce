/* The op table: what a device must be able to do. One struct of arguments per op, dtype at run
 * time. Each slot starts as the reference (kernels/cpu/ref_*.c) and is overridden by faster code.
 *
 * Shapes: n_row = tokens in the batch (n_batch * n_seq); tensors are row-major and contiguous
 * unless strides are given (always in elements). "dtype" is the compute type: F32, BF16, and on
 * cpu-ref also F64 (gradient checks). The gradient type G is F32, or F64 when the compute type is
 * F64; weight gradients are always *accumulated* (+=) in G. All pointers are memory of this
 * backend's alloc unless said otherwise.
 *
 * Ops are enqueued on STREAM_COMPUTE and may return before they ran; `sync` waits. Results do not
 * depend on timing: the same inputs and thread count give the same bits.
 * An op returns a failure only for what it cannot do (message names op and argument). */
#ifndef REGROUP_KERNELS_BACKEND_H
#define REGROUP_KERNELS_BACKEND_H

#include "core/status.h"
#include "core/tensor.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct backend;

enum stream_id { STREAM_COMPUTE, STREAM_COPY };

/* out[i,:] = table[ids[i],:]. Backward: d_table[ids[i],:] += d_out[i,:], ids in row order. */
struct embed_args {
    const int32_t *ids;  /* [n_row], each in [0, table rows) */
    struct tensor table; /* [n_vocab, width] dtype; backward: d_table in G */
    struct tensor out;   /* [n_row, width] dtype; backward: d_out, read */
};

/* sum = x + residual (when residual.data), out = sum * rstd * weight, rstd = 1/sqrt(mean(sum^2) +
 * eps). RMSNorm (Zhang & Sennrich 2019) fused with the residual add in front of it. */
struct rmsnorm_args {
    struct tensor x, residual; /* [n_row, width] dtype; residual.data NULL: none */
    struct tensor weight;      /* [width] dtype */
    double eps;
    struct tensor sum;  /* [n_row, width] dtype; written when residual is given; may alias x */
    struct tensor out;  /* [n_row, width] dtype */
    struct tensor rstd; /* [n_row] G; data NULL: not kept */
};
/* d_x = d_residual (when data) + gradient through the norm; d_weight += .
 * d_residual is the gradient that reached `sum` past the norm; d_x may alias it. */
struct rmsnorm_bwd_args {
    struct tensor d_out, x, weight, rstd; /* x is what was normalised (sum) */
    struct tensor d_residual;             /* [n_row, width] dtype or data NULL */
    struct tensor d_x;                    /* [n_row, width] dtype */
    struct tensor d_weight;               /* [width] G; data NULL: not wanted */
};

/* c = op(a) op(b) + beta * c + bias. op transposes when trans_*; a is [m,k] (or [k,m] stored),
 * b [k,n] (or [n,k] stored), c [m,n]. y = x W^T of a linear layer is trans_b = true.
 * a, b share a dtype; c is that dtype or G; accumulation in fp32 or better; bias [n] of a's dtype
 * (data NULL: none); beta is 0 or 1 (with 0 old contents, even NaN, do not matter). */
struct matmul_args {
    struct tensor a, b, c, bias;
    bool trans_a, trans_b;
    double beta;
};

/* d_bias[j] += sum_i d_out[i,j] over a column range: d_out rows are row_stride apart. */
struct bias_bwd_args {
    const void *d_out; /* first element of the range */
    enum dtype dtype;
    int64_t n_row, n_col, row_stride;
    struct tensor d_bias; /* [n_col] G */
};

/* Rotary embedding in place on n_head consecutive heads of each row (q and k together when they
 * lie side by side). Half-split: pair (i, i + rotary/2) of a head turns by position * inv_freq[i].
 * Dimensions from `rotary` on are left alone. inverse: turns back (the backward pass).
 * position of row r is first_position + r % n_seq. */
struct rope_args {
    void *x; /* head h of row r starts at x + r * row_stride + h * head_dim */
    enum dtype dtype;
    int64_t n_row, n_seq, n_head, head_dim, row_stride;
    int64_t rotary;        /* rotated dimensions, even, <= head_dim */
    const float *inv_freq; /* [rotary / 2] */
    int64_t first_position;
    bool interleaved; /* pair (2i, 2i + 1) instead of (i, i + rotary/2) */
    bool inverse;
};

/* Heads inside a bigger buffer: element (b, t, h, i) at data + b*batch + t*row + h*head + i. */
struct heads {
    void *data;
    int64_t batch, row, head; /* strides in elements */
};

/* Softmax attention for MHA, GQA and MQA: query head h reads KV head h / (n_head / n_kv_head).
 * Query i of a sequence stands at key position q_first + i and sees keys j with
 * j <= q_first + i, and j > q_first + i - window when window > 0.
 * o = softmax(scale * q k^T) v; lse[b, h, i] = log sum_j exp(scale * q_i k_j) (natural log).
 * Never stores n_query x n_key. Serves training (q_first 0, n_query == n_key), prefill and decode
 * (k, v are the cache). */
struct attention_args {
    enum dtype dtype;    /* of q and o */
    enum dtype kv_dtype; /* of k and v; differs from dtype only for a cache */
    int64_t n_batch, n_query, n_key, n_head, n_kv_head, head_dim;
    int64_t q_first, window;
    double scale;
    struct heads q, k, v, o;
    void *lse; /* [n_batch, n_head, n_query] G, or NULL */
};
/* Gradients with the probabilities recomputed from lse (FlashAttention-2). d_q, d_k, d_v are
 * overwritten; d_k and d_v are summed over the query heads of the group. n_query == n_key. */
struct attention_bwd_args {
    struct attention_args fwd; /* as in the forward: q, k, v, o, lse are read */
    struct heads d_o, d_q, d_k, d_v;
};

/* Copy rows of K or V heads into the cache (or anywhere), converting the dtype. */
struct copy_heads_args {
    enum dtype from_dtype, to_dtype;
    int64_t n_batch, n_row, n_head, head_dim;
    struct heads from, to;
};

/* out[r, j] = silu(gate_up[r, j]) * gate_up[r, n_ff + j]: the two halves of one packed row. */
struct swiglu_args {
    struct tensor gate_up; /* [n_row, 2 * n_ff] dtype */
    struct tensor out;     /* [n_row, n_ff] dtype */
};
struct swiglu_bwd_args {
    struct tensor gate_up, d_out; /* as above */
    struct tensor d_gate_up;      /* [n_row, 2 * n_ff] dtype, overwritten; may alias gate_up */
};

/* out = a + b elementwise; out may alias either. */
struct add_args {
    struct tensor a, b, out; /* same shape and dtype */
};

/* out = scale * (a - b) elementwise; out may alias either. The gradient of a squared error, whose
 * sum_squares is the error itself. */
struct difference_args {
    struct tensor a, b, out; /* same shape and dtype */
    double scale;
};

/* The output head and its loss in one, over tiles: tokens x vocabulary is never stored for the
 * whole batch.
 *   logits = hidden head^T,   nll = logsumexp(logits) - logits[target]
 *   kl     = T^2 KL(softmax(teacher/T) || softmax(logits/T))        (Hinton et al. 2015)
 *   row gradient = grad_scale * (ce_weight * d nll + kl_weight * d kl)
 * target -1: the row counts nothing and gets zero gradient. Outputs may have data NULL. */
struct head_loss_args {
    struct tensor hidden;                       /* [n_row, width] dtype */
    struct tensor head;                         /* [n_vocab, width] dtype */
    const int32_t *targets;                     /* [n_row] */
    struct tensor teacher_hidden, teacher_head; /* [n_row, tw], [n_vocab, tw]; data NULL: no KL */
    double ce_weight, kl_weight, temperature, grad_scale;
    struct tensor nll, kl, agree; /* [n_row] F32 (F64 for F64): agree 1 when the argmaxes match */
    struct tensor d_hidden;       /* [n_row, width] dtype, overwritten; data NULL: no gradients */
    struct tensor d_head;         /* [n_vocab, width] G, += */
};

/* AdamW with decoupled decay (Loshchilov & Hutter 2019) on n consecutive parameters:
 *   g = grad * grad_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
 *   master -= lr * ( (m / c1) / (sqrt(v / c2) + eps) + decay * master ),  c = 1 - beta^step
 * then param = round(master). With param dtype == G, param and master may be the same memory. */
struct adamw_args {
    struct tensor param;              /* [n] dtype */
    struct tensor master, m, v, grad; /* [n] G */
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step; /* from 1 */
};

/* Sum of squares of x [n] into *out (host), accumulated in double in a fixed order; NaN and
 * infinities propagate. Waits for the result. */
struct sum_squares_args {
    struct tensor x;
    double *out;
};

/* out = convert(x), elementwise, any float dtypes. */
struct cast_args {
    struct tensor x, out;
};

#define BACKEND_OP(op) enum status (*op)(struct backend *, const struct op##_args *) MUST_USE
struct backend {
    const char *name;            /* "cpu-ref", "cpu", "cuda" */
    char detail[256];            /* for people: "AVX-512 + BF16, oneDNN 2.6.3, 2 threads" */
    bool host_memory;            /* device memory is ordinary memory (tests may look into it) */
    bool has_dtype[DTYPE_COUNT]; /* compute types */

    /* Memory. alloc: 64-byte aligned, zeroed. upload/download run on the stream; on the host side
     * the memory must stay valid until sync. `dst`/`src` may be any address inside an alloc. */
    enum status (*alloc)(struct backend *, int64_t bytes, const char *what, void **out) MUST_USE;
    void (*free)(struct backend *, void *p);
    enum status (*upload)(struct backend *, enum stream_id, void *dst, const void *host,
                          int64_t bytes) MUST_USE;
    enum status (*download)(struct backend *, enum stream_id, void *host, const void *src,
                            int64_t bytes) MUST_USE;
    enum status (*copy)(struct backend *, void *dst, const void *src, int64_t bytes) MUST_USE;
    enum status (*zero)(struct backend *, void *dst, int64_t bytes) MUST_USE;
    enum status (*sync)(struct backend *, enum stream_id) MUST_USE;
    /* What `waiter` is given from now on starts after what `on` was given so far. */
    enum status (*wait)(struct backend *, enum stream_id waiter, enum stream_id on) MUST_USE;
    void (*close)(struct backend *);

    BACKEND_OP(embed);
    enum status (*embed_bwd)(struct backend *, const struct embed_args *) MUST_USE;
    BACKEND_OP(rmsnorm);
    BACKEND_OP(rmsnorm_bwd);
    BACKEND_OP(matmul);
    BACKEND_OP(bias_bwd);
    BACKEND_OP(rope);
    BACKEND_OP(attention);
    BACKEND_OP(attention_bwd);
    BACKEND_OP(copy_heads);
    BACKEND_OP(swiglu);
    BACKEND_OP(swiglu_bwd);
    BACKEND_OP(add);
    BACKEND_OP(difference);
    BACKEND_OP(head_loss);
    BACKEND_OP(adamw);
    BACKEND_OP(sum_squares);
    BACKEND_OP(cast);

    void *state; /* the implementation's own: scratch, primitive caches, handles */
};

/* "auto" (the best there is), "cpu", "cpu-ref" ("cuda" when built in). Fails naming the known ones,
 * and when a required slot is empty. */
enum status backend_open(const char *name, struct backend **out) MUST_USE;
void backend_close(struct backend *be); /* NULL is fine */
/* "auto|cpu|cpu-ref...": those built in, for --help. */
const char *backend_names(void);

#ifdef __cplusplus
}
#endif

#endif
