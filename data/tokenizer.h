/* Text <-> token ids: Hugging Face tokenizer.json (byte-level BPE; SentencePiece-style BPE with
 * byte fallback) and SentencePiece tokenizer.model (BPE). */
#ifndef REGROUP_DATA_TOKENIZER_H
#define REGROUP_DATA_TOKENIZER_H

#include "core/memory.h"
#include "core/text.h"

struct ids {
    int32_t *data; /* owned; zero-initialise, ids_free */
    int64_t n, capacity;
};
enum status ids_push(struct ids *ids, int32_t id) MUST_USE;
void ids_free(struct ids *ids);

/* One thread at a time per tokenizer: encoding uses its scratch memory and its cache of words. */
struct tokenizer;
/* `path`: a model folder (tokenizer.json preferred over tokenizer.model) or one of the files.
 * What the file asks for and we do not do is refused by name (e.g. model type "Unigram").
 * BOS and EOS come from tokenizer_config.json or special_tokens_map.json beside it; without them a
 * tokenizer.model puts its BOS before a text, a tokenizer.json does what its template says. */
enum status tokenizer_open(const char *path, struct tokenizer **out) MUST_USE;
void tokenizer_close(struct tokenizer *t);
int64_t tokenizer_n_vocab(const struct tokenizer *t); /* largest id + 1 */
int32_t tokenizer_bos(const struct tokenizer *t);     /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t); /* puts BOS before a text by default */
/* Appends the ids of n bytes of UTF-8; no BOS or EOS is added; special tokens written in the text
 * are recognised as the file's added_tokens say (SentencePiece recognises none). Invalid UTF-8 is
 * an error with the byte offset (relative to `text`). */
enum status tokenizer_encode(const struct tokenizer *t, const char *text, int64_t n,
                             struct ids *out) MUST_USE;
/* Appends the bytes that one id stands for after `previous` (-1: at the start, where SentencePiece
 * drops the leading space). A multi-byte character may arrive in pieces. */
enum status tokenizer_decode(const struct tokenizer *t, int32_t previous, int32_t id,
                             struct text *out) MUST_USE;

#endif
