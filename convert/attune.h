/* Inside convert/: all projections of a converted layer tuned together so that its attention adds
 * to the stream what it should; starts from the fit. */
#ifndef REGROUP_CONVERT_ATTUNE_H
#define REGROUP_CONVERT_ATTUNE_H

#include "convert/calibrate.h"
#include "convert/fit.h"
#include "convert/refit.h"

struct attune {
    struct one_layer *layer; /* its other weights are set */
    struct attn_weights *w;  /* tuned in place */
    bool queries_only;       /* Q and O, or K and V as well */
    const float *x, *mid;    /* [n_window * n_seq, width]: streams in, and wanted behind */
    int64_t n_window, n_seq; /* windows to learn from; every `stride`-th is used */
    int64_t stride;
    const double *moment; /* [n_in, n_in] of the normed input: says which directions are strong */
    const double *heads;  /* [n_y, n_y] of what o_proj sees, likewise; n_y: with its bias */
    int64_t n_y;
    int n_eval;
};
/* *before, *after: relative squared error on the windows used. */
enum status attune_run(const struct attune *a, double *before, double *after,
                       const char *what) MUST_USE;

#endif
