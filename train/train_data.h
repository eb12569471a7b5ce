/* The tokens of a run: files through the tokenizer, and what is held out. */
#ifndef REGROUP_TRAIN_TRAIN_DATA_H
#define REGROUP_TRAIN_TRAIN_DATA_H

#include "data/tokens.h"
#include "train/train_config.h"

struct train_data {
    struct token_data train, heldout; /* views into the owned ones below; heldout.n 0: none */
    struct token_data own_train, own_heldout;
};
/* `model_dir`: whose tokenizer is used when the configuration names none. */
enum status train_data_open(const struct train_config *c, const char *model_dir, int64_t n_vocab,
                            struct train_data *out) MUST_USE;
void train_data_close(struct train_data *d);

#endif
