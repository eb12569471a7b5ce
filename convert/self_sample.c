/* Calibration text when the user has none: what the model itself says. */
#include "convert/calibrate.h"

#include "core/log.h"
#include "core/rng.h"

#include <math.h>
#include <string.h>

enum { SEQUENCES = 32 };

static int32_t draw(const float *logits, int64_t n, struct rng *rng) {
    double max = (double)logits[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    double u = rng_uniform(rng) * sum;
    for (int64_t i = 0; i < n; i++) {
        u -= exp((double)logits[i] - max);
        if (u < 0)
            return (int32_t)i;
    }
    return (int32_t)(n - 1);
}

enum status calibration_sample(const char *dir, struct backend *be, int64_t n_window, int64_t n_seq,
                               uint64_t seed, int32_t *ids) {
    enum status status;
    struct model *m = NULL;
    struct acts *a = NULL;
    struct kv_cache *cache = NULL;
    int32_t *device = NULL, *now = NULL;
    float *logits = NULL, *host = NULL;
    struct progress progress;
    TRY_OUT(model_open(dir, be, DTYPE_F32, &m));
    int64_t n_vocab = m->config.n_vocab, n_batch = size_min(SEQUENCES, n_window);
    TRY_OUT(acts_open(m, ACTS_INFER, n_batch, 1, &a));
    TRY_OUT(be->alloc(be, n_batch * 4, "sampling", (void **)&device));
    TRY_OUT(be->alloc(be, n_batch * n_vocab * 4, "sampling", (void **)&logits));
    TRY_OUT(memory_alloc(n_batch, 4, "sampling", &now));
    TRY_OUT(memory_alloc(n_batch * n_vocab, 4, "sampling", &host));
    progress_start(&progress, "sample", (double)(n_window * n_seq), "tokens");
    for (int64_t w = 0; w < n_window; w += n_batch) {
        int64_t n = size_min(n_batch, n_window - w);
        kv_cache_close(cache);
        TRY_OUT(kv_cache_open(m, n, n_seq, DTYPE_F32, &cache));
        for (int64_t t = 0; t < n_seq; t++) {
            for (int64_t b = 0; b < n; b++) {
                struct rng rng = rng_stream(seed, (uint64_t)((w + b) * n_seq + t));
                now[b] = t                       ? draw(host + b * n_vocab, n_vocab, &rng)
                         : m->config.bos_id >= 0 ? (int32_t)m->config.bos_id
                                                 : (int32_t)rng_below(&rng, n_vocab);
                ids[(w + b) * n_seq + t] = now[b];
            }
            if (t + 1 == n_seq)
                break;
            TRY_OUT(be->upload(be, STREAM_COMPUTE, device, now, n * 4));
            TRY_OUT(model_forward(m, a, cache, device, n, 1));
            TRY_OUT(model_logits(m, a, 0, n, tensor_2d(DTYPE_F32, logits, n, n_vocab)));
            TRY_OUT(be->download(be, STREAM_COMPUTE, host, logits, n * n_vocab * 4));
            TRY_OUT(be->sync(be, STREAM_COMPUTE));
        }
        progress_update(&progress, (double)((w + n) * n_seq), NULL);
    }
    progress_end(&progress);
out:
    if (device)
        be->free(be, device);
    if (logits)
        be->free(be, logits);
    memory_free(now);
    memory_free(host);
    kv_cache_close(cache);
    acts_close(a);
    model_close(m);
    return status;
}
