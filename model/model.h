/* A model on a device: parameters, activations, KV cache, forward and backward. */
#ifndef REGROUP_MODEL_MODEL_H
#define REGROUP_MODEL_MODEL_H

#include "core/memory.h"
#include "kernels/backend.h"
#include "model/arch.h"

struct param {
    char name[128];
    enum role role;
    int64_t layer;         /* -1 outside layers */
    int64_t offset, count; /* elements in the flat buffer */
    int rank;
    int64_t shape[2];
};

struct model {
    struct model_config config;
    struct backend *be; /* borrowed */
    enum dtype dtype;   /* compute type, and that of `data` */
    struct param *params;
    int64_t n_param_tensors, n_param;   /* tensors; elements in the flat buffer, padding included */
    void *data;                         /* [n_param] dtype, on the device */
    float *inv_freq;                    /* [head_dim / 2], on the device */
    int64_t index[ROLE_COUNT];          /* params[] index of roles outside layers; -1: absent */
    int64_t (*layer_index)[ROLE_COUNT]; /* [n_layer], likewise */
};

/* Read a model folder: config.json checked against every tensor's shape; weights converted to
 * `dtype` and uploaded. A NaN or infinity in the weights is reported as a warning that names the
 * tensor and how many. */
enum status model_open(const char *dir, struct backend *be, enum dtype dtype,
                       struct model **out) MUST_USE;
/* Random initialisation: normal(0, 0.02), o and down scaled by 1/sqrt(2 n_layer), norms 1. */
enum status model_new(const struct model_config *config, struct backend *be, enum dtype dtype,
                      uint64_t seed, struct model **out) MUST_USE;
void model_close(struct model *m);
/* Weights as model.safetensors in `file_dtype` (from `source`, a flat device buffer laid out like
 * m->data in `source_dtype`; NULL: m->data), and config.json: the text of config_from/config.json
 * edited (NULL: a fresh one), with the tokenizer and generation files beside it copied. `dir`
 * exists (staged by the caller). */
enum status model_save(const struct model *m, const char *dir, const void *source,
                       enum dtype source_dtype, enum dtype file_dtype,
                       const char *config_from) MUST_USE;
/* Tokenizer and generation files of a model folder (everything but weights, config.json and
 * subfolders) into another. */
enum status model_copy_side_files(const char *from, const char *to) MUST_USE;
int64_t model_param_count(const struct model *m); /* without padding */
/* Is this one of the files that hold weights or their index (by its ending)? */
bool model_is_weight_file(const char *name);
/* Every tensor that `config` asks for is there with the right shape and a float dtype; the first
 * that is not is an error that names it, the expected and the found shape. */
struct checkpoint;
enum status model_check_tensors(const struct model_config *config,
                                const struct checkpoint *ck) MUST_USE;
/* View of one parameter in a flat buffer laid out like m->data. */
struct tensor model_view(const struct model *m, const void *flat, enum dtype dtype, int64_t param);

/* The view of params [first, last], which lie side by side, as one [rows, cols] matrix (or, when
 * they are biases, one [n] vector). */
struct tensor model_span(const struct model *m, const void *flat, enum dtype dtype, int64_t first,
                         int64_t last);
/* G of kernels/backend.h: F64 for F64, else F32. */
enum dtype model_grad_dtype(const struct model *m);

struct kv_cache {
    struct backend *be;
    enum dtype dtype;
    int64_t n_batch, capacity, length; /* length: positions filled */
    int64_t n_byte;                    /* allocated, == kv_cache_bytes(...) */
    void *data;
    int64_t *k_offset, *v_offset; /* [n_layer], elements; layout [n_batch, n_kv, capacity, d] */
};
enum status kv_cache_open(const struct model *m, int64_t n_batch, int64_t capacity,
                          enum dtype dtype, struct kv_cache **out) MUST_USE;
void kv_cache_close(struct kv_cache *c);
/* 2 * sum_l n_kv_head[l] * head_dim * n_batch * capacity * bytes: what is allocated, exactly. */
int64_t kv_cache_bytes(const struct model_config *c, int64_t n_batch, int64_t capacity,
                       enum dtype dtype);

enum acts_mode {
    ACTS_INFER,     /* one layer's worth of buffers, no backward */
    ACTS_TRAIN,     /* everything the backward needs is kept */
    ACTS_RECOMPUTE, /* only each layer's input is kept; the layer runs again in the backward */
};
struct acts;
/* Room for n_batch sequences of up to n_seq tokens. One buffer; its size is reported. */
enum status acts_open(const struct model *m, enum acts_mode mode, int64_t n_batch, int64_t n_seq,
                      struct acts **out) MUST_USE;
void acts_close(struct acts *a);
int64_t acts_bytes(const struct acts *a);

/* Run the body of the model on ids [n_batch, n_seq] (device memory, int32). The result,
 * acts_hidden(), is the normed output [n_batch * n_seq, width]: the head is applied by
 * model_logits or the backend's head_loss. With a cache, tokens stand at positions
 * cache->length..., keys and values are appended and cache->length grows. cache NULL: training or
 * scoring from position 0. */
enum status model_forward(const struct model *m, struct acts *a, struct kv_cache *cache,
                          const int32_t *ids, int64_t n_batch, int64_t n_seq) MUST_USE;
/* One layer alone (F32; acts of a training mode), for a caller that keeps the residual stream:
 * host memory, [n_batch * n_seq, ...] rows; what is NULL is not fetched. */
struct layer_io {
    const float *in;       /* width: the stream that enters the layer */
    float *normed, *heads; /* width: what Q, K, V see; n_head * head_dim: what o_proj sees */
    float *mid, *out;      /* width: the stream behind attention, and behind the layer */
};
enum status model_layer_run(const struct model *m, struct acts *a, int64_t layer, int64_t n_batch,
                            int64_t n_seq, const struct layer_io *io) MUST_USE;
/* After it, on the same windows: the values of KV head `value` as the query heads of KV heads
 * [first, first + n) would see them, averaged by each one's attention:
 * out [n_batch * n_seq, n * n_head / n_kv_head * head_dim]. */
enum status model_layer_seen(const struct model *m, struct acts *a, int64_t layer, int64_t first,
                             int64_t n, int64_t value, float *out) MUST_USE;
/* Attention alone, as a function of its weights: what it adds to the stream `in`, and then the
 * gradients of them for d_out (both [n_batch * n_seq, width], host) added to `grads`, a device
 * buffer laid out like m->data, as far as `wanted` (NULL: all). */
enum status model_layer_attend(const struct model *m, struct acts *a, int64_t layer,
                               int64_t n_batch, int64_t n_seq, const float *in,
                               float *out) MUST_USE;
enum status model_layer_attend_bwd(const struct model *m, struct acts *a, int64_t layer,
                                   const float *d_out, void *grads, const bool *wanted) MUST_USE;
/* The same in device memory and any dtype, for acts of a training mode. `in`: the stream,
 * [n_batch * n_seq, width]; the branch stands in *out until the next call with these acts. Then the
 * gradient for what the caller puts into acts_d_hidden(). */
enum status model_attention_branch(const struct model *m, struct acts *a, int64_t layer,
                                   int64_t n_batch, int64_t n_seq, struct tensor in,
                                   struct tensor *out) MUST_USE;
enum status model_attention_branch_bwd(const struct model *m, struct acts *a, int64_t layer,
                                       void *grads, const bool *wanted) MUST_USE;
/* The stream that entered a layer in the latest forward (training modes). */
struct tensor acts_layer_input(const struct acts *a, int64_t layer);
struct tensor acts_hidden(const struct acts *a);
struct tensor acts_d_hidden(const struct acts *a); /* where the loss puts d hidden */
struct tensor model_head(const struct model *m);   /* [n_vocab, width], tied or not */
/* logits [n, n_vocab] F32 (F64 for F64) = hidden rows [first, first + n) times head^T. */
enum status model_logits(const struct model *m, const struct acts *a, int64_t first, int64_t n,
                         struct tensor logits) MUST_USE;
/* Backward from acts_d_hidden() through the body. `grads`: flat buffer laid out like m->data in
 * the gradient type, += ; parameters with wanted[i] false get none (wanted NULL: all). Uses the
 * ids of the last forward, which must have run without a cache and in a training mode. */
enum status model_backward(const struct model *m, struct acts *a, void *grads,
                           const bool *wanted) MUST_USE;
/* Where d_head of the loss belongs: the head's, or the tied embedding's, gradient. */
struct tensor model_d_head(const struct model *m, void *grads);

#endif
