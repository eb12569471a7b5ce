/* See train_data.h. */
#include "train/train_data.h"

#include <string.h>

static bool is_ids(const char *path) {
    size_t n = strlen(path);
    return n > 4 && (!strcmp(path + n - 4, ".u16") || !strcmp(path + n - 4, ".u32"));
}

static bool has_text(const struct string_list *paths) {
    for (int64_t i = 0; i < paths->n; i++)
        if (!is_ids(paths->items[i]))
            return true;
    return false;
}

static struct token_data part(const struct token_data *d, int64_t first, int64_t n) {
    return (struct token_data){
        .ids = d->ids + first,
        .n = n,
        .hash = hash_bytes(d->ids + first, n * (int64_t)sizeof *d->ids, 0),
    };
}

/* The last part of the ids, cut where a window begins. */
static enum status split(const struct train_config *c, struct train_data *d) {
    const struct token_data *all = &d->own_train;
    int64_t keep = all->n - (int64_t)((double)all->n * c->heldout_fraction);
    keep -= keep % c->seq_len;
    int64_t left = all->n - keep;
    if (keep < c->seq_len || left < c->seq_len + !c->rows)
        return status_fail(STATUS_FAILED,
                           "data: %lld ids with data.heldout_fraction %g leave %lld to hold out, "
                           "less than one window of %lld; give data.heldout, more text, or "
                           "data.heldout_fraction 0",
                           (long long)all->n, c->heldout_fraction, (long long)left,
                           (long long)c->seq_len);
    d->train = part(all, 0, keep);
    d->heldout = part(all, keep, left);
    return STATUS_OK;
}

enum status train_data_open(const struct train_config *c, const char *model_dir, int64_t n_vocab,
                            struct train_data *out) {
    struct tokenizer *tokenizer = NULL;
    enum status status = STATUS_OK;
    *out = (struct train_data){0};
    if (has_text(&c->train) || has_text(&c->heldout))
        TRY_OUT(
            tokenizer_open(c->tokenizer && *c->tokenizer ? c->tokenizer : model_dir, &tokenizer));
    TRY_OUT(token_data_open(c->train.items, c->train.n, tokenizer, n_vocab, &out->own_train));
    out->train = out->own_train;
    if (c->heldout.n) {
        TRY_OUT(
            token_data_open(c->heldout.items, c->heldout.n, tokenizer, n_vocab, &out->own_heldout));
        out->heldout = out->own_heldout;
    } else if (c->heldout_fraction > 0) {
        TRY_OUT(split(c, out));
    }
out:
    tokenizer_close(tokenizer);
    if (status != STATUS_OK)
        train_data_close(out);
    return status;
}

void train_data_close(struct train_data *d) {
    token_data_close(&d->own_train);
    token_data_close(&d->own_heldout);
    *d = (struct train_data){0};
}
