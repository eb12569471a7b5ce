/* One row at a time through the forward and the loss of the model's own backend. */
#include "tests/support/nll.h"

#include "core/file.h"

enum status nll_of_rows(struct model *m, const int32_t *ids, int64_t n_row, int64_t n_seq,
                        double *mean, float *last_logits) {
    enum status status;
    struct backend *be = m->be;
    struct acts *a = NULL;
    int32_t *device = NULL, *targets = NULL, *device_targets = NULL;
    float *nll = NULL, *host = NULL, *logits = NULL;
    double sum = 0;
    int64_t bytes = n_seq * 4;
    TRY_OUT(acts_open(m, ACTS_INFER, 1, n_seq, &a));
    TRY_OUT(be->alloc(be, bytes, "test", (void **)&device));
    TRY_OUT(be->alloc(be, bytes, "test", (void **)&device_targets));
    TRY_OUT(be->alloc(be, bytes, "test", (void **)&nll));
    TRY_OUT(be->alloc(be, m->config.n_vocab * 4, "test", (void **)&logits));
    TRY_OUT(memory_alloc(n_seq, 4, "test", &host));
    TRY_OUT(memory_alloc(n_seq, 4, "test", &targets));
    for (int64_t r = 0; r < n_row; r++) {
        for (int64_t t = 0; t < n_seq; t++)
            targets[t] = t + 1 < n_seq ? ids[r * n_seq + t + 1] : -1;
        TRY_OUT(be->upload(be, STREAM_COMPUTE, device, ids + r * n_seq, bytes));
        TRY_OUT(be->upload(be, STREAM_COMPUTE, device_targets, targets, bytes));
        TRY_OUT(model_forward(m, a, NULL, device, 1, n_seq));
        struct head_loss_args args = {.hidden = acts_hidden(a),
                                      .head = model_head(m),
                                      .targets = device_targets,
                                      .ce_weight = 1,
                                      .temperature = 1,
                                      .nll = tensor_1d(DTYPE_F32, nll, n_seq)};
        TRY_OUT(be->head_loss(be, &args));
        TRY_OUT(be->download(be, STREAM_COMPUTE, host, nll, bytes));
        TRY_OUT(be->sync(be, STREAM_COMPUTE));
        for (int64_t t = 0; t + 1 < n_seq; t++)
            sum += (double)host[t];
    }
    *mean = sum / (double)(n_row * (n_seq - 1));
    if (last_logits) {
        int64_t v = m->config.n_vocab;
        TRY_OUT(model_logits(m, a, n_seq - 1, 1, tensor_2d(DTYPE_F32, logits, 1, v)));
        TRY_OUT(be->download(be, STREAM_COMPUTE, last_logits, logits, v * 4));
        TRY_OUT(be->sync(be, STREAM_COMPUTE));
    }
out:
    be->free(be, device);
    be->free(be, device_targets);
    be->free(be, nll);
    be->free(be, logits);
    memory_free(host);
    memory_free(targets);
    acts_close(a);
    return status;
}

enum status read_u16(const char *path, int32_t **ids, int64_t *n) {
    struct text bytes = {0};
    TRY(file_read(path, 0, &bytes));
    enum status status = memory_alloc(bytes.n / 2, 4, path, ids);
    for (int64_t i = 0; status == STATUS_OK && i < bytes.n / 2; i++)
        (*ids)[i] = (unsigned char)bytes.data[2 * i] | (unsigned char)bytes.data[2 * i + 1] << 8;
    *n = bytes.n / 2;
    text_free(&bytes);
    return status;
}
