/* The pre-tokenizers of tokenizer.json: each step splits a piece and hands the parts to the next;
 * the last parts are the words that the merges work on. */
#include "core/utf8.h"
#include "data/tokenizer_internal.h"

#include <string.h>

/* A piece being split: matches and the stretches between them arrive in order, together they
 * cover it; neighbours are joined as the behavior says. */
struct splitter {
    struct tokenizer *t;
    int step;
    const char *text;
    bool first;
    struct ids *out;
    int64_t start, end; /* the part not yet handed on; start = -1: none */
    bool was_match;
};

static enum status flush(struct splitter *s) {
    if (s->start < 0 || s->start == s->end)
        return STATUS_OK;
    return tokenizer_split(s->t, s->step + 1, s->text + s->start, s->end - s->start,
                           s->first && s->start == 0, s->out);
}

static enum status feed(struct splitter *s, enum split_behavior behavior, int64_t start,
                        int64_t end, bool match) {
    if (start == end || (match && behavior == SPLIT_REMOVED))
        return STATUS_OK;
    bool join = behavior == SPLIT_CONTIGUOUS             ? match == s->was_match
                : behavior == SPLIT_MERGED_WITH_PREVIOUS ? match && !s->was_match
                : behavior == SPLIT_MERGED_WITH_NEXT     ? !match && s->was_match
                                                         : false;
    if (!join || s->start < 0) {
        TRY(flush(s));
        s->start = start;
    }
    s->end = end;
    s->was_match = match;
    return STATUS_OK;
}

static enum status split_regex(struct splitter *s, const struct pre_step *p, int64_t n) {
    int64_t from = 0, start, end;
    for (;;) {
        TRY(regex_next(p->regex, s->text, n, from, &start, &end));
        if (start < 0)
            break;
        TRY(feed(s, p->behavior, from, start, p->invert));
        TRY(feed(s, p->behavior, start, end, !p->invert));
        from = end;
    }
    TRY(feed(s, p->behavior, from, n, p->invert));
    return flush(s);
}

/* Spaces become marks, one may be put in front, and every mark begins a part. */
static enum status split_metaspace(struct splitter *s, struct pre_step *p, int64_t n) {
    struct text *to = &p->scratch;
    to->n = 0;
    bool marked = n > 0 && (s->text[0] == ' ' ||
                            (n >= p->n_mark && memcmp(s->text, p->mark, (size_t)p->n_mark) == 0));
    if (!marked && (p->prepend == PREPEND_ALWAYS || (p->prepend == PREPEND_FIRST && s->first)))
        TRY(text_add(to, p->mark, p->n_mark));
    for (int64_t i = 0; i < n;) {
        const char *space = memchr(s->text + i, ' ', (size_t)(n - i));
        int64_t end = space ? space - s->text : n;
        TRY(text_add(to, s->text + i, end - i));
        if (space)
            TRY(text_add(to, p->mark, p->n_mark));
        i = end + 1;
    }
    s->text = to->data;
    int64_t from = 0;
    while (p->split) {
        const char *mark =
            memmem(to->data + from, (size_t)(to->n - from), p->mark, (size_t)p->n_mark);
        if (!mark)
            break;
        int64_t start = mark - to->data;
        TRY(feed(s, SPLIT_MERGED_WITH_NEXT, from, start, false));
        TRY(feed(s, SPLIT_MERGED_WITH_NEXT, start, start + p->n_mark, true));
        from = start + p->n_mark;
    }
    TRY(feed(s, SPLIT_MERGED_WITH_NEXT, from, to->n, false));
    return flush(s);
}

enum status tokenizer_split(struct tokenizer *t, int step, const char *text, int64_t n, bool first,
                            struct ids *out) {
    if (step == t->n_pre)
        return bpe_encode(&t->bpe, text, n, out);
    struct pre_step *p = &t->pre[step];
    struct splitter s = {t, step, text, first, out, -1, -1, false};
    switch (p->kind) {
    case PRE_SPLIT:
        return split_regex(&s, p, n);
    case PRE_METASPACE:
        return split_metaspace(&s, p, n);
    case PRE_PREFIX_SPACE:
        break;
    }
    if (n > 0 && text[0] != ' ') {
        p->scratch.n = 0;
        TRY(text_add(&p->scratch, " ", 1));
        TRY(text_add(&p->scratch, text, n));
        text = p->scratch.data;
        n = p->scratch.n;
    }
    return tokenizer_split(t, step + 1, text, n, first, out);
}
