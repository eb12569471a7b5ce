/* The normalizers of tokenizer.json. Unicode forms come from utf8proc, line by line, and only for
 * lines that hold a character that could change. */
#include "core/utf8.h"
#include "data/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Every character below is its own normal form and combines with nothing before it. */
static uint32_t first_unstable(int kind) {
    return kind == NORMAL_NFC ? 0x300 : kind == NORMAL_NFD ? 0xc0 : 0xa0;
}

static enum status unicode_form(const struct normal_step *s, const char *text, int64_t n,
                                struct text *out) {
    utf8proc_option_t options = UTF8PROC_STABLE;
    options |=
        s->kind == NORMAL_NFC || s->kind == NORMAL_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (s->kind == NORMAL_NFKC || s->kind == NORMAL_NFKD)
        options |= UTF8PROC_COMPAT;
    uint32_t limit = first_unstable(s->kind);
    for (int64_t start = 0, end; start < n; start = end) {
        const char *newline = memchr(text + start, '\n', (size_t)(n - start));
        end = newline ? newline - text + 1 : n;
        bool stable = true;
        for (int64_t i = start; stable && i < end; i += utf8_length(text[i]))
            stable = utf8_code(text + i) < limit;
        if (stable) {
            TRY(text_add(out, text + start, end - start));
            continue;
        }
        utf8proc_uint8_t *mapped = NULL;
        utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text + start,
                                               (utf8proc_ssize_t)(end - start), &mapped, options);
        if (length < 0)
            return status_fail(STATUS_FAILED, "Unicode normalization failed: %s",
                               utf8proc_errmsg(length));
        enum status status = text_add(out, mapped, (int64_t)length);
        free(mapped);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status replace(const struct normal_step *s, const char *text, int64_t n,
                           struct text *out) {
    int64_t from = 0, start, end;
    for (;;) {
        TRY(regex_next(s->regex, text, n, from, &start, &end));
        if (start < 0)
            return text_add(out, text + from, n - from);
        TRY(text_add(out, text + from, start - from));
        TRY(text_add(out, s->content, s->n_content));
        from = end;
    }
}

enum status tokenizer_normalize(struct tokenizer *t, const char *text, int64_t n, const char **out,
                                int64_t *n_out) {
    for (int k = 0; k < t->n_normal && n > 0; k++) {
        const struct normal_step *s = &t->normal[k];
        struct text *to = &t->normal_scratch[k % 2];
        to->n = 0;
        if (s->kind == NORMAL_PREPEND) {
            TRY(text_add(to, s->content, s->n_content));
            TRY(text_add(to, text, n));
        } else if (s->kind == NORMAL_REPLACE) {
            TRY(replace(s, text, n, to));
        } else {
            TRY(unicode_form(s, text, n, to));
        }
        text = to->data;
        n = to->n;
    }
    *out = text;
    *n_out = n;
    return STATUS_OK;
}
