/* Per-token loss over windows, and the divergence from a teacher computed in the same run. */
#ifndef REGROUP_EVAL_PERPLEXITY_H
#define REGROUP_EVAL_PERPLEXITY_H

#include "eval/protocol.h"
#include "model/model.h"

/* A mean over tokens with two standard errors: `se_iid` as if tokens were independent, `se` from
 * the windows' sums (tokens of one text are correlated, so this is the honest one). se is NaN with
 * fewer than two windows. */
struct estimate {
    double mean, se, se_iid;
};
/* What the estimate needs of one window. Sums in double. */
struct window_sum {
    int64_t n;
    double sum, sum_squares;
};
struct estimate estimate_from_windows(const struct window_sum *windows, int64_t n);

struct perplexity {
    int64_t n_token, n_window; /* predictions counted; windows read */
    struct estimate nll;       /* nats per token */
    double value, se;          /* exp(nll.mean); its standard error by the delta method */
    bool has_teacher;
    struct estimate kl;    /* KL(teacher || model), nats per token */
    struct estimate agree; /* share of tokens where both rank the same token first */
    double seconds;
};
/* `teacher` may be NULL; it must have the model's vocabulary and compute type and live on the same
 * backend. n_batch windows run at a time. NaN in the losses gives NaN results, not an error. */
enum status perplexity_measure(const struct model *m, const struct model *teacher,
                               const int32_t *ids, const struct window_plan *plan, int64_t n_batch,
                               struct perplexity *out) MUST_USE;

#endif
