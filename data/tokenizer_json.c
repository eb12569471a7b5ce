/* Hugging Face tokenizer.json of type BPE. "truncation" and "padding" are left alone: they are how
 * the file was last used, not what the tokenizer is. */
#include "core/utf8.h"
#include "data/tokenizer_internal.h"

#include <stdio.h>
#include <string.h>

/* GPT-2's printable stand-ins for bytes: those that print stand for themselves, the others follow
 * from U+0100 on in order. -1: the code point stands for no byte. */
static int byte_of_code(uint32_t code) {
    if ((code >= '!' && code <= '~') || (code >= 0xa1 && code <= 0xac) ||
        (code >= 0xae && code <= 0xff))
        return (int)code;
    if (code < 0x100)
        return -1;
    code -= 0x100;
    if (code <= 0x20)
        return (int)code;
    if (code <= 0x42)
        return (int)(0x7f + code - 0x21);
    return code == 0x43 ? 0xad : -1;
}

/* What a string of vocab or merges means in the text: with ByteLevel, the bytes it stands for;
 * *n = -1 when it stands for none (such a token can only be an added one). */
static enum status token_bytes(const struct tokenizer *t, const char *token, int64_t n_token,
                               struct text *scratch, const char **out, int64_t *n) {
    *out = token;
    *n = n_token;
    if (!t->bpe.bytes)
        return STATUS_OK;
    scratch->n = 0;
    for (int64_t i = 0; i < n_token; i += utf8_length(token[i])) {
        int byte = byte_of_code(utf8_code(token + i));
        if (byte < 0) {
            *n = -1;
            return STATUS_OK;
        }
        TRY(text_add(scratch, &(char){(char)byte}, 1));
    }
    *out = scratch->data;
    *n = scratch->n;
    return STATUS_OK;
}

static enum status check_utf8(const char *text, const char *what) {
    int64_t n = (int64_t)strlen(text);
    return utf8_find_invalid(text, n) < 0
               ? STATUS_OK
               : status_fail(STATUS_FAILED, "%s: a string that is not valid UTF-8", what);
}

static enum status check_id(const struct json *id, const char *token, const char *what) {
    if (json_is_int(id) && json_int(id) >= 0 && json_int(id) <= VOCAB_MAX_ID)
        return STATUS_OK;
    return status_fail(STATUS_FAILED, "%s: token \"%s\": expected an id from 0 to %d", what, token,
                       VOCAB_MAX_ID);
}

static enum status load_vocab(struct tokenizer *t, const struct json *vocab, const char *what,
                              struct text *scratch) {
    if (!json_is_object(vocab) || !json_first(vocab))
        return status_fail(STATUS_FAILED, "%s: no model.vocab with tokens and their ids", what);
    struct vocab *v = &t->bpe.vocab;
    for (const struct json *c = json_first(vocab); c; c = json_next(c)) {
        const char *token = json_key(c), *bytes;
        int64_t n;
        TRY(check_utf8(token, what));
        TRY(check_id(c, token, what));
        int32_t id = (int32_t)json_int(c);
        (void)vocab_bytes(v, id, &n);
        if (n >= 0)
            return status_fail(STATUS_FAILED, "%s: two tokens have id %d, one is \"%s\"", what, id,
                               token);
        bool duplicate = false;
        TRY(token_bytes(t, token, (int64_t)strlen(token), scratch, &bytes, &n));
        if (n > 0)
            TRY(vocab_add(v, bytes, n, id, &duplicate));
        else
            TRY(vocab_name(v, token, (int64_t)strlen(token), id));
        if (duplicate)
            return status_fail(STATUS_FAILED, "%s: token \"%s\" is there twice", what, token);
    }
    return STATUS_OK;
}

/* "a b" or ["a", "b"]. */
static enum status merge_parts(const struct json *merge, const char *what, const char *part[2],
                               int64_t n[2]) {
    const char *text = json_string(merge);
    if (text) {
        const char *space = strchr(text, ' ');
        if (space && !strchr(space + 1, ' ')) {
            part[0] = text;
            part[1] = space + 1;
            n[0] = space - text;
            n[1] = (int64_t)strlen(part[1]);
            return STATUS_OK;
        }
    } else if (json_len(merge) == 2) {
        part[0] = json_string(json_first(merge));
        part[1] = json_string(json_next(json_first(merge)));
        if (part[0] && part[1]) {
            n[0] = (int64_t)strlen(part[0]);
            n[1] = (int64_t)strlen(part[1]);
            return STATUS_OK;
        }
    }
    return status_fail(STATUS_FAILED, "%s: merge %s%s%sis not a pair of tokens", what,
                       text ? "\"" : "", text ? text : "", text ? "\" " : "");
}

static enum status load_merge(struct tokenizer *t, const struct json *merge, int32_t rank,
                              const char *what, struct text scratch[2]) {
    const char *part[2];
    int64_t n[2];
    int32_t id[3];
    struct text *joined = &scratch[1];
    TRY(merge_parts(merge, what, part, n));
    joined->n = 0;
    for (int k = 0; k < 2; k++) {
        const char *bytes;
        int64_t n_byte;
        TRY(check_utf8(part[k], what));
        TRY(token_bytes(t, part[k], n[k], &scratch[0], &bytes, &n_byte));
        if (n_byte < 0)
            return STATUS_OK; /* no text leads to it */
        id[k] = n_byte ? vocab_find(&t->bpe.vocab, bytes, n_byte) : -1;
        if (id[k] < 0)
            return status_fail(STATUS_FAILED, "%s: merge %d: \"%.*s\" is not in the vocabulary",
                               what, rank, (int)size_min(n[k], 64), part[k]);
        TRY(text_add(joined, bytes, n_byte));
    }
    id[2] = vocab_find(&t->bpe.vocab, joined->data, joined->n);
    if (id[2] < 0)
        return status_fail(
            STATUS_FAILED, "%s: merge %d: \"%.*s\" with \"%.*s\" is not in the vocabulary", what,
            rank, (int)size_min(n[0], 64), part[0], (int)size_min(n[1], 64), part[1]);
    return pair_map_put(&t->bpe.merges, (uint32_t)id[0], (uint32_t)id[1], rank, id[2]);
}

static enum status load_merges(struct tokenizer *t, const struct json *merges, const char *what,
                               struct text scratch[2]) {
    if (!json_is_array(merges))
        return status_fail(STATUS_FAILED, "%s: no model.merges", what);
    int32_t rank = 0;
    for (const struct json *c = json_first(merges); c; c = json_next(c))
        TRY(load_merge(t, c, rank++, what, scratch));
    return STATUS_OK;
}

static enum status refuse_text(const struct json *model, const char *key, const char *what) {
    const char *text = "";
    TRY(json_opt_string(model, what, key, &text));
    if (*text)
        return status_fail(STATUS_FAILED, "%s: model.%s \"%s\" is not supported", what, key, text);
    return STATUS_OK;
}

static enum status load_options(struct tokenizer *t, const struct json *model, const char *what) {
    double dropout = 0;
    TRY(json_opt_double(model, what, "dropout", &dropout));
    if (dropout != 0)
        return status_fail(STATUS_FAILED, "%s: model.dropout %g is not supported", what, dropout);
    TRY(refuse_text(model, "continuing_subword_prefix", what));
    TRY(refuse_text(model, "end_of_word_suffix", what));
    TRY(json_opt_bool(model, what, "fuse_unk", &t->bpe.fuse_unk));
    TRY(json_opt_bool(model, what, "byte_fallback", &t->bpe.byte_fallback));
    TRY(json_opt_bool(model, what, "ignore_merges", &t->bpe.ignore_merges));
    return STATUS_OK;
}

/* unk_token and <0x00> ... <0xFF>. */
static enum status find_fallbacks(struct tokenizer *t, const struct json *model, const char *what) {
    const char *unk = NULL;
    TRY(json_opt_string(model, what, "unk_token", &unk));
    if (unk) {
        t->bpe.unk = tokenizer_find(t, unk);
        if (t->bpe.unk < 0)
            return status_fail(STATUS_FAILED, "%s: unk_token \"%s\" is not in the vocabulary", what,
                               unk);
    }
    for (int c = 0; c < 256 && t->bpe.byte_fallback; c++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)c);
        t->bpe.byte_id[c] = vocab_find(&t->bpe.vocab, name, 6);
        if (t->bpe.byte_id[c] >= 0)
            t->kinds[t->bpe.byte_id[c]] = TOKEN_BYTE;
    }
    return STATUS_OK;
}

static enum status load_added(struct tokenizer *t, const struct json *token, const char *what) {
    const char *content, *pattern;
    const struct json *id = json_get(token, "id");
    struct added_token *a = &t->added[t->n_added];
    bool special = false, normalized;
    int64_t n, n_content;
    TRY(json_need_string(token, what, "content", &content));
    TRY(check_utf8(content, what));
    TRY(check_id(id, content, what));
    n = n_content = (int64_t)strlen(content);
    a->id = (int32_t)json_int(id);
    TRY(json_opt_bool(token, what, "special", &special));
    normalized = !special;
    TRY(json_opt_bool(token, what, "normalized", &normalized));
    TRY(json_opt_bool(token, what, "lstrip", &a->lstrip));
    TRY(json_opt_bool(token, what, "rstrip", &a->rstrip));
    TRY(json_opt_bool(token, what, "single_word", &a->single_word));
    if (n_content == 0)
        return STATUS_OK;
    int32_t known = t->bpe.bytes ? -1 : vocab_find(&t->bpe.vocab, content, n_content);
    if (known >= 0 && known != a->id)
        return status_fail(STATUS_FAILED,
                           "%s: added token \"%s\" has id %d, but %d in the vocabulary", what,
                           content, a->id, known);
    if (!normalized)
        TRY(trie_add(&t->raw_added, content, n_content, (int32_t)t->n_added));
    else {
        TRY(tokenizer_normalize(t, content, n_content, &pattern, &n));
        TRY(trie_add(&t->normal_added, pattern, n, (int32_t)t->n_added));
    }
    t->n_added++;
    return vocab_name(&t->bpe.vocab, content, n_content, a->id);
}

static enum status load_all_added(struct tokenizer *t, const struct json *list, const char *what) {
    bool needs_classes = false;
    TRY(arena_alloc(&t->arena, json_len(list), (int64_t)sizeof *t->added, &t->added));
    for (const struct json *c = json_first(list); c; c = json_next(c))
        TRY(load_added(t, c, what));
    for (int64_t k = 0; k < t->n_added; k++)
        needs_classes |= t->added[k].single_word || t->added[k].lstrip || t->added[k].rstrip;
    if (!needs_classes)
        return STATUS_OK;
    /* \w of Rust's regular expressions, which is not quite Oniguruma's */
    TRY(regex_compile("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]", false, what,
                      &t->word));
    return regex_compile("\\s", false, what, &t->space);
}

/* A template that puts one special token before the text says that a BOS is added. */
static enum status load_post(struct tokenizer *t, const struct json *post, const char *what,
                             int depth) {
    const char *type;
    TRY(json_need_string(post, what, "type", &type));
    if (strcmp(type, "ByteLevel") == 0) /* moves offsets only */
        return STATUS_OK;
    if (strcmp(type, "Sequence") == 0 && depth < MAX_STEPS) {
        const struct json *list = json_get(post, "processors");
        for (const struct json *c = json_first(list); c; c = json_next(c))
            TRY(load_post(t, c, what, depth + 1));
        return STATUS_OK;
    }
    if (strcmp(type, "TemplateProcessing") != 0)
        return status_fail(STATUS_FAILED, "%s: post_processor \"%s\" is not supported", what, type);
    const char *before = NULL;
    bool seen_text = false;
    for (const struct json *c = json_first(json_get(post, "single")); c; c = json_next(c)) {
        const struct json *special = json_get(c, "SpecialToken");
        const char *name = NULL;
        if (!special) {
            seen_text = true;
            continue;
        }
        TRY(json_need_string(special, what, "id", &name));
        if (seen_text || before)
            return status_fail(STATUS_FAILED,
                               "%s: post_processor: special token \"%s\" after the text or as a "
                               "second one is not supported",
                               what, name);
        before = name;
    }
    if (before) {
        t->bos = tokenizer_find(t, before);
        t->adds_bos = t->bos >= 0;
        if (t->bos < 0)
            return status_fail(STATUS_FAILED, "%s: post_processor: \"%s\" is not a token", what,
                               before);
    }
    return STATUS_OK;
}

static enum status load_root(struct tokenizer *t, const struct json *root, const char *what,
                             struct text scratch[2]) {
    const struct json *model = json_get(root, "model"), *post = json_get(root, "post_processor");
    const char *type = "BPE"; /* old files do not say */
    if (!json_is_object(model))
        return status_fail(STATUS_FAILED, "%s: no \"model\"; is it a tokenizer.json?", what);
    TRY(json_opt_string(model, what, "type", &type));
    if (strcmp(type, "BPE") != 0)
        return status_fail(STATUS_FAILED, "%s: model type \"%s\" is not supported, only BPE is",
                           what, type);
    TRY(tokenizer_parse_steps(t, root, what));
    TRY(load_options(t, model, what));
    TRY(load_vocab(t, json_get(model, "vocab"), what, &scratch[0]));
    TRY(load_merges(t, json_get(model, "merges"), what, scratch));
    TRY(bpe_prepare(&t->bpe));
    int64_t n_model = t->bpe.vocab.n_id;
    TRY(load_all_added(t, json_get(root, "added_tokens"), what));
    TRY(memory_alloc(size_max(t->bpe.vocab.n_id, n_model), 1, "token kinds", &t->kinds));
    TRY(find_fallbacks(t, model, what));
    for (int64_t k = 0; k < t->n_added; k++)
        t->kinds[t->added[k].id] = TOKEN_VERBATIM;
    return post && !json_is_null(post) ? load_post(t, post, what, 0) : STATUS_OK;
}

enum status tokenizer_parse_json(struct tokenizer *t, const char *bytes, int64_t n,
                                 const char *what) {
    struct json *root;
    struct text scratch[2] = {{0}};
    TRY(json_parse(bytes, n, what, &root));
    enum status status = load_root(t, root, what, scratch);
    json_free(root);
    text_free(&scratch[0]);
    text_free(&scratch[1]);
    return status;
}
