/* Perplexity protocols: how a text becomes ids, how ids become windows, and which of a window's
 * predictions count. The arithmetic needs no model, so it is tested with exact counts. */
#ifndef REGROUP_EVAL_PROTOCOL_H
#define REGROUP_EVAL_PROTOCOL_H

#include "data/tokens.h"

/* strided    windows of W tokens every s tokens, each token but the first counted exactly once,
 *            with at least W - s tokens before it after the first window (HF's perplexity guide);
 *            no BOS; documents joined by an empty line
 * gptq       rows (documents; the lines of a .txt) joined by an empty line, BOS where the
 *            tokenizer puts it, disjoint windows, W - 1 counted in each, the remainder dropped
 * llama.cpp  the text as it is, disjoint windows whose first token is replaced by BOS when the
 *            tokenizer adds one, tokens W/2 + 1 ... W - 1 counted, the remainder dropped
 * rows       token files whose rows are W ids long: tokens 1 ... W - 1 of each row counted */
enum protocol { PROTOCOL_STRIDED, PROTOCOL_GPTQ, PROTOCOL_LLAMA_CPP, PROTOCOL_ROWS };

#define PROTOCOL_CHOICES "strided|gptq|llama.cpp|rows"
bool protocol_parse(const char *name, enum protocol *out) MUST_USE;
const char *protocol_name(enum protocol p);
const char *protocol_rule(enum protocol p); /* one sentence for people */
int64_t protocol_window(enum protocol p);   /* the usual W */

/* Text file -> ids as the protocol joins documents and places BOS. `n_vocab` bounds the ids.
 * *bos: what llama.cpp puts in front of each window, -1 for none. */
enum status protocol_read_text(enum protocol p, const char *path, const struct tokenizer *tokenizer,
                               int64_t n_vocab, struct token_data *out, int32_t *bos) MUST_USE;

struct window_plan {
    enum protocol protocol;
    int64_t n_token; /* in the data */
    int64_t n_seq;   /* tokens per window; shorter windows are padded to it */
    int64_t stride, n_window;
    int64_t n_counted; /* predictions that count, over all windows */
    int32_t bos;       /* replaces each window's first token; -1: nothing does */
};
struct window {
    int64_t first, n;   /* ids [first, first + n) are read */
    int64_t count_from; /* positions [count_from, n - 1) predict a token that counts */
};
/* stride matters to `strided` only (0: half a window). Fails when nothing would be counted, saying
 * how many tokens are needed. */
enum status window_plan_make(enum protocol p, int64_t n_token, int64_t window, int64_t stride,
                             int32_t bos, struct window_plan *out) MUST_USE;
struct window window_plan_at(const struct window_plan *p, int64_t w);
/* inputs and targets [n_seq] of one window; targets are -1 where nothing counts. */
void window_plan_fill(const struct window_plan *p, int64_t w, const int32_t *ids, int32_t *inputs,
                      int32_t *targets);

#endif
