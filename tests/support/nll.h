/* Mean negative log-likelihood of rows of tokens, the plain way, for tests. */
#ifndef REGROUP_TESTS_NLL_H
#define REGROUP_TESTS_NLL_H

#include "model/model.h"

/* Each of n_row disjoint rows of n_seq ids predicts its tokens 1 .. n_seq - 1; the mean is over
 * all of them. `last_logits` (may be NULL): [n_vocab] of the last position of the last row. */
enum status nll_of_rows(struct model *m, const int32_t *ids, int64_t n_row, int64_t n_seq,
                        double *mean, float *last_logits) MUST_USE;
/* ids of a little-endian uint16 file; *ids is freed with memory_free. */
enum status read_u16(const char *path, int32_t **ids, int64_t *n) MUST_USE;

#endif
