/* Windows of tokens in an order that depends on (seed, epoch) only, so `position` is the state. */
#include "data/tokens.h"

#include <string.h>

enum status batcher_open(const struct token_data *data, int64_t n_batch, int64_t n_seq, bool rows,
                         uint64_t seed, struct batcher *out) {
    *out = (struct batcher){0};
    if (n_batch < 1 || n_seq < 1)
        return status_fail(STATUS_USAGE,
                           "batches of %lld windows of %lld tokens: both must be 1 or more",
                           (long long)n_batch, (long long)n_seq);
    int64_t n_window = (rows ? data->n : size_max(data->n - 1, 0)) / n_seq;
    if (n_window == 0)
        return status_fail(STATUS_FAILED,
                           "%lld tokens are too few for one window of %lld: at least %lld are "
                           "needed",
                           (long long)data->n, (long long)n_seq, (long long)n_seq + !rows);
    *out = (struct batcher){.data = data,
                            .n_batch = n_batch,
                            .n_seq = n_seq,
                            .n_window = n_window,
                            .rows = rows,
                            .seed = seed,
                            .epoch = -1};
    return memory_alloc(n_window, (int64_t)sizeof *out->order, "order of windows", &out->order);
}

void batcher_close(struct batcher *b) {
    memory_free(b->order);
    *b = (struct batcher){0};
}

void batcher_window(const struct batcher *b, int64_t w, int32_t *inputs, int32_t *targets) {
    const int32_t *ids = b->data->ids + w * b->n_seq;
    size_t row = (size_t)b->n_seq * sizeof *ids;
    memcpy(inputs, ids, row);
    memcpy(targets, ids + 1, b->rows ? row - sizeof *ids : row);
    if (b->rows)
        targets[b->n_seq - 1] = -1;
}

void batcher_next(struct batcher *b, int32_t *inputs, int32_t *targets) {
    for (int64_t k = 0; k < b->n_batch; k++, b->position++) {
        int64_t epoch = b->position / b->n_window;
        if (epoch != b->epoch) {
            struct rng rng = rng_stream(b->seed, (uint64_t)epoch);
            for (int64_t w = 0; w < b->n_window; w++)
                b->order[w] = w;
            rng_shuffle(&rng, b->order, b->n_window);
            b->epoch = epoch;
        }
        batcher_window(b, b->order[b->position % b->n_window], inputs + k * b->n_seq,
                       targets + k * b->n_seq);
    }
}
