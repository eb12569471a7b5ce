/* Which heads share. The loss of a group is known in closed form (eigenvalues that its shared head
 * leaves out), so groups are tried without fitting them. Large layers are searched with sums over
 * pairs of heads instead, and only the groupings found are compared by their true loss. */
#include "convert/fit.h"
#include "convert/linalg.h"
#include "core/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STARTS = 6, MAX_ROUNDS = 100 };
static const double EXACT_COST = 3e9; /* operations of one round of exact swaps */

struct search {
    const struct attn_weights *from;
    struct rotary rotary;
    int64_t n, r, n_group;
    const char *what;
    double scores; /* weight of what scores lose: 1, or 0 for values alone */
    struct fit_cov cov;
    double *seen;   /* [n d, n d] covariance of values seen through o_proj's metric */
    double *energy; /* [n, pairs] of queries, and the weight of a score's error in the output */
    double *tail;   /* [n t, n t] covariance of unrotated keys through their queries' metric */
    double *pairs;  /* [n, n] loss of two heads sharing; NULL: groups are asked exactly */
    double *work, *values, *vectors;
    struct arena arena;
};

/* The sum of the eigenvalues beyond the first `keep` of blocks heads[0..r) of m [n b, n b]. */
static enum status left_out(struct search *s, const double *m, int64_t b, const int64_t *heads,
                            int64_t r, int64_t keep, double *out) {
    int64_t n = r * b, all = s->n * b;
    double trace = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            s->work[i * n + j] = m[(heads[i / b] * b + i % b) * all + heads[j / b] * b + j % b];
    for (int64_t i = 0; i < n; i++)
        trace += s->work[i * n + i];
    TRY(linalg_eigen(n, s->work, keep, s->values, s->vectors, s->what));
    for (int64_t i = 0; i < keep; i++)
        trace -= s->values[i];
    *out += fmax(trace, 0);
    return STATUS_OK;
}

/* What the rotary pairs lose: the Hermitian matrix as a real one, its top eigenvalue twice. */
static enum status pairs_left_out(struct search *s, const int64_t *heads, int64_t r, double *out) {
    int64_t half = s->rotary.dims / 2, d = s->from->head_dim, all = s->n * d;
    for (int64_t i = 0; i < half; i++) {
        int64_t re = s->rotary.interleaved ? 2 * i : i;
        int64_t im = s->rotary.interleaved ? 2 * i + 1 : i + half;
        double trace = 0;
        for (int64_t h = 0; h < r; h++)
            for (int64_t g = 0; g < r; g++) {
                double e = sqrt(s->energy[heads[h] * half + i] * s->energy[heads[g] * half + i]);
                const double *row_re = s->cov.k + (heads[h] * d + re) * all + heads[g] * d;
                const double *row_im = s->cov.k + (heads[h] * d + im) * all + heads[g] * d;
                double *block = s->work + h * 2 * r + g;
                block[0] = block[r * 2 * r + r] = e * (row_re[re] + row_im[im]);
                block[r * 2 * r] = e * (row_im[re] - row_re[im]);
                block[r] = -block[r * 2 * r];
                trace += h == g ? block[0] : 0;
            }
        TRY(linalg_eigen(2 * r, s->work, 1, s->values, s->vectors, s->what));
        *out += fmax(trace - s->values[0], 0);
    }
    return STATUS_OK;
}

static enum status true_loss(struct search *s, const int64_t *heads, int64_t r, double *out) {
    int64_t d = s->from->head_dim, t = d - s->rotary.dims;
    *out = 0;
    TRY(left_out(s, s->seen, d, heads, r, d, out));
    if (!(s->scores > 0))
        return STATUS_OK;
    if (t)
        TRY(left_out(s, s->tail, t, heads, r, t, out));
    return pairs_left_out(s, heads, r, out);
}

static enum status loss(struct search *s, const int64_t *heads, double *out) {
    if (!s->pairs)
        return true_loss(s, heads, s->r, out);
    *out = 0;
    for (int64_t i = 0; i < s->r; i++)
        for (int64_t j = 0; j < i; j++)
            *out += s->pairs[heads[i] * s->n + heads[j]];
    return STATUS_OK;
}

static void swap(int64_t *a, int64_t *b) {
    int64_t t = *a;
    *a = *b;
    *b = t;
}

/* Exchange places i and j (and, with `two`, the places beside them) when that lowers the loss. */
static enum status try_swap(struct search *s, int64_t *order, double *group_loss, int64_t i,
                            int64_t j, bool two, bool *better) {
    int64_t g = i / s->r, k = j / s->r;
    int64_t i2 = g * s->r + (i + 1) % s->r, j2 = k * s->r + (j + 1) % s->r;
    double a, b;
    swap(&order[i], &order[j]);
    if (two)
        swap(&order[i2], &order[j2]);
    TRY(loss(s, order + g * s->r, &a));
    TRY(loss(s, order + k * s->r, &b));
    if (a + b < (group_loss[g] + group_loss[k]) * (1 - 1e-9)) {
        group_loss[g] = a;
        group_loss[k] = b;
        *better = true;
        return STATUS_OK;
    }
    swap(&order[i], &order[j]);
    if (two)
        swap(&order[i2], &order[j2]);
    return STATUS_OK;
}

static enum status descend(struct search *s, int64_t *order, double *group_loss) {
    for (int64_t g = 0; g < s->n_group; g++)
        TRY(loss(s, order + g * s->r, &group_loss[g]));
    bool better = true;
    for (int round = 0; better && round < MAX_ROUNDS; round++) {
        better = false;
        for (int64_t i = 0; i < s->n; i++)
            for (int64_t j = (i / s->r + 1) * s->r; j < s->n; j++) {
                TRY(try_swap(s, order, group_loss, i, j, false, &better));
                if (s->r > 1)
                    TRY(try_swap(s, order, group_loss, i, j, true, &better));
            }
    }
    return STATUS_OK;
}

static enum status prepare(struct search *s) {
    const struct attn_weights *w = s->from;
    int64_t n = s->n, d = w->head_dim, hd = w->n_head * d, n_q = w->n_head / n, all = n * d;
    int64_t half = s->rotary.dims / 2, skip = s->rotary.dims, t = d - skip;
    double *root, *weight, *tail_root, *copy;
    int64_t size = size_max(s->r * d, 2 * s->r);
    TRY(arena_alloc(&s->arena, size * size, 8, &s->work));
    TRY(arena_alloc(&s->arena, size, 8, &s->values));
    TRY(arena_alloc(&s->arena, size * size, 8, &s->vectors));
    TRY(arena_alloc(&s->arena, n * d * d, 8, &root));
    TRY(arena_alloc(&s->arena, n * d * d, 8, &tail_root));
    TRY(arena_alloc(&s->arena, n, 8, &weight));
    TRY(arena_alloc(&s->arena, n * half + 1, 8, &s->energy));
    TRY(arena_alloc(&s->arena, all * all, 8, &s->seen));
    TRY(arena_alloc(&s->arena, n * t * n * t + 1, 8, &s->tail));
    TRY(arena_alloc(&s->arena, all * all, 8, &copy));
    for (int64_t h = 0; h < n; h++) {
        double *m = root + h * d * d, *k = tail_root + h * t * t;
        for (int64_t q = h * n_q; q < (h + 1) * n_q; q++)
            linalg_gemm(true, false, d, d, w->width, w->o + q * d, hd, w->o + q * d, hd,
                        q > h * n_q, m, d);
        for (int64_t i = 0; i < d * d; i++) /* the energy of what the head adds to the stream */
            weight[h] += m[i] * s->cov.v[(h * d + i / d) * all + h * d + i % d] / (double)d;
        for (int64_t q = h * n_q; q < (h + 1) * n_q; q++)
            for (int64_t i = 0; i < t * t; i++)
                k[i] += weight[h] * s->cov.q[q * d * d + (skip + i / t) * d + skip + i % t];
        for (int64_t i = 0; i < half; i++)
            for (int64_t q = h * n_q; q < (h + 1) * n_q; q++) {
                int64_t re = s->rotary.interleaved ? 2 * i : i;
                int64_t im = s->rotary.interleaved ? 2 * i + 1 : i + half;
                const double *c = s->cov.q + q * d * d;
                s->energy[h * half + i] += weight[h] * (c[re * d + re] + c[im * d + im]);
            }
        TRY(linalg_root(d, m, s->what));
        if (t)
            TRY(linalg_root(t, k, s->what));
    }
    for (int64_t h = 0; h < n; h++)
        linalg_gemm(false, false, d, all, d, root + h * d * d, d, s->cov.v + h * d * all, all, 0,
                    copy + h * d * all, all);
    for (int64_t h = 0; h < n; h++)
        linalg_gemm(false, true, all, d, d, copy + h * d, all, root + h * d * d, d, 0,
                    s->seen + h * d, all);
    for (int64_t h = 0; h < n && t; h++)
        for (int64_t g = 0; g < n; g++) {
            linalg_gemm(false, false, t, t, t, tail_root + h * t * t, t,
                        s->cov.k + (h * d + skip) * all + g * d + skip, all, 0, copy, t);
            linalg_gemm(false, true, t, t, t, copy, t, tail_root + g * t * t, t, 0,
                        s->tail + h * t * n * t + g * t, n * t);
        }
    return STATUS_OK;
}

static enum status total_loss(struct search *s, const int64_t *order, double *out) {
    *out = 0;
    for (int64_t g = 0; g < s->n_group; g++) {
        double one;
        TRY(true_loss(s, order + g * s->r, s->r, &one));
        *out += one;
    }
    return STATUS_OK;
}

static enum status fill_pairs(struct search *s) {
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t j = 0; j < i; j++) {
            int64_t heads[] = {i, j};
            TRY(true_loss(s, heads, 2, &s->pairs[i * s->n + j]));
            s->pairs[j * s->n + i] = s->pairs[i * s->n + j];
        }
    return STATUS_OK;
}

static int by_number(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* One name for every grouping: heads in order, groups by their first. */
static void canonical(const struct search *s, int64_t *order) {
    for (int64_t g = 0; g < s->n_group; g++)
        qsort(order + g * s->r, (size_t)s->r, sizeof *order, by_number);
    qsort(order, (size_t)s->n_group, (size_t)s->r * sizeof *order, by_number);
}

/* Local optima of the loss as s->scores weighs it: the best `most` that orders does not hold yet,
 * best first, behind what it holds. */
static enum status find_optima(struct search *s, uint64_t seed, int most, int64_t *orders,
                               int *n_found) {
    double losses[STARTS], *group_loss;
    int64_t *trial;
    int first = *n_found;
    struct rng rng = rng_seed(seed);
    TRY(arena_alloc(&s->arena, s->n, (int64_t)sizeof *trial, &trial));
    TRY(arena_alloc(&s->arena, s->n_group, (int64_t)sizeof *group_loss, &group_loss));
    if (s->pairs)
        TRY(fill_pairs(s));
    for (int start = 0; start < STARTS; start++) {
        double found;
        bool known = false;
        for (int64_t i = 0; i < s->n; i++)
            trial[i] = i;
        if (start)
            rng_shuffle(&rng, trial, s->n);
        TRY(descend(s, trial, group_loss));
        TRY(total_loss(s, trial, &found));
        canonical(s, trial);
        size_t bytes = (size_t)s->n * sizeof *trial;
        for (int i = 0; i < *n_found; i++)
            known = known || !memcmp(orders + i * s->n, trial, bytes);
        int at = *n_found;
        while (at > first && found < losses[at - 1 - first])
            at--;
        if (known || at - first >= most)
            continue;
        int last = *n_found - first < most ? (*n_found)++ : *n_found - 1;
        memmove(orders + (at + 1) * s->n, orders + at * s->n, (size_t)(last - at) * bytes);
        memmove(losses + at + 1 - first, losses + at - first, (size_t)(last - at) * sizeof found);
        memcpy(orders + at * s->n, trial, bytes);
        losses[at - first] = found;
    }
    return STATUS_OK;
}

enum status fit_groupings(const struct attn_weights *from, const double *moment, const double *seen,
                          struct rotary rotary, int64_t n_group, uint64_t seed, int most,
                          int64_t *orders, int *n_found, const char *what) {
    struct search s = {.from = from,
                       .rotary = rotary,
                       .n = from->n_kv,
                       .r = from->n_kv / n_group,
                       .n_group = n_group,
                       .what = what};
    double swaps = (double)s.n * (double)s.n, side = (double)(s.r * from->head_dim);
    enum status status;
    for (int64_t i = 0; i < s.n; i++)
        orders[i] = i;
    *n_found = 1;
    if (n_group == 1 || s.r == 1)
        return STATUS_OK;
    TRY_OUT(fit_covariances(from, moment, 1, &s.arena, &s.cov));
    if (seen) {
        int64_t all = s.n * from->head_dim;
        memcpy(s.cov.v, seen, (size_t)(all * all) * sizeof *seen);
    }
    TRY_OUT(prepare(&s));
    if (swaps * 8 * side * side * side > EXACT_COST)
        TRY_OUT(arena_alloc(&s.arena, s.n * s.n, 8, &s.pairs));
    s.scores = 1;
    TRY_OUT(find_optima(&s, seed, (most - 1) / 2 + (most - 1) % 2, orders, n_found));
    s.scores = 0;
    TRY_OUT(find_optima(&s, seed, most - *n_found, orders, n_found));
out:
    arena_free(&s.arena);
    return status;
}
