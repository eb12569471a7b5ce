/* Texts and token files -> one array of ids. */
#include "core/file.h"
#include "data/tokens.h"

#include <stdlib.h>
#include <string.h>

/* Bytes per id of a token file, by its name; 0: it is text. */
static int id_size(const char *path) {
    const char *dot = strrchr(path_base(path), '.');
    return dot && strcmp(dot, ".u16") == 0 ? 2 : dot && strcmp(dot, ".u32") == 0 ? 4 : 0;
}

static enum status check_ids(const char *path, const struct ids *ids, int64_t first,
                             int64_t n_vocab) {
    for (int64_t i = first; i < ids->n; i++)
        if (ids->data[i] < 0 || (n_vocab && ids->data[i] >= n_vocab))
            return status_fail(STATUS_FAILED,
                               "%s: token %lld has id %u, outside the model's vocabulary of %lld: "
                               "was it made with another tokenizer?",
                               path, (long long)(i - first), (unsigned)ids->data[i],
                               (long long)n_vocab);
    return STATUS_OK;
}

static enum status read_ids(const char *path, int size, struct ids *out) {
    enum status status;
    struct text bytes = {0};
    TRY_OUT(file_read(path, 0, &bytes));
    if (bytes.n == 0 || bytes.n % size) {
        status = status_fail(STATUS_FAILED,
                             "%s: %lld bytes; expected little-endian ids of %d bytes each", path,
                             (long long)bytes.n, size);
        goto out;
    }
    const unsigned char *p = (const unsigned char *)bytes.data;
    for (int64_t i = 0; i < bytes.n; i += size) {
        uint32_t id = (uint32_t)p[i] | (uint32_t)p[i + 1] << 8;
        if (size == 4)
            id |= (uint32_t)p[i + 2] << 16 | (uint32_t)p[i + 3] << 24;
        TRY_OUT(ids_push(out, (int32_t)id));
    }
out:
    text_free(&bytes);
    return status;
}

static enum status read_text(const char *path, const struct tokenizer *t, struct ids *out,
                             int64_t *n_text_byte) {
    enum status status;
    struct text_reader *reader = NULL;
    if (!t)
        return status_fail(STATUS_FAILED,
                           "%s: text needs a tokenizer and there is none: give token files (.u16, "
                           ".u32) or put a tokenizer.json beside the model",
                           path);
    TRY(text_reader_open(path, &reader));
    for (;;) {
        const char *text;
        int64_t n;
        TRY_OUT(text_reader_next(reader, &text, &n));
        if (n < 0)
            break;
        if (n == 0)
            continue;
        if (tokenizer_adds_bos(t))
            TRY_OUT(ids_push(out, tokenizer_bos(t)));
        TRY_OUT(tokenizer_encode(t, text, n, out));
        if (!tokenizer_adds_bos(t) && tokenizer_eos(t) >= 0)
            TRY_OUT(ids_push(out, tokenizer_eos(t)));
        *n_text_byte += n;
    }
out:
    text_reader_close(reader);
    return status;
}

enum status token_data_open(const char *const *paths, int64_t n_path,
                            const struct tokenizer *tokenizer, int64_t n_vocab,
                            struct token_data *out) {
    enum status status = STATUS_OK;
    struct ids ids = {0};
    int64_t n_text_byte = 0;
    *out = (struct token_data){0};
    for (int64_t k = 0; k < n_path; k++) {
        int64_t before = ids.n;
        int size = id_size(paths[k]);
        TRY_OUT(size ? read_ids(paths[k], size, &ids)
                     : read_text(paths[k], tokenizer, &ids, &n_text_byte));
        TRY_OUT(check_ids(paths[k], &ids, before, n_vocab));
    }
    if (ids.n == 0) {
        status = status_fail(STATUS_FAILED, "%s: no tokens in it: is the text empty?",
                             n_path ? paths[0] : "no data file given");
        goto out;
    }
    *out = (struct token_data){
        ids.data, ids.n, hash_bytes(ids.data, ids.n * (int64_t)sizeof *ids.data, 0), n_text_byte};
    ids.data = NULL;
out:
    ids_free(&ids);
    return status;
}

void token_data_close(struct token_data *d) {
    memory_free(d->ids);
    *d = (struct token_data){0};
}
