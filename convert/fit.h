/* Inside convert/: the attention projections of one layer with fewer KV heads, in closed form.
 * A head's key may be changed by what commutes with every rotation and undone in its queries; its
 * value by any linear map, undone in o_proj. The mathematics: docs/methods.md. */
#ifndef REGROUP_CONVERT_FIT_H
#define REGROUP_CONVERT_FIT_H

#include "convert/convert.h"

/* fp64 copies of one layer's projections. Biases are a last column: the input is then (x, 1). */
struct attn_weights {
    int64_t n_head, n_kv, head_dim, width, n_in; /* n_in: width, or width + 1 with biases */
    double *q, *k, *v;                           /* [heads * head_dim, n_in] */
    double *o;                                   /* [width, n_head * head_dim] */
    double *o_bias;                              /* [width] or NULL */
};
enum status attn_weights_alloc(struct attn_weights *w) MUST_USE; /* sizes are set */
void attn_weights_free(struct attn_weights *w);                  /* fine on {0} */
/* KV head order[i] becomes KV head i, its query heads and o_proj columns along with it; `to` has
 * the shape of `from`. The function computed stays the same. */
void attn_weights_permute(const struct attn_weights *from, const int64_t *order,
                          struct attn_weights *to);

/* o_proj [width, n_y]: its bias, when n_y has room for one, is the last column. */
void attn_weights_get_o(const struct attn_weights *w, int64_t n_y, double *o);
void attn_weights_set_o(struct attn_weights *w, int64_t n_y, const double *o);

struct rotary {
    int64_t dims;     /* rotated dimensions of a head, from its start; the rest are free */
    bool interleaved; /* pairs (2i, 2i + 1) instead of (i, i + dims / 2) */
};

struct fit_error { /* relative squared errors: of queries times keys, of values through o_proj */
    double k, v;
};

/* Merge neighbouring KV heads of `from` into those of `to` (allocated, to->n_kv divides
 * from->n_kv). `moment` [n_in, n_in]: E[x x^T] of the layer's normed input. `seen` (may be NULL)
 * [to->n_kv, r d, r d]: second moments of the group's values as its queries see them, to any scale
 * (observe.h); it says which values matter. MERGE_MEAN and MERGE_FIRST use both for the error
 * alone. `what` names the layer in messages. */
enum status fit_layer(const struct attn_weights *from, const double *moment, const double *seen,
                      struct rotary rotary, enum merge_method method, struct attn_weights *to,
                      struct fit_error *error, const char *what) MUST_USE;

/* Second moments of a layer's heads: E[k k^T] and E[v v^T] over all KV heads [n_kv d, n_kv d], of
 * which only the blocks within n_group groups of neighbours are filled; E[q q^T] of each query head
 * [n_head, d, d]. */
struct fit_cov {
    double *k, *v, *q;
};
enum status fit_covariances(const struct attn_weights *w, const double *moment, int64_t n_group,
                            struct arena *arena, struct fit_cov *out) MUST_USE;

/* Groupings of `from`'s KV heads into n_group equal ones that are worth a try: orders
 * [at most `most`, n_kv], of which KV head order[i] comes to place i so that groups are neighbours.
 * The first leaves them as they are; the others lose least by the closed-form loss of scores and
 * values, or of values alone, found by swaps from several starts. Deterministic by seed. */
enum status fit_groupings(const struct attn_weights *from, const double *moment, const double *seen,
                          struct rotary rotary, int64_t n_group, uint64_t seed, int most,
                          int64_t *orders, int *n_found, const char *what) MUST_USE;

#endif
