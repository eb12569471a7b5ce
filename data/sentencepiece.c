/* SentencePiece's normalizer, and its text -> ids. */
#include "core/utf8.h"
#include "data/tokenizer_internal.h"

#include <string.h>

/* The longest entry of the character map that the text starts with (double array, as in
 * darts-clone); NULL when there is none. Indices are checked: the file may lie. */
static const char *map_longest(const struct sentencepiece *p, const char *text, int64_t n,
                               int64_t *length) {
    const char *found = NULL;
    uint64_t at = 0;
    if (!p->units)
        return NULL;
    uint32_t unit = p->units[0];
    at ^= (uint64_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
    for (int64_t i = 0; i < n; i++) {
        at ^= (unsigned char)text[i];
        if (at >= (uint64_t)p->n_unit)
            break;
        unit = p->units[at];
        if ((unit & (1u << 31 | 0xff)) != (unsigned char)text[i])
            break;
        at ^= (uint64_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
        if (unit >> 8 & 1 && at < (uint64_t)p->n_unit) {
            int64_t value = p->units[at] & 0x7fffffff;
            if (value < p->n_replacement) {
                found = p->replacements + value;
                *length = i + 1;
            }
        }
    }
    return found;
}

/* What the text's next piece becomes, and how many bytes of text it takes. */
static const char *next_piece(const struct sentencepiece *p, const char *text, int64_t n,
                              int64_t *n_out, int64_t *taken) {
    if (p->user.n && trie_longest(&p->user, text, n, taken) >= 0) {
        *n_out = *taken;
        return text;
    }
    const char *mapped = map_longest(p, text, n, taken);
    if (mapped) {
        *n_out = (int64_t)strlen(mapped);
        return mapped;
    }
    *n_out = *taken = utf8_length(*text);
    return text;
}

/* Spaces at the start and the end go, runs become one (remove_extra_whitespaces), one is put in
 * front or behind (add_dummy_prefix), and each becomes the visible mark. */
static enum status normalize(struct sentencepiece *p, const char *text, int64_t n) {
    struct text *to = &p->scratch;
    const char *space = p->escape_whitespaces ? SPACE_MARK : " ", *piece;
    int64_t n_space = (int64_t)strlen(space), n_piece, taken, i = 0;
    to->n = 0;
    for (; p->remove_extra_whitespaces && i < n; i += taken) {
        piece = next_piece(p, text + i, n - i, &n_piece, &taken);
        if (n_piece != 1 || *piece != ' ')
            break;
    }
    if (i == n)
        return STATUS_OK;
    if (p->add_dummy_prefix && !p->whitespace_as_suffix)
        TRY(text_add(to, space, n_space));
    bool after_space = p->remove_extra_whitespaces;
    for (; i < n; i += taken) {
        piece = next_piece(p, text + i, n - i, &n_piece, &taken);
        for (; after_space && n_piece && *piece == ' '; n_piece--)
            piece++;
        for (int64_t k = 0; k < n_piece; k++)
            TRY(piece[k] == ' ' ? text_add(to, space, n_space) : text_add(to, piece + k, 1));
        if (n_piece)
            after_space = p->remove_extra_whitespaces && piece[n_piece - 1] == ' ';
    }
    while (p->remove_extra_whitespaces && to->n >= n_space &&
           memcmp(to->data + to->n - n_space, space, (size_t)n_space) == 0)
        to->n -= n_space;
    return p->add_dummy_prefix && p->whitespace_as_suffix ? text_add(to, space, n_space)
                                                          : STATUS_OK;
}

enum status sentencepiece_encode(struct tokenizer *t, const char *text, int64_t n,
                                 struct ids *out) {
    struct sentencepiece *p = t->piece;
    TRY(normalize(p, text, n));
    if (p->scratch.n == 0)
        return STATUS_OK;
    text = p->scratch.data;
    n = p->scratch.n;
    int64_t done = 0;
    for (int64_t i = 0, length; p->user.n && i < n;) {
        int32_t id = trie_longest(&p->user, text + i, n - i, &length);
        if (id < 0) {
            i += utf8_length(text[i]);
            continue;
        }
        TRY(bpe_encode(&t->bpe, text + done, i - done, out));
        TRY(ids_push(out, id));
        i += length;
        done = i;
    }
    return bpe_encode(&t->bpe, text + done, n - done, out);
}
