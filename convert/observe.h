/* Inside convert/: what a layer's query heads see of its values. Attention averages; what it
 * averages away need not be fitted. */
#ifndef REGROUP_CONVERT_OBSERVE_H
#define REGROUP_CONVERT_OBSERVE_H

#include "convert/calibrate.h"

/* KV heads order[0..r) share, then order[r..2r), ...; NULL: neighbours as they are. cov
 * [n_group, r d, r d]: for each group, the sum over tokens and over the group's query heads of
 * z z^T, with z [r d] the values of the group's heads, each averaged by that query head's
 * attention. */
struct partition {
    int64_t n_kv, n_group, head_dim;
    const int64_t *order; /* [n_kv], borrowed */
    double *cov;
};
enum status partition_alloc(struct partition *p) MUST_USE; /* the rest is set; cov is zero */
void partition_free(struct partition *p);
void partition_mirror(struct partition *p); /* after the last partition_add: both triangles */

struct observer {
    float *slice;           /* [rows, n_head * d] */
    double *kept, *columns; /* some rows as each query head sees them */
    int64_t keep;           /* rows of a batch */
};
/* For layers like `layer` with at most n_kv KV heads. */
enum status observer_open(const struct one_layer *layer, int64_t n_kv,
                          struct observer *out) MUST_USE;
void observer_close(struct observer *o);
/* Rows of the windows that model_layer_run has just seen (as many as are kept, evenly), into the
 * upper triangles of every partition's sums. */
enum status observer_add(struct observer *o, const struct one_layer *layer, int64_t rows,
                         struct partition *parts, int n_part) MUST_USE;

#endif
