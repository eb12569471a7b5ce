/* Byte-pair merging: the lowest rank first, the leftmost among equals. O(n log n) in the length of
 * a span, and short spans are answered from a cache. One thread at a time per struct bpe. */
#ifndef REGROUP_DATA_BPE_H
#define REGROUP_DATA_BPE_H

#include "data/tokenizer.h"
#include "data/vocab.h"

struct bpe_work;
struct bpe { /* zero-initialise, set the fields, bpe_prepare, bpe_free */
    struct vocab vocab;
    struct pair_map merges; /* (left id, right id) -> rank, id; unused with by_text */
    int32_t *rank;          /* by_text: [vocab.n_id] rank of merging into that id; owned */
    bool by_text;           /* SentencePiece: neighbours merge when their joined text is a token */
    bool bytes;             /* spans start as single bytes, otherwise as characters */
    bool ignore_merges;     /* a span that is a token is that token */
    bool fuse_unk, byte_fallback;
    int32_t unk;          /* -1: unknown characters are dropped */
    int32_t byte_id[256]; /* with byte_fallback; -1: none */

    struct pair_map joints; /* (last, first) characters across which some merge may happen */
    int64_t longest;        /* bytes of the longest token */
    struct bpe_work *work;
};
enum status bpe_prepare(struct bpe *b) MUST_USE;
void bpe_free(struct bpe *b);
/* Appends the ids of one span (a "word") of checked UTF-8. */
enum status bpe_encode(const struct bpe *b, const char *text, int64_t n, struct ids *out) MUST_USE;

#endif
