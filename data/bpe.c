/* Symbols in a linked list, candidate merges in a heap (as SentencePiece and Hugging Face do). */
#include "data/bpe.h"

#include "core/utf8.h"

#include <string.h>

enum { CACHE_KEY = 30, CACHE_IDS = 8, CACHE_SLOTS = 1 << 15 };

struct symbol {
    int32_t start, n; /* bytes of the span; n = 0: merged away */
    int32_t prev, next, id;
};
struct candidate {
    uint64_t order; /* rank, then index of the left symbol */
    int32_t size;   /* bytes of both symbols: differs once one of them has changed */
    int32_t id;
};
struct cached {
    uint8_t n, n_id; /* n = 0: empty */
    char key[CACHE_KEY];
    int32_t ids[CACHE_IDS];
};
struct bpe_work {
    struct symbol *symbols;
    struct candidate *heap;
    int64_t n_symbol, symbol_capacity, n_heap, heap_capacity;
    uint64_t ascii_joint[128][2]; /* joints of ASCII with ASCII as bits */
    bool known[256];              /* single bytes, or ASCII characters, that are tokens */
    struct cached cache[CACHE_SLOTS];
};

static enum status joint(struct bpe *b, uint32_t left, uint32_t right) {
    if (left < 128 && right < 128)
        b->work->ascii_joint[left][right / 64] |= (uint64_t)1 << right % 64;
    return pair_map_put(&b->joints, left, right, 0, 0);
}

static uint32_t code_at(const struct bpe *b, const char *p) {
    return b->bytes ? (unsigned char)*p : utf8_code(p);
}

/* With by_text a merge may end at any inner boundary of a token. */
static enum status joints_of_text(struct bpe *b, const char *text, int64_t n) {
    for (int64_t i = utf8_length(text[0]), before = 0; i < n;) {
        TRY(joint(b, utf8_code(text + before), utf8_code(text + i)));
        before = i;
        i += utf8_length(text[i]);
    }
    return STATUS_OK;
}

static enum status joints_of_merges(struct bpe *b) {
    for (int64_t k = 0; k < b->merges.n_slot; k++) {
        uint64_t key = b->merges.slots[k].key;
        if (!key)
            continue;
        int64_t n_left, n_right;
        const char *left = vocab_bytes(&b->vocab, (int32_t)((key >> 32) - 1), &n_left);
        const char *right = vocab_bytes(&b->vocab, (int32_t)key, &n_right);
        uint32_t last =
            b->bytes ? (unsigned char)left[n_left - 1] : utf8_last_code(left, left + n_left);
        TRY(joint(b, last, code_at(b, right)));
    }
    return STATUS_OK;
}

enum status bpe_prepare(struct bpe *b) {
    TRY(memory_alloc(1, (int64_t)sizeof *b->work, "tokenizer cache", &b->work));
    for (int c = 0; c < (b->bytes ? 256 : 128); c++)
        b->work->known[c] = vocab_find(&b->vocab, &(char){(char)c}, 1) >= 0;
    for (int64_t k = 0; k < b->vocab.n_slot; k++) {
        const struct vocab_slot *s = &b->vocab.slots[k];
        if (!s->hash)
            continue;
        b->longest = size_max(b->longest, s->n);
        if (b->by_text)
            TRY(joints_of_text(b, b->vocab.bytes.data + s->offset, s->n));
    }
    return joints_of_merges(b);
}

void bpe_free(struct bpe *b) {
    vocab_free(&b->vocab);
    pair_map_free(&b->merges);
    pair_map_free(&b->joints);
    memory_free(b->rank);
    if (b->work) {
        memory_free(b->work->symbols);
        memory_free(b->work->heap);
        memory_free(b->work);
    }
    *b = (struct bpe){0};
}

static enum status push_ids(struct ids *out, const int32_t *ids, int64_t n) {
    TRY(memory_grow(&out->data, &out->capacity, out->n + n, (int64_t)sizeof *ids, "token ids"));
    memcpy(out->data + out->n, ids, (size_t)n * sizeof *ids);
    out->n += n;
    return STATUS_OK;
}

static void heap_push(struct bpe_work *w, struct candidate c) {
    int64_t i = w->n_heap++;
    for (int64_t up; i && w->heap[up = (i - 1) / 2].order > c.order; i = up)
        w->heap[i] = w->heap[up];
    w->heap[i] = c;
}

static struct candidate heap_pop(struct bpe_work *w) {
    struct candidate top = w->heap[0], last = w->heap[--w->n_heap];
    int64_t i = 0;
    for (int64_t down; (down = 2 * i + 1) < w->n_heap; i = down) {
        down += down + 1 < w->n_heap && w->heap[down + 1].order < w->heap[down].order;
        if (w->heap[down].order >= last.order)
            break;
        w->heap[i] = w->heap[down];
    }
    w->heap[i] = last;
    return top;
}

/* Put the merge of symbols `left` and its successor into the heap, if there is one. */
static void consider(const struct bpe *b, const char *text, int32_t left) {
    struct bpe_work *w = b->work;
    const struct symbol *l = &w->symbols[left];
    if (l->next < 0)
        return;
    const struct symbol *r = &w->symbols[l->next];
    int32_t size = l->n + r->n, rank, id;
    if (b->by_text) {
        if (size > b->longest || (id = vocab_find(&b->vocab, text + l->start, size)) < 0)
            return;
        rank = b->rank[id];
    } else {
        const struct pair_slot *s = pair_map_find(&b->merges, (uint32_t)l->id, (uint32_t)r->id);
        if (!s)
            return;
        rank = s->rank;
        id = s->id;
    }
    heap_push(w, (struct candidate){(uint64_t)rank << 32 | (uint32_t)left, size, id});
}

static void add_symbol(struct bpe_work *w, int64_t start, int64_t n, int32_t id) {
    int32_t at = (int32_t)w->n_symbol++;
    w->symbols[at] = (struct symbol){(int32_t)start, (int32_t)n, at - 1, at + 1, id};
}

/* First symbols of a span. With by_text an unknown character keeps id -1: it may yet merge. */
static void split_symbols(const struct bpe *b, const char *text, int64_t n) {
    struct bpe_work *w = b->work;
    int64_t unknown = -1, unknown_end = 0; /* an unknown run not yet added */
    w->n_symbol = 0;
    for (int64_t i = 0, length; i < n; i += length) {
        length = b->bytes ? 1 : utf8_length(text[i]);
        int32_t id = vocab_find(&b->vocab, text + i, length);
        if (id >= 0 || b->by_text) {
            if (unknown >= 0)
                add_symbol(w, unknown, unknown_end - unknown, b->unk);
            unknown = -1;
            add_symbol(w, i, length, id);
            continue;
        }
        bool fallback = b->byte_fallback;
        for (int64_t k = 0; fallback && k < length; k++)
            fallback = b->byte_id[(unsigned char)text[i + k]] >= 0;
        if (fallback) {
            for (int64_t k = 0; k < length; k++)
                add_symbol(w, i + k, 1, b->byte_id[(unsigned char)text[i + k]]);
        } else if (b->unk >= 0) {
            if (unknown >= 0 && !b->fuse_unk)
                add_symbol(w, unknown, unknown_end - unknown, b->unk);
            if (unknown < 0 || !b->fuse_unk)
                unknown = i;
            unknown_end = i + length;
        }
    }
    if (unknown >= 0)
        add_symbol(w, unknown, unknown_end - unknown, b->unk);
    if (w->n_symbol)
        w->symbols[w->n_symbol - 1].next = -1;
}

static enum status push_unknown(const struct bpe *b, const char *text, const struct symbol *s,
                                bool after_unknown, struct ids *out) {
    if (!b->byte_fallback)
        return after_unknown && b->fuse_unk ? STATUS_OK : push_ids(out, &b->unk, 1);
    for (int32_t k = 0; k < s->n; k++)
        TRY(push_ids(out, &b->byte_id[(unsigned char)text[s->start + k]], 1));
    return STATUS_OK;
}

static enum status merge_span(const struct bpe *b, const char *text, int64_t n, struct ids *out) {
    struct bpe_work *w = b->work;
    if (n >= INT32_MAX / 2)
        return status_fail(STATUS_FAILED,
                           "a stretch of %lld bytes of text without a place to divide it; at most "
                           "%d can be tokenized: split the text",
                           (long long)n, INT32_MAX / 2);
    TRY(memory_grow(&w->symbols, &w->symbol_capacity, n, (int64_t)sizeof *w->symbols, "symbols"));
    /* Every pair once, and at most two more for each of the fewer than n merges. */
    TRY(memory_grow(&w->heap, &w->heap_capacity, 3 * n, (int64_t)sizeof *w->heap, "merges"));
    split_symbols(b, text, n);
    w->n_heap = 0;
    for (int64_t k = 0; k + 1 < w->n_symbol; k++)
        consider(b, text, (int32_t)k);
    while (w->n_heap) {
        struct candidate c = heap_pop(w);
        int32_t at = (int32_t)(uint32_t)c.order;
        struct symbol *l = &w->symbols[at];
        if (!l->n || l->next < 0 || l->n + w->symbols[l->next].n != c.size)
            continue;
        struct symbol *r = &w->symbols[l->next];
        l->n += r->n;
        l->id = c.id;
        l->next = r->next;
        r->n = 0;
        if (l->next >= 0)
            w->symbols[l->next].prev = at;
        consider(b, text, at);
        if (l->prev >= 0)
            consider(b, text, l->prev);
    }
    bool after_unknown = false;
    for (int32_t k = w->n_symbol ? 0 : -1; k >= 0; k = w->symbols[k].next) {
        const struct symbol *s = &w->symbols[k];
        if (s->id >= 0)
            TRY(push_ids(out, &s->id, 1));
        else
            TRY(push_unknown(b, text, s, after_unknown, out));
        after_unknown = s->id < 0;
    }
    return STATUS_OK;
}

/* A span that no merge leaves: from the cache when it is short. */
static enum status encode_piece(const struct bpe *b, const char *text, int64_t n, struct ids *out) {
    if (n > CACHE_KEY)
        return merge_span(b, text, n, out);
    struct cached *slot = &b->work->cache[vocab_hash(text, n) % CACHE_SLOTS];
    if (slot->n == n && memcmp(slot->key, text, (size_t)n) == 0)
        return push_ids(out, slot->ids, slot->n_id);
    int64_t before = out->n;
    int32_t whole = b->ignore_merges ? vocab_find(&b->vocab, text, n) : -1;
    if (whole >= 0)
        TRY(push_ids(out, &whole, 1));
    else
        TRY(merge_span(b, text, n, out));
    if (out->n > before && out->n - before <= CACHE_IDS) {
        slot->n = (uint8_t)n;
        slot->n_id = (uint8_t)(out->n - before);
        memcpy(slot->key, text, (size_t)n);
        memcpy(slot->ids, out->data + before, (size_t)slot->n_id * sizeof *slot->ids);
    }
    return STATUS_OK;
}

static bool is_known(const struct bpe *b, const char *text, int64_t n) {
    return n == 1 ? b->work->known[(unsigned char)*text] : vocab_find(&b->vocab, text, n) >= 0;
}

static bool may_join(const struct bpe *b, uint32_t left, uint32_t right) {
    if (left < 128 && right < 128)
        return b->work->ascii_joint[left][right / 64] >> right % 64 & 1;
    return pair_map_find(&b->joints, left, right) != NULL;
}

/* A long span is cut where no merge can happen: between two known characters of which no merge's
 * left part ends with the first while its right part begins with the second. The pieces' merges
 * are then independent of each other, and the result is that of the whole. */
enum status bpe_encode(const struct bpe *b, const char *text, int64_t n, struct ids *out) {
    if (n == 0)
        return STATUS_OK;
    if (n <= CACHE_KEY)
        return encode_piece(b, text, n, out);
    if (b->ignore_merges) {
        int32_t whole = vocab_find(&b->vocab, text, n);
        return whole >= 0 ? push_ids(out, &whole, 1) : merge_span(b, text, n, out);
    }
    int64_t start = 0, length, before = 0;
    uint32_t left = 0;
    for (int64_t i = 0; i < n; before = i, i += length) {
        length = b->bytes ? 1 : utf8_length(text[i]);
        uint32_t right = code_at(b, text + i);
        if (i && !may_join(b, left, right) && is_known(b, text + i, length) &&
            is_known(b, text + before, i - before)) {
            TRY(encode_piece(b, text + start, i - start, out));
            start = i;
        }
        left = right;
    }
    return encode_piece(b, text + start, n - start, out);
}
