/* A layer's attention branch alone, fed any stream: what layer-wise distillation compares. Its
 * backward is in backward.c. */
#include "model/acts.h"

enum status model_attention_branch(const struct model *m, struct acts *a, int64_t layer,
                                   int64_t n_batch, int64_t n_seq, struct tensor in,
                                   struct tensor *out) {
    int64_t n_row;
    if (a->mode == ACTS_INFER || !size_mul(n_batch, n_seq, &n_row) || n_row < 1 ||
        n_row > a->max_row || in.dtype != m->dtype || in.shape[0] != n_row ||
        in.shape[1] != m->config.width)
        return status_fail(STATUS_FAILED,
                           "an attention branch alone: needs buffers of a training mode for %lld x "
                           "%lld tokens and as many rows of width %lld in the compute type",
                           (long long)n_batch, (long long)n_seq, (long long)m->config.width);
    a->n_batch = n_batch;
    a->n_seq = n_seq;
    struct tensor x = acts_layer_input(a, layer);
    if (x.data != in.data)
        TRY(m->be->copy(m->be, x.data, in.data, tensor_bytes(&x)));
    *out = acts_rows(a, a->branch, m->config.width);
    return layer_attend(m, a, layer, false, NULL);
}
