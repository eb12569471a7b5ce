/* Sampling over host logits and the decode loop. */
#include "eval/sample.h"

#include "core/log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int32_t sample_argmax(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return -1;
        if (logits[i] > logits[best])
            best = i;
    }
    return (int32_t)best;
}

static int descending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

int32_t sample_logits(const float *logits, int64_t n, double temperature, int64_t top_k,
                      struct rng *rng, float *scratch) {
    int32_t best = sample_argmax(logits, n);
    if (best < 0 || !(temperature > 0))
        return best;
    float least = -INFINITY;
    if (top_k > 0 && top_k < n) {
        memcpy(scratch, logits, (size_t)n * sizeof *scratch);
        qsort(scratch, (size_t)n, sizeof *scratch, descending);
        least = scratch[top_k - 1];
    }
    double total = 0, top = logits[best];
    for (int64_t i = 0; i < n; i++)
        if (logits[i] >= least)
            total += exp((logits[i] - top) / temperature);
    double left = rng_uniform(rng) * total;
    int64_t chosen = best; /* rounding may leave a crumb at the end: the likeliest takes it */
    for (int64_t i = 0; i < n; i++) {
        if (!(logits[i] >= least))
            continue;
        left -= exp((logits[i] - top) / temperature);
        if (left < 0) {
            chosen = i;
            break;
        }
    }
    return (int32_t)chosen;
}

int64_t utf8_ready(const char *bytes, int64_t n) {
    for (int64_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)bytes[n - back];
        if ((c & 0xc0) == 0x80)
            continue; /* a continuation: its lead stands further left */
        int64_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
        return need > back ? n - back : n;
    }
    return n; /* no lead in reach: not UTF-8, nothing to wait for */
}

enum status decoder_open(const struct model *m, int64_t n_batch, int64_t capacity, int64_t max_feed,
                         struct decoder *out) {
    struct backend *be = m->be;
    struct decoder d = {.model = m, .n_batch = n_batch, .max_feed = max_feed};
    enum status status = STATUS_OK;
    int64_t n_id, n_logit;
    if (!size_mul(n_batch, max_feed, &n_id) || !size_mul(n_batch, m->config.n_vocab, &n_logit) ||
        n_id > INT32_MAX || n_logit > INT64_MAX / 8)
        return status_fail(STATUS_USAGE, "batch %lld with %lld tokens at a time is too large",
                           (long long)n_batch, (long long)max_feed);
    if (m->dtype == DTYPE_F64)
        return status_fail(STATUS_USAGE, "decoding computes in f32 or bf16, not f64");
    TRY_OUT(kv_cache_open(m, n_batch, capacity, m->dtype, &d.cache));
    TRY_OUT(acts_open(m, ACTS_INFER, n_batch, max_feed, &d.acts));
    TRY_OUT(memory_alloc(n_id, sizeof *d.host_ids, "ids", &d.host_ids));
    TRY_OUT(memory_alloc(n_logit, sizeof *d.host_logits, "logits", &d.host_logits));
    TRY_OUT(be->alloc(be, n_id * (int64_t)sizeof *d.ids, "ids", (void **)&d.ids));
    TRY_OUT(be->alloc(be, n_logit * (int64_t)sizeof(float), "logits", &d.logits));
    *out = d;
    return STATUS_OK;
out:
    decoder_close(&d);
    return status;
}

void decoder_close(struct decoder *d) {
    if (!d->model)
        return;
    kv_cache_close(d->cache);
    acts_close(d->acts);
    memory_free(d->host_ids);
    memory_free(d->host_logits);
    d->model->be->free(d->model->be, d->ids);
    d->model->be->free(d->model->be, d->logits);
    *d = (struct decoder){0};
}

void decoder_reset(struct decoder *d) {
    d->cache->length = 0;
}

enum status decoder_feed(struct decoder *d, const int32_t *ids, int64_t n) {
    struct backend *be = d->model->be;
    for (int64_t done = 0; done < n;) {
        int64_t piece = size_min(n - done, d->max_feed);
        for (int64_t b = 0; b < d->n_batch; b++)
            memcpy(d->host_ids + b * piece, ids + b * n + done, (size_t)piece * sizeof *ids);
        TRY(be->upload(be, STREAM_COMPUTE, d->ids, d->host_ids,
                       d->n_batch * piece * (int64_t)sizeof *ids));
        TRY(model_forward(d->model, d->acts, d->cache, d->ids, d->n_batch, piece));
        TRY(be->sync(be, STREAM_COMPUTE)); /* host_ids is free to change again */
        d->n_last = piece;
        done += piece;
    }
    return STATUS_OK;
}

enum status decoder_logits(struct decoder *d) {
    struct backend *be = d->model->be;
    int64_t n_vocab = d->model->config.n_vocab;
    struct tensor logits = tensor_2d(DTYPE_F32, d->logits, d->n_batch, n_vocab);
    if (d->n_last == 1) /* all rows are wanted: the head is read once for all sequences */
        TRY(model_logits(d->model, d->acts, 0, d->n_batch, logits));
    for (int64_t b = 0; d->n_last > 1 && b < d->n_batch; b++)
        TRY(model_logits(d->model, d->acts, (b + 1) * d->n_last - 1, 1, tensor_rows(logits, b, 1)));
    TRY(be->download(be, STREAM_COMPUTE, d->host_logits, d->logits, tensor_bytes(&logits)));
    return be->sync(be, STREAM_COMPUTE);
}

static enum status not_a_number(void) {
    return status_fail(STATUS_FAILED, "the model's logits are NaN: its weights hold NaN or "
                                      "infinity, or the compute type overflows (try --dtype f32)");
}

enum status decoder_argmax(struct decoder *d, int32_t *next) {
    int64_t n_vocab = d->model->config.n_vocab;
    TRY(decoder_logits(d));
#pragma omp parallel for if (d->n_batch > 1) /* a GPU waits for it */
    for (int64_t b = 0; b < d->n_batch; b++)
        next[b] = sample_argmax(d->host_logits + b * n_vocab, n_vocab);
    for (int64_t b = 0; b < d->n_batch; b++)
        if (next[b] < 0)
            return not_a_number();
    return STATUS_OK;
}

/* Prompt ids with BOS as the tokenizer wants it. */
static enum status prompt_ids(const struct tokenizer *tokenizer, const char *prompt,
                              const struct model *m, struct ids *out) {
    if (tokenizer_bos(tokenizer) >= 0 && (tokenizer_adds_bos(tokenizer) || !*prompt))
        TRY(ids_push(out, tokenizer_bos(tokenizer)));
    TRY(tokenizer_encode(tokenizer, prompt, (int64_t)strlen(prompt), out));
    if (!out->n)
        return status_fail(STATUS_USAGE,
                           "prompt: it is empty and the tokenizer has no BOS to start "
                           "from: give --prompt a text");
    for (int64_t i = 0; i < out->n; i++)
        if (out->data[i] < 0 || out->data[i] >= m->config.n_vocab)
            return status_fail(STATUS_FAILED,
                               "prompt: token id %d lies outside the model's vocabulary of %lld: "
                               "its tokenizer does not belong to it",
                               out->data[i], (long long)m->config.n_vocab);
    return STATUS_OK;
}

struct stream {
    enum status (*emit)(void *user, const char *bytes, int64_t n);
    void *user;
    struct text held; /* decoded and not yet emitted */
};

static enum status stream_token(struct stream *s, const struct tokenizer *tokenizer,
                                int32_t previous, int32_t id) {
    TRY(tokenizer_decode(tokenizer, previous, id, &s->held));
    int64_t ready = s->held.n ? utf8_ready(s->held.data, s->held.n) : 0;
    if (!ready)
        return STATUS_OK;
    TRY(s->emit(s->user, s->held.data, ready));
    s->held.n -= ready;
    memmove(s->held.data, s->held.data + ready, (size_t)s->held.n + 1);
    return STATUS_OK;
}

enum status generate(const struct model *m, const struct tokenizer *tokenizer,
                     const struct generate_options *o,
                     enum status (*emit)(void *user, const char *bytes, int64_t n), void *user,
                     struct generate_result *out) {
    enum { PREFILL_PIECE = 512 };
    struct ids ids = {0};
    struct decoder d = {0};
    struct stream stream = {.emit = emit, .user = user};
    float *scratch = NULL;
    struct generate_result r = {0};
    enum status status = STATUS_OK;
    int64_t n_vocab = m->config.n_vocab, eos = m->config.eos_id;
    if (eos < 0)
        eos = tokenizer_eos(tokenizer);
    TRY_OUT(prompt_ids(tokenizer, o->prompt, m, &ids));
    r.n_prompt = ids.n;
    int64_t room = m->config.max_position - ids.n, n_new = o->n_new;
    if (room < 1) {
        status = status_fail(STATUS_FAILED,
                             "prompt: %lld tokens leave no room in the model's %lld positions: "
                             "shorten it",
                             (long long)ids.n, (long long)m->config.max_position);
        goto out;
    }
    if (n_new > room) {
        log_warn("the model has %lld positions: at most %lld new tokens fit behind the prompt",
                 (long long)m->config.max_position, (long long)room);
        n_new = room;
    }
    TRY_OUT(decoder_open(m, 1, ids.n + size_max(n_new, 1), size_min(ids.n, PREFILL_PIECE), &d));
    TRY_OUT(memory_alloc(n_vocab, sizeof *scratch, "sampling", &scratch));
    struct rng rng = rng_seed(o->seed);

    double start = clock_seconds();
    TRY_OUT(decoder_feed(&d, ids.data, ids.n));
    int32_t previous = ids.data[ids.n - 1];
    while (r.n_new < n_new) {
        TRY_OUT(decoder_logits(&d));
        int32_t id = sample_logits(d.host_logits, n_vocab, o->temperature, o->top_k, &rng, scratch);
        if (id < 0) {
            status = not_a_number();
            goto out;
        }
        if (!r.n_new) {
            r.prefill_seconds = clock_seconds() - start;
            start = clock_seconds();
        }
        r.ended = id == eos;
        if (r.ended)
            break;
        r.n_new++;
        TRY_OUT(stream_token(&stream, tokenizer, previous, id));
        previous = id;
        if (r.n_new < n_new) {
            TRY_OUT(decoder_feed(&d, &id, 1));
            r.n_step++;
        }
    }
    r.decode_seconds = clock_seconds() - start;
    if (stream.held.n) /* the end came inside a character: show what there is */
        TRY_OUT(emit(user, stream.held.data, stream.held.n));
    *out = r;
out:
    text_free(&stream.held);
    memory_free(scratch);
    decoder_close(&d);
    ids_free(&ids);
    return status;
}
