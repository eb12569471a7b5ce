/* Model folder in, numbers out. */
#include "eval/evaluate.h"

#include "core/file.h"
#include "core/log.h"

#include <inttypes.h>
#include <string.h>

struct eval_options eval_defaults(void) {
    return (struct eval_options){.protocol = PROTOCOL_STRIDED,
                                 .n_batch = 8,
                                 .dtype = DTYPE_F32,
                                 .speed_batch = 1,
                                 .n_decode = 32,
                                 .n_repeat = 5};
}

enum status evaluator_open(const struct eval_options *options, struct backend *be,
                           struct evaluator *out) {
    struct evaluator e = {.options = *options, .be = be};
    e.has_data = options->text || options->tokens;
    if (options->text && options->tokens)
        return status_fail(STATUS_USAGE, "give either --text or --tokens, not both");
    if (options->teacher && !e.has_data)
        return status_fail(STATUS_USAGE, "a teacher needs data to compare on: give --text or "
                                         "--tokens");
    if (options->dtype != DTYPE_F32 && options->dtype != DTYPE_BF16)
        return status_fail(STATUS_USAGE, "dtype: evaluation computes in f32 or bf16");
    if (options->teacher)
        TRY(model_open(options->teacher, be, options->dtype, &e.teacher));
    *out = e;
    return STATUS_OK;
}

void evaluator_close(struct evaluator *e) {
    model_close(e->teacher);
    token_data_close(&e->data);
    *e = (struct evaluator){0};
}

static enum status read_data(const struct eval_options *o, const char *dir, int64_t n_vocab,
                             struct token_data *data, int32_t *bos) {
    *bos = -1;
    if (o->tokens)
        return token_data_open(&o->tokens, 1, NULL, n_vocab, data);
    struct tokenizer *tokenizer = NULL;
    TRY(tokenizer_open(dir, &tokenizer));
    enum status status = protocol_read_text(o->protocol, o->text, tokenizer, n_vocab, data, bos);
    tokenizer_close(tokenizer);
    return status;
}

static enum status make_plan(struct evaluator *e, const struct model_config *c, int32_t bos) {
    const struct eval_options *o = &e->options;
    int64_t window = o->window;
    if (!window)
        window = size_min(protocol_window(o->protocol), c->max_position);
    int64_t n_token = o->max_tokens ? size_min(o->max_tokens, e->data.n) : e->data.n;
    return window_plan_make(o->protocol, n_token, window, o->stride, bos, &e->plan);
}

/* The first model's ids are everyone's; a later model that reads the text differently would be
 * measured on something else, and per-token numbers would not compare. */
static enum status need_data(struct evaluator *e, const struct model *m, const char *dir) {
    const struct model_config *c = &m->config;
    int32_t bos;
    if (!e->n_vocab) {
        TRY(read_data(&e->options, dir, c->n_vocab, &e->data, &bos));
        TRY(make_plan(e, c, bos));
        e->n_vocab = c->n_vocab;
    } else if (c->n_vocab != e->n_vocab) {
        return status_fail(STATUS_FAILED,
                           "%s has a vocabulary of %" PRId64 " tokens and the models before it "
                           "%" PRId64 ": their perplexities do not compare, evaluate it alone",
                           dir, c->n_vocab, e->n_vocab);
    } else if (e->options.text) {
        struct token_data own = {0};
        TRY(read_data(&e->options, dir, c->n_vocab, &own, &bos));
        bool same = own.hash == e->data.hash && own.n == e->data.n;
        token_data_close(&own);
        if (!same)
            return status_fail(STATUS_FAILED,
                               "%s: its tokenizer reads %s differently from the models before it: "
                               "their perplexities do not compare, evaluate it alone",
                               dir, e->options.text);
    }
    if (e->plan.n_seq > c->max_position)
        return status_fail(STATUS_FAILED,
                           "window: %" PRId64 " tokens are more than the %" PRId64
                           " positions of %s: choose a smaller --window",
                           e->plan.n_seq, c->max_position, dir);
    return STATUS_OK;
}

static enum status measure_cache(const struct model *m, struct evaluation *out) {
    enum { CAPACITY = 64 };
    struct kv_cache *cache = NULL;
    out->cache_formula = model_kv_bytes_per_token(&m->config, m->dtype);
    TRY(kv_cache_open(m, 1, CAPACITY, m->dtype, &cache));
    out->cache_allocated = (double)cache->n_byte / (double)(cache->n_batch * cache->capacity);
    kv_cache_close(cache);
    return STATUS_OK;
}

enum status evaluate_model(struct evaluator *e, const char *dir, struct evaluation *out) {
    const struct eval_options *o = &e->options;
    struct model *m = NULL;
    struct evaluation r = {.path = dir};
    enum status status = STATUS_OK;
    TRY_OUT(model_open(dir, e->be, o->dtype, &m));
    r.config = m->config;
    r.n_param = model_param_count(m);
    TRY_OUT(measure_cache(m, &r));
    if (e->has_data) {
        TRY_OUT(need_data(e, m, dir));
        TRY_OUT(
            perplexity_measure(m, e->teacher, e->data.ids, &e->plan, o->n_batch, &r.perplexity));
        r.has_perplexity = true;
    }
    for (int64_t i = 0; i < o->n_context; i++) {
        struct speed_options s = {.context = o->contexts[i],
                                  .n_batch = o->speed_batch,
                                  .n_decode = o->n_decode,
                                  .n_repeat = o->n_repeat};
        if (s.context + s.n_decode > m->config.max_position)
            log_warn("%s: context %" PRId64 " and %" PRId64 " decode steps go beyond its %" PRId64
                     " positions; speed only",
                     dir, s.context, s.n_decode, m->config.max_position);
        struct speed *speed = &r.speed[r.n_speed++];
        TRY_OUT(speed_measure(m, &s, speed));
        if (!(speed->decode.max < 1.5 * speed->decode.min))
            log_warn("%s: decode at context %" PRId64 " varied from %.0f to %.0f tokens/s: the "
                     "machine is busy, or time more --decode-steps",
                     dir, s.context, speed->decode.min, speed->decode.max);
    }
    *out = r;
out:
    model_close(m);
    return status;
}

enum status evaluate_to_file(struct evaluator *e, const char *dir, const char *json_path) {
    struct evaluation r;
    TRY(evaluate_model(e, dir, &r));
    struct json *j = evaluation_json(e, &r, 1);
    enum status status = json_save(j, json_path);
    json_free(j);
    return status;
}
