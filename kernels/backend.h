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

/* sum = x + residual (when residual.data), out = (sum - mean) * rstd * weight + bias, rstd =
 * 1/sqrt(mean((sum - mean)^2) + eps). center: LayerNorm (Ba et al. 2016), mean is the row's;
 * otherwise it is 0: RMSNorm (Zhang & Sennrich 2019). Fused with the residual add in front of it.
 * The mean is not kept: the backward reads the whole row anyway and takes it again. */
struct norm_args {
    struct tensor x, residual; /* [n_row, width] dtype; residual.data NULL: none */
    struct tensor weight;      /* [width] dtype; data NULL: 1 */
    struct tensor bias;        /* [width] dtype; data NULL: 0 */
    double eps;
    struct tensor sum;  /* [n_row, width] dtype; written when residual is given; may alias x */
    struct tensor out;  /* [n_row, width] dtype */
    struct tensor rstd; /* [n_row] G; data NULL: not kept */
    bool center;
};
/* d_x = d_residual (when data) + gradient through the norm; d_weight += , d_bias += .
 * d_residual is the gradient that reached `sum` past the norm; d_x may alias it. */
struct norm_bwd_args {
    struct tensor d_out, x, rstd;   /* x is what was normalised (sum) */
    struct tensor weight;           /* data NULL: 1 */
    struct tensor d_residual;       /* [n_row, width] dtype or data NULL */
    struct tensor d_x;              /* [n_row, width] dtype */
    struct tensor d_weight, d_bias; /* [width] G; data NULL: not wanted */
    bool center;
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

/* What stands between the matmuls of a feed-forward branch. Gated: the two halves of one packed
 * row, out[r, j] = f(in[r, j]) * in[r, n_ff + j]; otherwise out[r, j] = f(in[r, j]).
 * gelu(x) = x Phi(x); gelu_tanh(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 * (Hendrycks & Gimpel 2016, Shazeer 2020). */
enum activation_kind {
    ACTIVATION_SWIGLU, /* gated, f = silu */
    ACTIVATION_GEGLU,  /* gated, f = gelu_tanh */
    ACTIVATION_GELU,
    ACTIVATION_GELU_TANH,
    ACTIVATION_COUNT
};
static inline bool activation_is_gated(enum activation_kind kind) {
    return kind == ACTIVATION_SWIGLU || kind == ACTIVATION_GEGLU;
}
struct activation_args {
    struct tensor in;  /* [n_row, 2 * n_ff when gated, else n_ff] dtype */
    struct tensor out; /* [n_row, n_ff] dtype; may alias in when not gated */
    enum activation_kind kind;
};
struct activation_bwd_args {
    struct tensor in, d_out; /* as above */
    struct tensor d_in;      /* shaped like in, overwritten; may alias in */
    enum activation_kind kind;
};

/* out = a + b elementwise; out may alias either. */
struct add_args {
    struct tensor a, b, out; /* same shape and dtype */
};

/* out = scale / size * (a - b) elementwise; out may alias either. The gradient of a squared error,
 * whose sum_squares is the error itself; with `size` the sum of squares of b, of the relative one.
 */
struct difference_args {
    struct tensor a, b, out; /* same shape and dtype */
    double scale;
    struct tensor size; /* [1] F64, where 0 stands for the number of elements; data NULL: 1 */
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
 *   g = grad * grad_scale * clipping;   m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2
 *   master -= lr * ( (m / c1) / (sqrt(v / c2) + eps) + decay * master ),  c = 1 - beta^step
 * then param = round(master). With param dtype == G, param and master may be the same memory.
 *
 * clipping = min(1, clip / (sqrt(last of grad_square) + 1e-6)); 1 when clip is 0. When any entry of
 * grad_square is not finite, param, master, m and v stay untouched: with one entry a step, nothing
 * moves from the first bad step on, though the host reads the numbers some steps later.
 *
 * rounding_seed 0: to nearest. Else a BF16 param is rounded stochastically (other dtypes never):
 *   mix(x): x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16   (32 bits)
 *   r = mix(mix(low(i) ^ low(seed)) ^ (high(i) + high(seed))) >> 16,   i the element's index,
 *   low and high 32 bits of a number; param = upper 16 bits of ((bits of master as F32) + r)
 * A NaN stays one. The expected value is master itself. */
struct adamw_args {
    struct tensor param;              /* [n] dtype */
    struct tensor master, m, v, grad; /* [n] G */
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t step; /* from 1 */
    double clip;  /* 0: never */
    /* [k] F64: sums of squares of all gradients, of the latest k steps, this one's last; data NULL:
     * taken as finite, and nothing is clipped. */
    struct tensor grad_square;
    uint64_t rounding_seed;
};
static inline uint32_t adamw_mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* out = sum of squares of x [n], accumulated in double in a fixed order; NaN and infinities
 * propagate. Stays on the device: download it to know it. */
struct sum_squares_args {
    struct tensor x;
    struct tensor out; /* [1] F64 */
};

/* out = convert(x), elementwise, any float dtypes. */
struct cast_args {
    struct tensor x, out;
};

/* The ops, X(op, its arguments without _args): every list of them is made from this one. Apart from
 * matmul, which is a library's, they are ours on every device. */
#define BACKEND_OWN_OPS(X)                                                                         \
    X(embed, embed)                                                                                \
    X(embed_bwd, embed)                                                                            \
    X(norm, norm)                                                                                  \
    X(norm_bwd, norm_bwd)                                                                          \
    X(bias_bwd, bias_bwd)                                                                          \
    X(rope, rope)                                                                                  \
    X(attention, attention)                                                                        \
    X(attention_bwd, attention_bwd)                                                                \
    X(copy_heads, copy_heads)                                                                      \
    X(activation, activation)                                                                      \
    X(activation_bwd, activation_bwd)                                                              \
    X(add, add)                                                                                    \
    X(difference, difference)                                                                      \
    X(head_loss, head_loss)                                                                        \
    X(adamw, adamw)                                                                                \
    X(sum_squares, sum_squares)                                                                    \
    X(cast, cast)
#define BACKEND_OPS(X) X(matmul, matmul) BACKEND_OWN_OPS(X)

#define BACKEND_SLOT(op, args)                                                                     \
    enum status (*op)(struct backend *, const struct args##_args *) MUST_USE;
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

    /* Optional (NULL: the ops run as they come): what STREAM_COMPUTE is given between the two is
     * recorded and launched at once. `key`, e.g. an address, says whose work it is: a recording of
     * nearly the same ops under the same key is cheaper. Between them no alloc, no sync, no
     * transfer. graph_end follows every graph_begin that succeeded, even when an op failed. */
    enum status (*graph_begin)(struct backend *, int64_t key) MUST_USE;
    enum status (*graph_end)(struct backend *) MUST_USE;

    BACKEND_OPS(BACKEND_SLOT)

    void *state; /* the implementation's own: scratch, primitive caches, handles */
};

/* "auto" (the best there is), "cpu", "cpu-ref" ("cuda" when built in). Fails naming the known ones,
 * and when a required slot is empty. */
enum status backend_open(const char *name, struct backend **out) MUST_USE;
void backend_close(struct backend *be); /* NULL is fine */
/* The optional slots, where there are any. */
enum status backend_graph_begin(struct backend *be, int64_t key) MUST_USE;
/* `status` is what the ops in between returned; theirs is the failure that is reported. */
enum status backend_graph_end(struct backend *be, enum status status) MUST_USE;
/* "auto|cpu|cpu-ref...": those built in, for --help. */
const char *backend_names(void);
/* One line: what the CUDA backend was built for and which device it sees, or why none. */
void backend_describe_cuda(char *out, int64_t n_out);

#ifdef __cplusplus
}
#endif

#endif
