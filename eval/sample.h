/* Choosing the next token, and generation through the KV cache: prefill, then one token a step. */
#ifndef REGROUP_EVAL_SAMPLE_H
#define REGROUP_EVAL_SAMPLE_H

#include "core/rng.h"
#include "data/tokenizer.h"
#include "model/model.h"

/* Index of the largest logit (the first of equals); -1 when one is NaN. */
int32_t sample_argmax(const float *logits, int64_t n);
/* softmax(logits / temperature) over the top_k largest (0: all; ties at the border stay in).
 * temperature 0 is sample_argmax. `scratch` [n] is used for top_k. -1 when a logit is NaN. */
int32_t sample_logits(const float *logits, int64_t n, double temperature, int64_t top_k,
                      struct rng *rng, float *scratch);
/* How many of the n bytes can be shown now: an unfinished UTF-8 character at the end waits. */
int64_t utf8_ready(const char *bytes, int64_t n);

/* A model with its cache and buffers. Nothing is allocated while feeding. */
struct decoder {
    const struct model *model; /* borrowed */
    struct kv_cache *cache;
    struct acts *acts;
    int64_t n_batch, max_feed; /* max_feed: tokens per forward; longer feeds go in pieces */
    int64_t n_last;            /* tokens per sequence in the latest forward */
    int32_t *ids, *host_ids;   /* [n_batch * max_feed], device and host */
    void *logits;              /* [n_batch, n_vocab] on the device */
    float *host_logits;        /* [n_batch, n_vocab] after decoder_logits */
};
enum status decoder_open(const struct model *m, int64_t n_batch, int64_t capacity, int64_t max_feed,
                         struct decoder *out) MUST_USE;
void decoder_close(struct decoder *d); /* fine on {0} */
void decoder_reset(struct decoder *d); /* forget all positions */
/* ids [n_batch, n] behind what was fed before. */
enum status decoder_feed(struct decoder *d, const int32_t *ids, int64_t n) MUST_USE;
/* After a feed: logits of each sequence's last token into host_logits. */
enum status decoder_logits(struct decoder *d) MUST_USE;
enum status decoder_argmax(struct decoder *d, int32_t *next) MUST_USE; /* [n_batch] */

struct generate_options {
    const char *prompt; /* UTF-8; may be empty when the tokenizer has a BOS */
    int64_t n_new;      /* tokens at most; EOS ends earlier */
    double temperature;
    int64_t top_k;
    uint64_t seed;
};
struct generate_result {
    int64_t n_prompt, n_new, n_step;        /* n_step: decode steps, behind the first new token */
    double prefill_seconds, decode_seconds; /* until the first new token; of the n_step steps */
    bool ended;                             /* by EOS */
};
/* `emit` receives text as soon as it consists of whole characters. */
enum status generate(const struct model *m, const struct tokenizer *tokenizer,
                     const struct generate_options *options,
                     enum status (*emit)(void *user, const char *bytes, int64_t n), void *user,
                     struct generate_result *out) MUST_USE;

#endif
