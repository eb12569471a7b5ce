/* normalizer, pre_tokenizer and decoder of tokenizer.json -> steps of struct tokenizer. What is
 * not done here is refused by name. */
#include "data/tokenizer_internal.h"

#include <string.h>

/* GPT-2's split, which Hugging Face's ByteLevel carries inside. */
static const char GPT2_WORDS[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static enum status refuse(const char *what, const char *part, const char *type) {
    return status_fail(STATUS_FAILED, "%s: %s \"%s\" is not supported", what, part, type);
}

/* "type" of a step; steps of a Sequence are its array `list` or, for another type, the step. */
static enum status step_type(const struct json *step, const char *what, const char *part,
                             const char **type) {
    if (!json_is_object(step))
        return status_fail(STATUS_FAILED, "%s: %s is not an object", what, part);
    return json_need_string(step, what, "type", type);
}

/* {"String": "x"} or {"Regex": "x"} -> regex. */
static enum status parse_pattern(const struct json *step, const char *what, struct regex **out) {
    const struct json *pattern = json_get(step, "pattern");
    const char *text = NULL;
    TRY(json_opt_string(pattern, what, "String", &text));
    if (text)
        return regex_compile(text, true, what, out);
    TRY(json_opt_string(pattern, what, "Regex", &text));
    if (text)
        return regex_compile(text, false, what, out);
    return status_fail(STATUS_FAILED, "%s: a step without a \"pattern\" of String or Regex", what);
}

static enum status parse_normalizer(struct tokenizer *t, const struct json *step, const char *what,
                                    int depth) {
    const char *type;
    TRY(step_type(step, what, "normalizer", &type));
    if (strcmp(type, "Sequence") == 0 && depth < MAX_STEPS) {
        const struct json *list = json_get(step, "normalizers");
        for (const struct json *c = json_first(list); c; c = json_next(c))
            TRY(parse_normalizer(t, c, what, depth + 1));
        return STATUS_OK;
    }
    if (t->n_normal == MAX_STEPS)
        return refuse(what, "a chain of more than 16 normalizers, at", type);
    struct normal_step *s = &t->normal[t->n_normal];
    static const char *const forms[] = {"NFC", "NFKC", "NFD", "NFKD"};
    for (int k = 0; k < 4; k++) {
        if (strcmp(type, forms[k]) == 0) {
            s->kind = NORMAL_NFC + (unsigned)k;
            t->n_normal++;
            return STATUS_OK;
        }
    }
    const char *content;
    if (strcmp(type, "Prepend") == 0) {
        s->kind = NORMAL_PREPEND;
        TRY(json_need_string(step, what, "prepend", &content));
    } else if (strcmp(type, "Replace") == 0) {
        s->kind = NORMAL_REPLACE;
        TRY(json_need_string(step, what, "content", &content));
        TRY(parse_pattern(step, what, &s->regex));
    } else {
        return refuse(what, "normalizer", type);
    }
    t->n_normal++; /* before what can fail: s->regex is freed with the steps */
    s->n_content = (int64_t)strlen(content);
    return arena_strdup(&t->arena, content, &s->content);
}

static enum status add_pre(struct tokenizer *t, const char *what, struct pre_step **out) {
    if (t->n_pre == MAX_STEPS)
        return status_fail(STATUS_FAILED, "%s: more than %d pre_tokenizer steps", what, MAX_STEPS);
    *out = &t->pre[t->n_pre++];
    return STATUS_OK;
}

static enum status add_split(struct tokenizer *t, const char *what, const char *pattern,
                             enum split_behavior behavior) {
    struct pre_step *p = NULL;
    TRY(add_pre(t, what, &p));
    p->kind = PRE_SPLIT;
    p->behavior = behavior;
    return regex_compile(pattern, false, what, &p->regex);
}

static enum status parse_behavior(const struct json *step, const char *what,
                                  enum split_behavior *out) {
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *name = NULL;
    TRY(json_opt_string(step, what, "behavior", &name));
    if (!name)
        return STATUS_OK;
    for (int k = 0; k < 5; k++) {
        if (strcmp(name, names[k]) == 0) {
            *out = (enum split_behavior)k;
            return STATUS_OK;
        }
    }
    return refuse(what, "split behavior", name);
}

static enum status parse_byte_level(struct tokenizer *t, const struct json *step,
                                    const char *what) {
    bool prefix = true, use_regex = true;
    struct pre_step *p = NULL;
    TRY(json_opt_bool(step, what, "add_prefix_space", &prefix));
    TRY(json_opt_bool(step, what, "use_regex", &use_regex));
    if (prefix) {
        TRY(add_pre(t, what, &p));
        p->kind = PRE_PREFIX_SPACE;
    }
    t->bpe.bytes = true;
    return use_regex ? add_split(t, what, GPT2_WORDS, SPLIT_ISOLATED) : STATUS_OK;
}

static enum status parse_prepend_scheme(const struct json *step, const char *what,
                                        enum prepend_scheme *out) {
    static const char *const names[] = {"always", "first", "never"};
    const char *name = NULL;
    bool prefix = true; /* the older key */
    TRY(json_opt_bool(step, what, "add_prefix_space", &prefix));
    TRY(json_opt_string(step, what, "prepend_scheme", &name));
    *out = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (!name)
        return STATUS_OK;
    for (int k = 0; k < 3; k++) {
        if (strcmp(name, names[k]) == 0) {
            *out = (enum prepend_scheme)k;
            return STATUS_OK;
        }
    }
    return refuse(what, "prepend_scheme", name);
}

static enum status parse_metaspace(struct tokenizer *t, const struct json *step, const char *what) {
    struct pre_step *p = NULL;
    const char *mark = SPACE_MARK;
    TRY(add_pre(t, what, &p));
    p->kind = PRE_METASPACE;
    p->split = true;
    TRY(json_opt_bool(step, what, "split", &p->split));
    TRY(json_opt_string(step, what, "replacement", &mark));
    if (strcmp(mark, SPACE_MARK) != 0)
        return refuse(what, "Metaspace replacement", mark);
    TRY(parse_prepend_scheme(step, what, &p->prepend));
    p->n_mark = (int64_t)strlen(mark);
    return arena_strdup(&t->arena, mark, &p->mark);
}

static enum status parse_pre_tokenizer(struct tokenizer *t, const struct json *step,
                                       const char *what, int depth) {
    const char *type;
    TRY(step_type(step, what, "pre_tokenizer", &type));
    if (t->bpe.bytes) /* bytes have no characters to match any more */
        return refuse(what, "after ByteLevel, pre_tokenizer", type);
    if (strcmp(type, "Sequence") == 0 && depth < MAX_STEPS) {
        const struct json *list = json_get(step, "pretokenizers");
        for (const struct json *c = json_first(list); c; c = json_next(c))
            TRY(parse_pre_tokenizer(t, c, what, depth + 1));
        return STATUS_OK;
    }
    if (strcmp(type, "ByteLevel") == 0)
        return parse_byte_level(t, step, what);
    if (strcmp(type, "Metaspace") == 0)
        return parse_metaspace(t, step, what);
    if (strcmp(type, "Split") == 0) {
        struct pre_step *p = NULL;
        TRY(add_pre(t, what, &p));
        p->kind = PRE_SPLIT;
        TRY(parse_behavior(step, what, &p->behavior));
        TRY(json_opt_bool(step, what, "invert", &p->invert));
        return parse_pattern(step, what, &p->regex);
    }
    if (strcmp(type, "Digits") == 0) {
        bool individual = false;
        TRY(json_opt_bool(step, what, "individual_digits", &individual));
        return add_split(t, what, "\\p{N}", individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
    }
    if (strcmp(type, "Punctuation") == 0) {
        enum split_behavior behavior = SPLIT_ISOLATED;
        TRY(parse_behavior(step, what, &behavior));
        return add_split(t, what, "[!-/:-@\\[-`{-~\\p{P}]", behavior);
    }
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_split(t, what, "\\s", SPLIT_REMOVED);
    return refuse(what, "pre_tokenizer", type);
}

/* The decoder must undo what the other steps did; only which way spaces go is learned here. */
static enum status parse_decoder(struct tokenizer *t, const struct json *step, const char *what,
                                 int depth) {
    const char *type, *text = "";
    TRY(step_type(step, what, "decoder", &type));
    if (strcmp(type, "Sequence") == 0 && depth < MAX_STEPS) {
        const struct json *list = json_get(step, "decoders");
        for (const struct json *c = json_first(list); c; c = json_next(c))
            TRY(parse_decoder(t, c, what, depth + 1));
        return STATUS_OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        if (t->bpe.bytes)
            return STATUS_OK;
        return refuse(what, "without ByteLevel among the pre_tokenizers, decoder", type);
    }
    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0)
        return STATUS_OK;
    if (strcmp(type, "Metaspace") == 0) {
        enum prepend_scheme scheme;
        TRY(parse_prepend_scheme(step, what, &scheme));
        t->marks_spaces = true;
        t->drops_first_space = scheme != PREPEND_NEVER;
        return STATUS_OK;
    }
    if (strcmp(type, "Replace") == 0) {
        const char *content = "";
        TRY(json_opt_string(json_get(step, "pattern"), what, "String", &text));
        TRY(json_opt_string(step, what, "content", &content));
        if (strcmp(text, SPACE_MARK) != 0 || strcmp(content, " ") != 0)
            return refuse(what, "a Replace of anything but U+2581 by a space as decoder, of", text);
        t->marks_spaces = true;
        return STATUS_OK;
    }
    if (strcmp(type, "Strip") == 0) {
        int64_t start = 0, stop = 0;
        TRY(json_need_string(step, what, "content", &text));
        TRY(json_opt_int(step, what, "start", &start));
        TRY(json_opt_int(step, what, "stop", &stop));
        if (strcmp(text, " ") != 0 || start > 1 || stop != 0)
            return refuse(what, "anything but one leading space in the decoder", type);
        t->drops_first_space = start == 1;
        return STATUS_OK;
    }
    return refuse(what, "decoder", type);
}

enum status tokenizer_parse_steps(struct tokenizer *t, const struct json *root, const char *what) {
    const struct json *normalizer = json_get(root, "normalizer");
    const struct json *pre = json_get(root, "pre_tokenizer");
    const struct json *decoder = json_get(root, "decoder");
    if (normalizer && !json_is_null(normalizer))
        TRY(parse_normalizer(t, normalizer, what, 0));
    if (pre && !json_is_null(pre))
        TRY(parse_pre_tokenizer(t, pre, what, 0));
    if (decoder && !json_is_null(decoder))
        TRY(parse_decoder(t, decoder, what, 0));
    return STATUS_OK;
}
