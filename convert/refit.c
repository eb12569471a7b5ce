/* Least squares for o_proj from sums over tokens: ridge towards what is there, with a lambda that
 * has no scale of its own, and a guard on tokens that the solution has not seen. */
#include "convert/refit.h"
#include "convert/linalg.h"

#include <string.h>

static const double RIDGE = 1e-3; /* of the mean diagonal of E[y y^T] */

enum status refit_sums_alloc(struct refit_sums *s) {
    for (int k = 0; k < 2; k++) {
        TRY(memory_alloc(s->n_y * s->n_y, 8, "refit sums", &s->yy[k]));
        TRY(memory_alloc(s->width * s->n_y, 8, "refit sums", &s->ty[k]));
    }
    return STATUS_OK;
}

void refit_sums_free(struct refit_sums *s) {
    for (int k = 0; k < 2; k++) {
        memory_free(s->yy[k]);
        memory_free(s->ty[k]);
    }
    *s = (struct refit_sums){0};
}

void refit_sums_clear(struct refit_sums *s) {
    for (int k = 0; k < 2; k++) {
        memset(s->yy[k], 0, (size_t)(s->n_y * s->n_y) * 8);
        memset(s->ty[k], 0, (size_t)(s->width * s->n_y) * 8);
        s->tt[k] = 0;
    }
}

void refit_sums_add(struct refit_sums *s, int held_out, int64_t n, const double *y,
                    const double *t) {
    linalg_gram(n, s->n_y, y, s->yy[held_out]);
    linalg_gemm(true, false, s->width, s->n_y, n, t, s->width, y, s->n_y, 1, s->ty[held_out],
                s->n_y);
    for (int64_t i = 0; i < n * s->width; i++)
        s->tt[held_out] += t[i] * t[i];
}

/* E|t - o y|^2 = tr(tt) - 2 tr(o ty^T) + tr(o yy o^T). */
enum status refit_error(const struct refit_sums *s, const double *o, double *out) {
    double *product, sum = s->tt[1];
    int64_t n = s->width * s->n_y;
    TRY(memory_alloc(n, 8, "refit error", &product));
    linalg_mirror(s->n_y, s->yy[1]);
    linalg_gemm(false, false, s->width, s->n_y, s->n_y, o, s->n_y, s->yy[1], s->n_y, 0, product,
                s->n_y);
    for (int64_t i = 0; i < n; i++)
        sum += o[i] * (product[i] - 2 * s->ty[1][i]);
    memory_free(product);
    *out = s->tt[1] > 0 ? sum / s->tt[1] : 0;
    return STATUS_OK;
}

enum status refit_ridge(const struct refit_sums *s, const double *o, double *x, const char *what) {
    int64_t n = s->n_y, n_x = s->width * n;
    double *g, mean = 0;
    TRY(memory_alloc(n * n, 8, "refit", &g));
    memcpy(g, s->yy[0], (size_t)(n * n) * 8);
    linalg_mirror(n, g);
    for (int64_t i = 0; i < n; i++)
        mean += g[i * n + i] / (double)n;
    double lambda = mean > 0 ? RIDGE * mean : 1;
    for (int64_t i = 0; i < n; i++)
        g[i * n + i] += lambda;
    for (int64_t i = 0; i < n_x; i++)
        x[i] = s->ty[0][i] + lambda * o[i];
    enum status status = linalg_solve(n, g, s->width, x, what);
    memory_free(g);
    return status;
}

enum status refit_solve(struct refit_sums *s, double *o, double *before, double *after,
                        bool *better, const char *what) {
    int64_t n = s->width * s->n_y;
    double *x;
    enum status status;
    TRY(memory_alloc(n, 8, "refit", &x));
    TRY_OUT(refit_error(s, o, before));
    TRY_OUT(refit_ridge(s, o, x, what));
    TRY_OUT(refit_error(s, x, after));
    *better = *after < *before;
    if (!*better)
        goto out;
    linalg_mirror(s->n_y, s->yy[0]);
    for (int64_t i = 0; i < s->n_y * s->n_y; i++)
        s->yy[0][i] += s->yy[1][i];
    for (int64_t i = 0; i < n; i++)
        s->ty[0][i] += s->ty[1][i];
    TRY_OUT(refit_ridge(s, o, x, what));
    memcpy(o, x, (size_t)n * 8);
out:
    memory_free(x);
    return status;
}
