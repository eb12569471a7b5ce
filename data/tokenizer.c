/* Text -> added tokens and pieces -> normalizer -> splits -> merges -> ids, and ids -> bytes. */
#include "core/utf8.h"
#include "data/tokenizer_internal.h"

#include "core/file.h"

#include <string.h>

enum status ids_push(struct ids *ids, int32_t id) {
    TRY(memory_grow(&ids->data, &ids->capacity, ids->n + 1, (int64_t)sizeof id, "token ids"));
    ids->data[ids->n++] = id;
    return STATUS_OK;
}

void ids_free(struct ids *ids) {
    memory_free(ids->data);
    *ids = (struct ids){0};
}

enum status tokenizer_parse(const char *bytes, int64_t n, const char *what,
                            struct tokenizer **out) {
    struct tokenizer *t;
    *out = NULL;
    TRY(memory_alloc(1, (int64_t)sizeof *t, "tokenizer", &t));
    t->bos = t->eos = t->bpe.unk = -1;
    memset(t->bpe.byte_id, -1, sizeof t->bpe.byte_id);
    int64_t k = 0;
    while (k < n && strchr(" \t\r\n", bytes[k]) && bytes[k])
        k++;
    enum status status = k < n && bytes[k] == '{' ? tokenizer_parse_json(t, bytes, n, what)
                                                  : tokenizer_parse_model(t, bytes, n, what);
    if (status == STATUS_OK)
        *out = t;
    else
        tokenizer_close(t);
    return status;
}

/* The file to read of a folder, and the folder of a file. */
static enum status find_files(struct arena *arena, const char *path, char **file, char **dir) {
    if (!path_is_dir(path)) {
        int64_t n = path_base(path) - path;
        *file = NULL;
        TRY(arena_strdup(arena, path, file));
        return n ? arena_strndup(arena, path, n, dir) : arena_strdup(arena, ".", dir);
    }
    TRY(arena_strdup(arena, path, dir));
    TRY(path_join(arena, path, "tokenizer.json", file));
    if (path_exists(*file))
        return STATUS_OK;
    TRY(path_join(arena, path, "tokenizer.model", file));
    if (path_exists(*file))
        return STATUS_OK;
    return status_fail(STATUS_FAILED,
                       "%s: no tokenizer.json and no tokenizer.model there: copy one into it or "
                       "name a file",
                       path);
}

enum status tokenizer_open(const char *path, struct tokenizer **out) {
    enum status status;
    struct arena arena = {0};
    struct text bytes = {0};
    char *file, *dir;
    *out = NULL;
    TRY_OUT(find_files(&arena, path, &file, &dir));
    TRY_OUT(file_read(file, (int64_t)1 << 30, &bytes));
    TRY_OUT(tokenizer_parse(bytes.data ? bytes.data : "", bytes.n, file, out));
    TRY_OUT(tokenizer_read_config(*out, dir));
out:
    if (status != STATUS_OK) {
        tokenizer_close(*out);
        *out = NULL;
    }
    text_free(&bytes);
    arena_free(&arena);
    return status;
}

void tokenizer_close(struct tokenizer *t) {
    if (!t)
        return;
    bpe_free(&t->bpe);
    trie_free(&t->raw_added);
    trie_free(&t->normal_added);
    for (int k = 0; k < MAX_STEPS; k++) {
        regex_free(t->normal[k].regex);
        regex_free(t->pre[k].regex);
        text_free(&t->pre[k].scratch);
    }
    text_free(&t->normal_scratch[0]);
    text_free(&t->normal_scratch[1]);
    regex_free(t->word);
    regex_free(t->space);
    if (t->piece) {
        trie_free(&t->piece->user);
        text_free(&t->piece->scratch);
    }
    memory_free(t->kinds);
    arena_free(&t->arena);
    memory_free(t);
}

int64_t tokenizer_n_vocab(const struct tokenizer *t) {
    return t->bpe.vocab.n_id;
}
int32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}
int32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}
bool tokenizer_adds_bos(const struct tokenizer *t) {
    return t->adds_bos;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *content) {
    int64_t n = (int64_t)strlen(content), n_token;
    for (int64_t id = 0; id < t->bpe.vocab.n_id; id++) {
        const char *token = vocab_bytes(&t->bpe.vocab, (int32_t)id, &n_token);
        if (n_token == n && memcmp(token, content, (size_t)n) == 0)
            return (int32_t)id;
    }
    return -1;
}

/* Whether the character at text[i] (before: the one that ends there) is in the class. */
static enum status in_class(struct regex *class, const char *text, int64_t n, int64_t i,
                            bool before, int64_t *length) {
    int64_t start, end;
    *length = 0;
    if (before ? i == 0 : i == n)
        return STATUS_OK;
    int64_t from = i;
    if (before)
        do
            from--;
        while (((unsigned char)text[from] & 0xc0) == 0x80);
    TRY(regex_next(class, text + from, utf8_length(text[from]), 0, &start, &end));
    *length = start == 0 ? end : 0;
    return STATUS_OK;
}

/* single_word, lstrip and rstrip of an added token found at [*start, *end). */
static enum status adjust(const struct tokenizer *t, const struct added_token *a, const char *text,
                          int64_t n, int64_t done, int64_t *start, int64_t *end, bool *keep) {
    int64_t length, before;
    *keep = true;
    if (a->single_word) {
        TRY(in_class(t->word, text, n, *start, true, &before));
        TRY(in_class(t->word, text, n, *end, false, &length));
        *keep = !before && !length;
    }
    for (length = 1; *keep && a->lstrip && length && *start > done; *start -= length)
        TRY(in_class(t->space, text, n, *start, true, &length));
    *start = size_max(*start, done);
    for (length = 1; *keep && a->rstrip && length; *end += length)
        TRY(in_class(t->space, text, n, *end, false, &length));
    return STATUS_OK;
}

/* The stretches of text between the added tokens of `trie` go to encode_rest, in order. */
typedef enum status encode_fn(struct tokenizer *t, const char *text, int64_t n, bool first,
                              struct ids *out);

static enum status encode_added(struct tokenizer *t, const struct trie *trie, const char *text,
                                int64_t n, bool first, encode_fn *encode_rest, struct ids *out) {
    int64_t done = 0;
    for (int64_t i = 0, length = 0; trie->n && i < n;) {
        int32_t found =
            trie->root[(unsigned char)text[i]] ? trie_longest(trie, text + i, n - i, &length) : -1;
        if (found < 0) {
            i++;
            continue;
        }
        const struct added_token *a = &t->added[found];
        int64_t start = i, end = i + length;
        bool keep;
        i = end;
        TRY(adjust(t, a, text, n, done, &start, &end, &keep));
        if (!keep)
            continue;
        if (done < start)
            TRY(encode_rest(t, text + done, start - done, first && done == 0, out));
        TRY(ids_push(out, a->id));
        done = end;
    }
    return done < n ? encode_rest(t, text + done, n - done, first && done == 0, out) : STATUS_OK;
}

static enum status encode_piece(struct tokenizer *t, const char *text, int64_t n, bool first,
                                struct ids *out) {
    return tokenizer_split(t, 0, text, n, first, out);
}

static enum status encode_raw(struct tokenizer *t, const char *text, int64_t n, bool first,
                              struct ids *out) {
    TRY(tokenizer_normalize(t, text, n, &text, &n));
    return encode_added(t, &t->normal_added, text, n, first, encode_piece, out);
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, int64_t n,
                             struct ids *out) {
    struct tokenizer *work = (struct tokenizer *)(uintptr_t)t; /* scratch and cache change only */
    int64_t bad = utf8_find_invalid(text, n);
    if (bad >= 0)
        return status_fail(STATUS_FAILED, "text: invalid UTF-8 at byte %lld (0x%02x)",
                           (long long)bad, (unsigned)(unsigned char)text[bad]);
    if (n == 0)
        return STATUS_OK;
    if (t->piece)
        return sentencepiece_encode(work, text, n, out);
    return encode_added(work, &t->raw_added, text, n, true, encode_raw, out);
}

/* A token's text with marks as spaces. */
static enum status decode_marked(const char *bytes, int64_t n, bool drop_first, struct text *out) {
    int64_t n_mark = (int64_t)strlen(SPACE_MARK);
    for (int64_t i = 0; i < n;) {
        bool mark = n - i >= n_mark && memcmp(bytes + i, SPACE_MARK, (size_t)n_mark) == 0;
        if (!(mark && i == 0 && drop_first))
            TRY(text_add(out, mark ? " " : bytes + i, 1));
        i += mark ? n_mark : 1;
    }
    return STATUS_OK;
}

enum status tokenizer_decode(const struct tokenizer *t, int32_t previous, int32_t id,
                             struct text *out) {
    int64_t n;
    const char *bytes = vocab_bytes(&t->bpe.vocab, id, &n);
    if (!bytes)
        return status_fail(STATUS_FAILED, "the tokenizer has no token with id %d (it has %lld)", id,
                           (long long)t->bpe.vocab.n_id);
    bool starts = previous < 0 || previous >= t->bpe.vocab.n_id || previous == t->bos ||
                  t->kinds[previous] == TOKEN_CONTROL;
    switch ((enum token_kind)t->kinds[id]) {
    case TOKEN_CONTROL:
        return STATUS_OK;
    case TOKEN_UNKNOWN:
        return text_puts(out, " \xe2\x81\x87 "); /* SentencePiece's sign for it */
    case TOKEN_BYTE: {
        unsigned value = 0;
        for (int k = 3; k < 5; k++) /* "<0xHH>" */
            value = value * 16 + (unsigned)(bytes[k] <= '9' ? bytes[k] - '0' : bytes[k] - 'A' + 10);
        return text_add(out, &(char){(char)value}, 1);
    }
    case TOKEN_PLAIN:
        if (t->marks_spaces)
            return decode_marked(bytes, n, starts && t->drops_first_space, out);
        break;
    case TOKEN_VERBATIM:
        break;
    }
    return text_add(out, bytes, n);
}
