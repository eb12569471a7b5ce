/* Prefill and decode measured separately, through the KV cache, at a given context length. */
#ifndef REGROUP_EVAL_SPEED_H
#define REGROUP_EVAL_SPEED_H

#include "model/model.h"

enum { SPEED_MAX_REPEAT = 64 };

struct spread {
    double median, min, max;
};
struct spread spread_of(double *values, int64_t n); /* sorts them; n > 0 */

struct speed_options {
    int64_t context;  /* tokens prefilled; decoding goes on from there */
    int64_t n_batch;  /* sequences at a time */
    int64_t n_decode; /* decode steps timed in one repeat */
    int64_t n_repeat; /* after one run that warms up and is not counted */
};
struct speed {
    struct speed_options options;
    struct spread prefill, decode; /* tokens/s over the whole batch */
    int64_t cache_bytes;           /* allocated for the context and the decoded tokens */
    double cache_bytes_per_token;  /* cache_bytes / (n_batch * capacity) */
};
/* Prefill: the whole context and the logits of its last token. Decode: one step per token with its
 * logits and the choice of the likeliest token, as generation does. */
enum status speed_measure(const struct model *m, const struct speed_options *options,
                          struct speed *out) MUST_USE;

#endif
