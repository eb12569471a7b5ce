/* Token bytes <-> id, and pairs of ids (or of code points) -> a value: the two hash tables that
 * tokenizing lives on; and a byte trie for the longest of many strings at a position. */
#ifndef REGROUP_DATA_VOCAB_H
#define REGROUP_DATA_VOCAB_H

#include "core/memory.h"
#include "core/text.h"

enum { VOCAB_MAX_ID = (1 << 22) - 1 }; /* a lying id must not ask for gigabytes */

struct vocab_token {
    int64_t offset; /* into bytes */
    int32_t n;      /* -1: no token has this id */
};
struct vocab_slot {
    uint64_t hash; /* 0: empty */
    int64_t offset;
    int32_t n, id;
};
struct vocab { /* zero-initialise, vocab_free */
    struct text bytes;
    struct vocab_token *tokens; /* [n_id] */
    int64_t n_id, id_capacity;
    struct vocab_slot *slots; /* [n_slot], a power of two */
    int64_t n_slot, n_used;
};
/* Give id its bytes without making them findable. */
enum status vocab_name(struct vocab *v, const char *bytes, int64_t n, int32_t id) MUST_USE;
/* The same and findable. *duplicate: these bytes were there before (nothing changed then). */
enum status vocab_add(struct vocab *v, const char *bytes, int64_t n, int32_t id,
                      bool *duplicate) MUST_USE;
int32_t vocab_find(const struct vocab *v, const char *bytes, int64_t n); /* -1: absent */
/* Bytes of an id, borrowed; *n = -1 when there is none. */
const char *vocab_bytes(const struct vocab *v, int32_t id, int64_t *n);
void vocab_free(struct vocab *v);

uint64_t vocab_hash(const char *bytes, int64_t n); /* never 0; fast, not for fingerprints */

struct pair_slot {
    uint64_t key; /* a + 1 in the upper half, so that 0 is empty */
    int32_t rank, id;
};
struct pair_map { /* zero-initialise, pair_map_free */
    struct pair_slot *slots;
    int64_t n_slot, n_used;
};
/* A later pair replaces an earlier equal one. */
enum status pair_map_put(struct pair_map *m, uint32_t a, uint32_t b, int32_t rank,
                         int32_t id) MUST_USE;
const struct pair_slot *pair_map_find(const struct pair_map *m, uint32_t a, uint32_t b);
void pair_map_free(struct pair_map *m);

struct trie_node {
    int32_t child, sibling, value; /* 0: none; value -1: none */
    unsigned char byte;
};
struct trie { /* zero-initialise, trie_free */
    struct trie_node *nodes;
    int64_t n, capacity;
    int32_t root[256]; /* first nodes; 0: none */
};
enum status trie_add(struct trie *t, const char *bytes, int64_t n, int32_t value) MUST_USE;
/* Value of the longest string that `text` starts with, its length in *length; -1: none. */
int32_t trie_longest(const struct trie *t, const char *text, int64_t n, int64_t *length);
void trie_free(struct trie *t);

#endif
