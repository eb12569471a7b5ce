/* Timing of cached inference. What is timed is what `generate` does, so numbers carry over. */
#include "eval/speed.h"

#include "core/log.h"
#include "core/rng.h"
#include "eval/sample.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct spread spread_of(double *values, int64_t n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    double median = n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
    return (struct spread){median, values[0], values[n - 1]};
}

/* One prefill and n_decode steps; seconds of each. */
static enum status run_once(struct decoder *d, const struct speed_options *o, const int32_t *ids,
                            int32_t *next, double *prefill, double *decode) {
    decoder_reset(d);
    double start = clock_seconds();
    TRY(decoder_feed(d, ids, o->context));
    TRY(decoder_argmax(d, next));
    double middle = clock_seconds();
    for (int64_t i = 0; i < o->n_decode; i++) {
        TRY(decoder_feed(d, next, 1));
        TRY(decoder_argmax(d, next));
    }
    *prefill = middle - start;
    *decode = clock_seconds() - middle;
    return STATUS_OK;
}

enum status speed_measure(const struct model *m, const struct speed_options *o, struct speed *out) {
    if (o->context < 1 || o->n_batch < 1 || o->n_decode < 1 || o->n_repeat < 1 ||
        o->n_repeat > SPEED_MAX_REPEAT)
        return status_fail(STATUS_USAGE,
                           "speed: context, batch and decode steps must be 1 or more and repeats 1 "
                           "to %d",
                           SPEED_MAX_REPEAT);
    double prefill[SPEED_MAX_REPEAT], decode[SPEED_MAX_REPEAT];
    struct decoder d = {0};
    int32_t *ids = NULL, *next = NULL;
    int64_t n_id = 0;
    enum status status = STATUS_OK;
    if (!size_mul(o->n_batch, o->context, &n_id))
        return status_fail(STATUS_USAGE, "speed: %lld sequences of %lld tokens are too many",
                           (long long)o->n_batch, (long long)o->context);
    TRY_OUT(decoder_open(m, o->n_batch, o->context + o->n_decode, o->context, &d));
    TRY_OUT(memory_alloc(n_id, sizeof *ids, "prompt ids", &ids));
    TRY_OUT(memory_alloc(o->n_batch, sizeof *next, "next ids", &next));
    struct rng rng = rng_seed(1);
    for (int64_t i = 0; i < n_id; i++)
        ids[i] = (int32_t)rng_below(&rng, m->config.n_vocab);
    for (int64_t r = -1; r < o->n_repeat; r++) { /* -1 warms up */
        double p, q;
        TRY_OUT(run_once(&d, o, ids, next, &p, &q));
        if (r >= 0) {
            prefill[r] = (double)n_id / p;
            decode[r] = (double)(o->n_batch * o->n_decode) / q;
        }
    }
    *out = (struct speed){.options = *o,
                          .prefill = spread_of(prefill, o->n_repeat),
                          .decode = spread_of(decode, o->n_repeat),
                          .cache_bytes = d.cache->n_byte,
                          .cache_bytes_per_token = (double)d.cache->n_byte /
                                                   (double)(d.cache->n_batch * d.cache->capacity)};
out:
    memory_free(ids);
    memory_free(next);
    decoder_close(&d);
    return status;
}
