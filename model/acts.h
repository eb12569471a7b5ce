/* Inside model/: activations of one batch, carved from one buffer on the device. n = rows (tokens)
 * the buffers have room for; G is the gradient type. */
#ifndef REGROUP_MODEL_ACTS_H
#define REGROUP_MODEL_ACTS_H

#include "model/model.h"

/* What one layer leaves behind for its backward. */
struct layer_acts {
    void *sum1;      /* [n, width] residual stream that enters the attention branch */
    void *h1, *h2;   /* [n, width] normed inputs of the branches */
    void *rstd1;     /* [n] G */
    void *qkv;       /* [n, (n_head + 2 n_kv) * head_dim] after bias and rotation */
    void *att, *lse; /* [n, n_head * head_dim]; [n_batch, n_head, n_seq] G */
    void *sum2;      /* [n, width] residual stream that enters the feed-forward branch */
    void *rstd2;     /* [n] G */
    void *gate_up;   /* [n, 2 n_ff] */
    void *ff;        /* [n, n_ff] */
};

struct acts {
    struct backend *be;
    enum acts_mode mode;
    enum dtype dtype, grad_dtype;
    int64_t max_row;        /* rows of the buffers */
    int64_t n_batch, n_seq; /* of the latest forward */
    const int32_t *ids;     /* of the latest forward, borrowed */
    int64_t width;
    int64_t n_byte;
    void *memory;
    struct layer_acts *layers; /* [n_layer]; entries share memory where the mode lets them */
    void *branch;              /* [n, width] what a branch adds to the stream */
    void *sum_final, *rstd_final, *hidden; /* [n, width], [n] G, [n, width] */
    /* Backward only: NULL in ACTS_INFER. */
    void *d_hidden, *d_x, *d_h; /* [n, width] */
    void *d_qkv, *d_att, *d_ff; /* as qkv, att, ff; gate_up's gradient replaces gate_up */
};

/* [rows of the latest forward, cols] view of one of the buffers. */
struct tensor acts_rows(const struct acts *a, void *data, int64_t cols);
struct tensor acts_rstd(const struct acts *a, void *data);

/* One layer from its input to gate_up and ff; `branch` of the layer before is added first when
 * `add_branch`. With `cache`, keys and values go through it at position cache->length. */
enum status layer_forward(const struct model *m, struct acts *a, int64_t layer, bool add_branch,
                          struct kv_cache *cache) MUST_USE;
/* Its first half: up to what o_proj adds to the stream, in `branch`. */
enum status layer_attend(const struct model *m, struct acts *a, int64_t layer, bool add_branch,
                         struct kv_cache *cache) MUST_USE;
/* The rotation of a packed [q | k | v] buffer of the layer: its q and k heads, which lie side by
 * side, from position 0. */
struct rope_args layer_rope(const struct model *m, const struct acts *a, int64_t layer, void *qkv);
/* The attention call of a layer, as the forward makes it and the backward needs it again. */
struct attention_args layer_attention(const struct model *m, const struct acts *a, int64_t layer,
                                      const struct kv_cache *cache);

#endif
