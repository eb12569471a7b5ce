/* SentencePiece's tokenizer.model: a reader for the few protobuf fields that matter. Field numbers
 * are those of sentencepiece_model.proto. */
#include "core/utf8.h"
#include "data/tokenizer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct wire {
    const unsigned char *p, *end;
    const char *what;
    int field, type; /* of the current entry */
    uint64_t value;  /* types 0, 1 and 5 */
    const char *bytes;
    int64_t n; /* type 2 */
};

static enum status broken(const struct wire *w) {
    return status_fail(STATUS_FAILED,
                       "%s: not a SentencePiece model, or cut short (protobuf ends inside field "
                       "%d)",
                       w->what, w->field);
}

static bool read_varint(struct wire *w, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && w->p < w->end; shift += 7) {
        unsigned char c = *w->p++;
        *out |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80)
            return true;
    }
    return false;
}

static struct wire wire_open(const char *bytes, int64_t n, const char *what) {
    const unsigned char *p = (const unsigned char *)bytes;
    return (struct wire){.p = p, .end = p + n, .what = what};
}

/* The next entry; *more is false at the end. */
static enum status wire_next(struct wire *w, bool *more) {
    uint64_t key;
    *more = w->p < w->end;
    if (!*more)
        return STATUS_OK;
    if (!read_varint(w, &key) || key >> 3 == 0 || key >> 3 > 536870911)
        return broken(w);
    w->field = (int)(key >> 3);
    w->type = (int)(key & 7);
    w->value = 0;
    w->bytes = "";
    w->n = 0;
    if (w->type == 0)
        return read_varint(w, &w->value) ? STATUS_OK : broken(w);
    uint64_t n = w->type == 1 ? 8 : 4;
    if ((w->type != 1 && w->type != 2 && w->type != 5) || (w->type == 2 && !read_varint(w, &n)) ||
        n > (uint64_t)(w->end - w->p))
        return broken(w);
    if (w->type == 2) {
        w->bytes = (const char *)w->p;
        w->n = (int64_t)n;
    } else {
        memcpy(&w->value, w->p, (size_t)n); /* little-endian, as this machine is */
    }
    w->p += n;
    return STATUS_OK;
}

enum piece_type {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE
};

struct loader {
    struct tokenizer *t;
    const char *what;
    float *scores; /* [n_piece] */
    uint8_t *types;
    int64_t n_piece, score_capacity, type_capacity;
    const char *bos, *eos; /* pieces' names, borrowed from the file */
    int64_t n_bos, n_eos;
    uint64_t model_type;
    const char *charsmap;
    int64_t n_charsmap;
};

static enum status load_piece(struct loader *l, struct wire piece) {
    const char *bytes = "";
    int64_t n = 0;
    float score = 0;
    uint64_t type = PIECE_NORMAL;
    bool more, duplicate = false;
    for (;;) {
        TRY(wire_next(&piece, &more));
        if (!more)
            break;
        if (piece.field == 1 && piece.type == 2) {
            bytes = piece.bytes;
            n = piece.n;
        } else if (piece.field == 2 && piece.type == 5) {
            memcpy(&score, &piece.value, sizeof score);
        } else if (piece.field == 3 && piece.type == 0) {
            type = piece.value;
        }
    }
    int32_t id = (int32_t)l->n_piece;
    struct vocab *v = &l->t->bpe.vocab;
    if (n == 0 || n > INT32_MAX / 2 || memchr(bytes, 0, (size_t)n) ||
        utf8_find_invalid(bytes, n) >= 0)
        return status_fail(STATUS_FAILED, "%s: piece %d is empty or not valid UTF-8", l->what, id);
    if (type < PIECE_NORMAL || type > PIECE_BYTE || type == PIECE_UNUSED)
        return status_fail(STATUS_FAILED, "%s: piece %d has type %llu, which is not supported",
                           l->what, id, (unsigned long long)type);
    if (!isfinite(score))
        return status_fail(STATUS_FAILED, "%s: piece %d: its score is not a number", l->what, id);
    if (id == VOCAB_MAX_ID)
        return status_fail(STATUS_FAILED, "%s: more than %d pieces", l->what, VOCAB_MAX_ID);
    if (type == PIECE_NORMAL || type == PIECE_USER_DEFINED)
        TRY(vocab_add(v, bytes, n, id, &duplicate));
    else
        TRY(vocab_name(v, bytes, n, id));
    if (duplicate)
        return status_fail(STATUS_FAILED, "%s: piece %d is there twice", l->what, id);
    if (type == PIECE_USER_DEFINED)
        TRY(trie_add(&l->t->piece->user, bytes, n, id));
    TRY(memory_grow(&l->scores, &l->score_capacity, (int64_t)id + 1, (int64_t)sizeof score,
                    "scores"));
    TRY(memory_grow(&l->types, &l->type_capacity, (int64_t)id + 1, 1, "piece types"));
    l->scores[id] = score;
    l->types[id] = (uint8_t)type;
    l->n_piece++;
    return STATUS_OK;
}

static enum status load_trainer(struct loader *l, struct wire spec) {
    bool more;
    for (;;) {
        TRY(wire_next(&spec, &more));
        if (!more)
            return STATUS_OK;
        if (spec.field == 3)
            l->model_type = spec.value;
        else if (spec.field == 24)
            l->t->piece->whitespace_as_suffix = spec.value != 0;
        else if (spec.field == 35)
            l->t->bpe.byte_fallback = spec.value != 0;
        else if (spec.field == 46 && spec.n) {
            l->bos = spec.bytes;
            l->n_bos = spec.n;
        } else if (spec.field == 47 && spec.n) {
            l->eos = spec.bytes;
            l->n_eos = spec.n;
        }
    }
}

static enum status load_normalizer(struct loader *l, struct wire spec) {
    struct sentencepiece *p = l->t->piece;
    bool more;
    for (;;) {
        TRY(wire_next(&spec, &more));
        if (!more)
            return STATUS_OK;
        if (spec.field == 2) {
            l->charsmap = spec.bytes;
            l->n_charsmap = spec.n;
        } else if (spec.field == 3) {
            p->add_dummy_prefix = spec.value != 0;
        } else if (spec.field == 4) {
            p->remove_extra_whitespaces = spec.value != 0;
        } else if (spec.field == 5) {
            p->escape_whitespaces = spec.value != 0;
        }
    }
}

/* Little-endian: bytes of the double array (u32), the array, the replacements. */
static enum status load_charsmap(struct loader *l) {
    struct sentencepiece *p = l->t->piece;
    uint32_t n_trie;
    if (l->n_charsmap == 0)
        return STATUS_OK;
    if (l->n_charsmap >= 4) {
        memcpy(&n_trie, l->charsmap, 4);
        int64_t n_rest = l->n_charsmap - 4 - (int64_t)n_trie;
        if (n_trie > 0 && n_trie % 4 == 0 && n_rest > 0 && l->charsmap[l->n_charsmap - 1] == 0) {
            p->n_unit = n_trie / 4;
            p->n_replacement = n_rest;
            TRY(arena_alloc(&l->t->arena, p->n_unit, 4, &p->units));
            memcpy(p->units, l->charsmap + 4, n_trie);
            TRY(arena_alloc(&l->t->arena, n_rest, 1, &p->replacements));
            memcpy(p->replacements, l->charsmap + 4 + n_trie, (size_t)n_rest);
            if (utf8_find_invalid(p->replacements, n_rest) < 0)
                return STATUS_OK;
        }
    }
    return status_fail(STATUS_FAILED, "%s: its precompiled_charsmap is not valid", l->what);
}

struct scored {
    float score;
    int32_t id;
};
static int by_score(const void *a, const void *b) {
    float x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return (x < y) - (x > y);
}

/* Merging into a better score comes first; equal scores are equal ranks. */
static enum status rank_pieces(struct loader *l) {
    struct bpe *b = &l->t->bpe;
    struct scored *order;
    TRY(memory_alloc(l->n_piece, (int64_t)sizeof *b->rank, "ranks", &b->rank));
    TRY(memory_alloc(l->n_piece, (int64_t)sizeof *order, "ranks", &order));
    for (int64_t k = 0; k < l->n_piece; k++)
        order[k] = (struct scored){l->scores[k], (int32_t)k};
    qsort(order, (size_t)l->n_piece, sizeof *order, by_score);
    for (int64_t k = 0, rank = 0; k < l->n_piece; k++) {
        rank += k > 0 && order[k].score != order[k - 1].score;
        b->rank[order[k].id] = (int32_t)rank;
    }
    memory_free(order);
    return STATUS_OK;
}

/* <0xHH>; -1 for anything else. */
static int byte_of_piece(const char *name, int64_t n) {
    static const char digits[] = "0123456789ABCDEF";
    if (n != 6 || memcmp(name, "<0x", 3) != 0 || name[5] != '>')
        return -1;
    const char *high = memchr(digits, name[3], 16), *low = memchr(digits, name[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* Kinds of the pieces, <unk>, <0xHH>, BOS and EOS. */
static enum status name_pieces(struct loader *l) {
    struct tokenizer *t = l->t;
    static const uint8_t kinds[] = {[PIECE_NORMAL] = TOKEN_PLAIN,
                                    [PIECE_UNKNOWN] = TOKEN_UNKNOWN,
                                    [PIECE_CONTROL] = TOKEN_CONTROL,
                                    [PIECE_USER_DEFINED] = TOKEN_PLAIN,
                                    [PIECE_BYTE] = TOKEN_BYTE};
    int64_t n_byte = 0;
    TRY(memory_alloc(l->n_piece, 1, "token kinds", &t->kinds));
    for (int32_t id = 0; id < (int32_t)l->n_piece; id++) {
        int64_t n;
        const char *name = vocab_bytes(&t->bpe.vocab, id, &n);
        t->kinds[id] = kinds[l->types[id]];
        if (l->types[id] == PIECE_CONTROL && n == l->n_bos && !memcmp(name, l->bos, (size_t)n))
            t->bos = id;
        if (l->types[id] == PIECE_CONTROL && n == l->n_eos && !memcmp(name, l->eos, (size_t)n))
            t->eos = id;
        if (l->types[id] == PIECE_UNKNOWN) {
            if (t->bpe.unk >= 0)
                return status_fail(STATUS_FAILED, "%s: two unknown pieces, %d and %d", l->what,
                                   t->bpe.unk, id);
            t->bpe.unk = id;
        }
        if (l->types[id] == PIECE_BYTE) {
            int value = byte_of_piece(name, n);
            if (value < 0 || t->bpe.byte_id[value] >= 0)
                return status_fail(STATUS_FAILED,
                                   "%s: piece %d is no byte piece <0x00>...<0xFF>, or there twice",
                                   l->what, id);
            t->bpe.byte_id[value] = id;
            n_byte++;
        }
    }
    if (t->bpe.unk < 0)
        return status_fail(STATUS_FAILED, "%s: no unknown piece", l->what);
    if (t->bpe.byte_fallback && n_byte != 256)
        return status_fail(STATUS_FAILED, "%s: byte_fallback with %lld of the 256 byte pieces",
                           l->what, (long long)n_byte);
    return STATUS_OK;
}

static enum status load_all(struct loader *l, const char *bytes, int64_t n) {
    static const char *const types[] = {"0", "UNIGRAM", "BPE", "WORD", "CHAR"};
    struct wire w = wire_open(bytes, n, l->what);
    bool more;
    for (;;) {
        TRY(wire_next(&w, &more));
        if (!more)
            break;
        struct wire inner = wire_open(w.bytes, w.n, l->what);
        if (w.field <= 3 && w.type != 2)
            return broken(&w);
        if (w.field == 1)
            TRY(load_piece(l, inner));
        else if (w.field == 2)
            TRY(load_trainer(l, inner));
        else if (w.field == 3)
            TRY(load_normalizer(l, inner));
    }
    if (l->n_piece == 0)
        return status_fail(STATUS_FAILED, "%s: not a SentencePiece model: it has no pieces",
                           l->what);
    if (l->model_type != 2)
        return status_fail(STATUS_FAILED,
                           "%s: SentencePiece model type %s is not supported, only BPE is", l->what,
                           l->model_type < 5 ? types[l->model_type] : "?");
    TRY(load_charsmap(l));
    TRY(rank_pieces(l));
    TRY(name_pieces(l));
    return bpe_prepare(&l->t->bpe);
}

enum status tokenizer_parse_model(struct tokenizer *t, const char *bytes, int64_t n,
                                  const char *what) {
    TRY(arena_alloc(&t->arena, 1, (int64_t)sizeof *t->piece, &t->piece));
    struct sentencepiece *p = t->piece;
    p->add_dummy_prefix = p->remove_extra_whitespaces = p->escape_whitespaces = true;
    t->bpe.by_text = t->bpe.fuse_unk = true;
    struct loader l = {.t = t,
                       .what = what,
                       .model_type = 1 /* the default of the format */,
                       .bos = "<s>",
                       .n_bos = 3,
                       .eos = "</s>",
                       .n_eos = 4};
    enum status status = load_all(&l, bytes, n);
    memory_free(l.scores);
    memory_free(l.types);
    t->marks_spaces = p->escape_whitespaces;
    t->drops_first_space = p->add_dummy_prefix || p->remove_extra_whitespaces;
    t->adds_bos = t->bos >= 0; /* what LlamaTokenizer does unless tokenizer_config.json objects */
    return status;
}
