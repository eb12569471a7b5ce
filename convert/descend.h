/* Inside convert/: minimise a smooth function of many variables with few evaluations. */
#ifndef REGROUP_CONVERT_DESCEND_H
#define REGROUP_CONVERT_DESCEND_H

#include "core/memory.h"

/* f and its gradient at x [n]. */
typedef enum status descend_fn(void *user, const double *x, double *f, double *gradient);
/* L-BFGS (Nocedal & Wright, 7.2) from x, at most n_eval evaluations; x ends at the best point.
 * Deterministic. *before, *after: f there. */
enum status descend(int64_t n, double *x, int n_eval, descend_fn *fn, void *user, double *before,
                    double *after) MUST_USE;

#endif
