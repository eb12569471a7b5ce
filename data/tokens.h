/* Text and token files -> one array of ids, and batches from it that can resume. */
#ifndef REGROUP_DATA_TOKENS_H
#define REGROUP_DATA_TOKENS_H

#include "core/rng.h"
#include "data/tokenizer.h"

/* Documents of a text source: .txt or any other name (one document), .jsonl (one per line, field
 * "text"), each also .gz (zlib). Errors name the file and the line or byte. */
struct text_reader;
enum status text_reader_open(const char *path, struct text_reader **out) MUST_USE;
/* *n = -1 at the end. *text is borrowed until the next call. */
enum status text_reader_next(struct text_reader *r, const char **text, int64_t *n) MUST_USE;
void text_reader_close(struct text_reader *r);

struct token_data {
    int32_t *ids; /* [n], owned */
    int64_t n;
    uint64_t hash;       /* of the ids: says on which data a number was measured */
    int64_t n_text_byte; /* bytes of text they came from; 0 for token files */
};
/* Token files (.u16, .u32 by name: little-endian) or text through `tokenizer` (may be NULL for
 * token files). Documents are joined: BOS before each when the tokenizer adds one, EOS after each
 * when it has one and no BOS. `n_vocab`: an id outside [0, n_vocab) is an error (0: unchecked).
 * No tokens at all is an error. Paths are concatenated in order. */
enum status token_data_open(const char *const *paths, int64_t n_path,
                            const struct tokenizer *tokenizer, int64_t n_vocab,
                            struct token_data *out) MUST_USE;
void token_data_close(struct token_data *d);

/* Batches of n_batch windows of n_seq tokens. Windows are disjoint; each epoch visits all of them
 * in an order shuffled by (seed, epoch); the remainder that does not fill a window is dropped.
 * With `rows` each window is a row of its own (last target -1); otherwise window w has inputs
 * ids[w*n_seq ...] and targets one further on (the data needs one token more at the end). */
struct batcher {
    const struct token_data *data; /* borrowed */
    int64_t n_batch, n_seq, n_window;
    bool rows;
    uint64_t seed;
    int64_t position; /* windows served since the start: all the state there is */
    int64_t epoch;    /* whose order `order` holds; -1: none */
    int64_t *order;   /* [n_window], owned */
};
/* Fails when the data has not one full window, saying how many tokens are needed. */
enum status batcher_open(const struct token_data *data, int64_t n_batch, int64_t n_seq, bool rows,
                         uint64_t seed, struct batcher *out) MUST_USE;
void batcher_close(struct batcher *b);
/* inputs, targets: [n_batch * n_seq] host memory. Advances position by n_batch. */
void batcher_next(struct batcher *b, int32_t *inputs, int32_t *targets);
/* Unshuffled window w, for evaluation. */
void batcher_window(const struct batcher *b, int64_t w, int32_t *inputs, int32_t *targets);

#endif
