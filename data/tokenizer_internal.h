/* What a tokenizer is made of; shared by the files that load one and the one that runs it. */
#ifndef REGROUP_DATA_TOKENIZER_INTERNAL_H
#define REGROUP_DATA_TOKENIZER_INTERNAL_H

#include "core/json.h"
#include "data/bpe.h"
#include "data/regex.h"
#include "data/tokenizer.h"

enum { MAX_STEPS = 16 };
#define SPACE_MARK "\xe2\x96\x81" /* U+2581, SentencePiece's visible space */

struct normal_step {
    enum { NORMAL_NFC, NORMAL_NFKC, NORMAL_NFD, NORMAL_NFKD, NORMAL_PREPEND, NORMAL_REPLACE } kind;
    char *content; /* PREPEND, REPLACE: what is put in; in the arena */
    int64_t n_content;
    struct regex *regex; /* REPLACE: owned */
};

/* What happens to the matches of a Split, in Hugging Face's words. */
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_CONTIGUOUS,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT
};
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pre_step {
    enum { PRE_SPLIT, PRE_PREFIX_SPACE, PRE_METASPACE } kind;
    struct regex *regex; /* SPLIT: owned */
    enum split_behavior behavior;
    bool invert;
    char *mark; /* METASPACE: stands for a space; in the arena */
    int64_t n_mark;
    enum prepend_scheme prepend;
    bool split;
    struct text scratch;
};

struct added_token {
    int32_t id;
    bool lstrip, rstrip, single_word;
};

/* SentencePiece's normalizer. */
struct sentencepiece {
    bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces, whitespace_as_suffix;
    uint32_t *units; /* double array of the character map; [n_unit], in the arena; may be NULL */
    int64_t n_unit;
    char *replacements; /* NUL-terminated strings, [n_replacement] bytes in all */
    int64_t n_replacement;
    struct trie user; /* user-defined pieces: taken whole, never changed */
    struct text scratch;
};

enum token_kind { TOKEN_PLAIN, TOKEN_VERBATIM, TOKEN_BYTE, TOKEN_CONTROL, TOKEN_UNKNOWN };

struct tokenizer {
    struct arena arena;
    struct bpe bpe;

    struct added_token *added; /* [n_added], in the arena */
    int64_t n_added;
    struct trie raw_added, normal_added; /* found before, after normalizing; value: index */
    struct normal_step normal[MAX_STEPS];
    int n_normal;
    struct text normal_scratch[2];
    struct pre_step pre[MAX_STEPS];
    int n_pre;
    struct regex *word, *space; /* one character of each, for single_word and strips; or NULL */

    struct sentencepiece *piece; /* in the arena; NULL for tokenizer.json */

    uint8_t *kinds;    /* enum token_kind by id, [bpe.vocab.n_id], owned */
    bool marks_spaces; /* SPACE_MARK in a token is a space */
    bool drops_first_space;
    int32_t bos, eos;
    bool adds_bos;
};

/* Each fills *t, which is zeroed but for bos = eos = -1; `what` names the file. */
enum status tokenizer_parse_json(struct tokenizer *t, const char *bytes, int64_t n,
                                 const char *what) MUST_USE;
enum status tokenizer_parse_model(struct tokenizer *t, const char *bytes, int64_t n,
                                  const char *what) MUST_USE;
enum status tokenizer_parse_steps(struct tokenizer *t, const struct json *root,
                                  const char *what) MUST_USE;
/* tokenizer_config.json or special_tokens_map.json in `dir`: BOS, EOS, add_bos_token. */
enum status tokenizer_read_config(struct tokenizer *t, const char *dir) MUST_USE;
/* From memory, by content: '{' begins a tokenizer.json. */
enum status tokenizer_parse(const char *bytes, int64_t n, const char *what,
                            struct tokenizer **out) MUST_USE;
int32_t tokenizer_find(const struct tokenizer *t, const char *content); /* -1 */

/* Runs the normalizer; *out is borrowed (the text itself when nothing changes it). */
enum status tokenizer_normalize(struct tokenizer *t, const char *text, int64_t n, const char **out,
                                int64_t *n_out) MUST_USE;
/* Splits a piece as pre[step...] say and encodes the parts. `first`: it begins the whole text. */
enum status tokenizer_split(struct tokenizer *t, int step, const char *text, int64_t n, bool first,
                            struct ids *out) MUST_USE;
enum status sentencepiece_encode(struct tokenizer *t, const char *text, int64_t n,
                                 struct ids *out) MUST_USE;

#endif
