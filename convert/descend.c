/* See descend.h. A step that does not lower f enough is shortened by the parabola through what is
 * known; the first step's length comes from the same parabola, as nothing else knows the scale. */
#include "convert/descend.h"

#include <math.h>
#include <string.h>

enum { MEMORY = 10 };

struct pair {
    double *s, *y, rho; /* step, change of the gradient, 1 / (s y) */
};

static double dot(int64_t n, const double *a, const double *b) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void axpy(int64_t n, double alpha, const double *x, double *y) {
    for (int64_t i = 0; i < n; i++)
        y[i] += alpha * x[i];
}

/* d = -H g by the two-loop recursion over the latest `used` pairs, the newest at `newest`. */
static void direction(int64_t n, const struct pair *pairs, int used, int newest, const double *g,
                      double *d) {
    double alpha[MEMORY];
    for (int64_t i = 0; i < n; i++)
        d[i] = -g[i];
    for (int k = 0; k < used; k++) {
        const struct pair *p = &pairs[(newest - k + MEMORY) % MEMORY];
        alpha[k] = p->rho * dot(n, p->s, d);
        axpy(n, -alpha[k], p->y, d);
    }
    if (used) {
        const struct pair *p = &pairs[newest];
        double scale = 1 / (p->rho * dot(n, p->y, p->y));
        for (int64_t i = 0; i < n; i++)
            d[i] *= scale;
    }
    for (int k = used - 1; k >= 0; k--) {
        const struct pair *p = &pairs[(newest - k + MEMORY) % MEMORY];
        axpy(n, alpha[k] - p->rho * dot(n, p->y, d), p->s, d);
    }
}

enum status descend(int64_t n, double *x, int n_eval, descend_fn *fn, void *user, double *before,
                    double *after) {
    struct pair pairs[MEMORY] = {0};
    struct arena arena = {0};
    double *g, *d, *trial, *g_trial, f, f_trial;
    int used = 0, newest = -1;
    enum status status;
    TRY_OUT(arena_alloc(&arena, n, 8, &g));
    TRY_OUT(arena_alloc(&arena, n, 8, &d));
    TRY_OUT(arena_alloc(&arena, n, 8, &trial));
    TRY_OUT(arena_alloc(&arena, n, 8, &g_trial));
    TRY_OUT(fn(user, x, &f, g));
    *before = f;
    for (int eval = 1; eval < n_eval;) {
        direction(n, pairs, used, newest, g, d);
        double slope = dot(n, g, d), t = used ? 1 : f > 0 && slope < 0 ? f / -slope / 4 : 0;
        if (!(slope < 0) || !(t > 0))
            break;
        bool lower = false;
        for (; eval < n_eval && !lower; eval++) {
            memcpy(trial, x, (size_t)n * 8);
            axpy(n, t, d, trial);
            TRY_OUT(fn(user, trial, &f_trial, g_trial));
            lower = f_trial <= f + 1e-4 * t * slope;
            if (!lower) {
                double bend = f_trial - f - t * slope;
                double best = bend > 0 ? -slope * t * t / (2 * bend) : t / 4;
                t = fmin(fmax(best, t / 10), t / 2);
            }
        }
        if (!lower)
            break;
        newest = (newest + 1) % MEMORY;
        struct pair *p = &pairs[newest];
        if (!p->s)
            TRY_OUT(arena_alloc(&arena, n, 8, &p->s));
        if (!p->y)
            TRY_OUT(arena_alloc(&arena, n, 8, &p->y));
        for (int64_t i = 0; i < n; i++) {
            p->s[i] = trial[i] - x[i];
            p->y[i] = g_trial[i] - g[i];
        }
        memcpy(x, trial, (size_t)n * 8);
        memcpy(g, g_trial, (size_t)n * 8);
        f = f_trial;
        double curvature = dot(n, p->s, p->y);
        if (curvature > 1e-12 * dot(n, p->y, p->y)) {
            p->rho = 1 / curvature;
            used += used < MEMORY;
        } else { /* not convex along this step: start afresh */
            used = 0;
            newest = -1;
        }
    }
    *after = f;
out:
    arena_free(&arena);
    return status;
}
