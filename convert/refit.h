/* Inside convert/: conversions that measure. The source model and the converted one are walked
 * over the calibration windows layer by layer, side by side; each layer is fitted, refitted and
 * written before the next is read. */
#ifndef REGROUP_CONVERT_REFIT_H
#define REGROUP_CONVERT_REFIT_H

#include "convert/merge.h"

/* Does this conversion need more than merging blocks? */
bool convert_measures(const struct convert_options *o);
/* Fills the losses of p->budget's candidates. */
enum status refit_losses(struct convert_plan *p) MUST_USE;
/* Values of every `fitted` item into the writer; fills p->layers. */
enum status refit_run(struct convert_plan *p, struct checkpoint_writer *w,
                      struct merge_buffers *b) MUST_USE;

/* Sums over tokens from which o_proj follows: y what o_proj sees (with a 1 behind it when it has a
 * bias), t what it should give. Index 0: windows to learn from, 1: held out. */
struct refit_sums {
    int64_t n_y, width;
    double *yy[2], *ty[2], tt[2]; /* [n_y, n_y], [width, n_y] */
};
enum status refit_sums_alloc(struct refit_sums *s) MUST_USE; /* n_y and width are set */
void refit_sums_free(struct refit_sums *s);
void refit_sums_clear(struct refit_sums *s);
void refit_sums_add(struct refit_sums *s, int held_out, int64_t n, const double *y,
                    const double *t);
/* Relative squared error of o [width, n_y] on the held-out sums. */
enum status refit_error(const struct refit_sums *s, const double *o, double *out) MUST_USE;
/* x: the ridge solution near o [width, n_y] from the windows to learn from. */
enum status refit_ridge(const struct refit_sums *s, const double *o, double *x,
                        const char *what) MUST_USE;
/* The ridge solution near o, in place; used when it is better on the held-out sums (*better),
 * which then join the sums that are learned from. */
enum status refit_solve(struct refit_sums *s, double *o, double *before, double *after,
                        bool *better, const char *what) MUST_USE;

#endif
