/* The algebra of the fit: what differs only by a factor that commutes with the rotation (keys) or
 * by an invertible map (values, keys without rotation) is one head, and comes back without loss. */
#include "convert/fit.h"
#include "convert/linalg.h"
#include "convert/refit.h"
#include "core/rng.h"

#include <complex.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

enum { WIDTH = 24, DIM = 8, N_IN = WIDTH + 1 };

static const struct rotary ROTARIES[] = {
    {.dims = DIM}, {.dims = DIM, .interleaved = true}, {.dims = 4},
    {.dims = 0},   {.dims = 4, .interleaved = true},
};
enum { N_ROTARY = sizeof ROTARIES / sizeof *ROTARIES };

static struct attn_weights weights(int64_t n_head, int64_t n_kv, struct rng *rng) {
    struct attn_weights w = {
        .n_head = n_head, .n_kv = n_kv, .head_dim = DIM, .width = WIDTH, .n_in = N_IN};
    OK(attn_weights_alloc(&w));
    for (int64_t i = 0; i < n_head * DIM * N_IN; i++)
        w.q[i] = rng_normal(rng);
    for (int64_t i = 0; i < n_kv * DIM * N_IN; i++) {
        w.k[i] = rng_normal(rng);
        w.v[i] = rng_normal(rng);
    }
    for (int64_t i = 0; i < n_head * DIM * WIDTH; i++)
        w.o[i] = rng_normal(rng);
    for (int64_t i = 0; i < WIDTH; i++)
        w.o_bias[i] = rng_normal(rng);
    return w;
}

static void moment(struct rng *rng, double *m) {
    double x[2 * N_IN * N_IN];
    for (int i = 0; i < 2 * N_IN * N_IN; i++)
        x[i] = rng_normal(rng);
    memset(m, 0, N_IN * N_IN * sizeof *m);
    linalg_gram(2 * N_IN, N_IN, x, m);
    linalg_mirror(N_IN, m);
}

/* Each KV head copied to n_kv heads. */
static struct attn_weights expanded(const struct attn_weights *w, int64_t n_kv, struct rng *rng) {
    struct attn_weights e = weights(w->n_head, n_kv, rng);
    size_t block = DIM * N_IN * sizeof(double);
    memcpy(e.q, w->q, (size_t)w->n_head * block);
    memcpy(e.o, w->o, (size_t)(w->n_head * DIM * WIDTH) * sizeof(double));
    memcpy(e.o_bias, w->o_bias, WIDTH * sizeof(double));
    for (int64_t h = 0; h < n_kv; h++) {
        int64_t g = h / (n_kv / w->n_kv);
        memcpy(e.k + h * DIM * N_IN, w->k + g * DIM * N_IN, block);
        memcpy(e.v + h * DIM * N_IN, w->v + g * DIM * N_IN, block);
    }
    return e;
}

/* A random map b of n dimensions and its inverse's transpose: 1 + u v^T (Sherman, Morrison). */
static void random_map(int64_t n, struct rng *rng, double *b, double *inverse_t) {
    double u[DIM], v[DIM], dot = 1;
    for (int64_t i = 0; i < n; i++) {
        u[i] = rng_normal(rng) / 2;
        v[i] = rng_normal(rng) / 2;
        dot += u[i] * v[i];
    }
    if (fabs(dot) < 0.1)
        random_map(n, rng, b, inverse_t);
    else
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                b[i * n + j] = (i == j) + u[i] * v[j];
                inverse_t[i * n + j] = (i == j) - u[j] * v[i] / dot;
            }
}

static void map_rows(const double *b, int64_t n, int64_t cols, double *rows) {
    double copy[DIM * N_IN];
    memcpy(copy, rows, (size_t)(n * cols) * sizeof *rows);
    linalg_gemm(false, false, n, cols, n, b, n, copy, cols, 0, rows, cols);
}

static void turn_rows(double complex z, double *re, double *im) {
    for (int64_t j = 0; j < N_IN; j++) {
        double complex x = z * (re[j] + I * im[j]);
        re[j] = creal(x);
        im[j] = cimag(x);
    }
}

/* Change every KV head by a map of its own, undone in queries and o_proj. */
static void disguise(struct attn_weights *w, struct rotary rotary, struct rng *rng) {
    int64_t n_q = w->n_head / w->n_kv, tail = DIM - rotary.dims;
    for (int64_t h = 0; h < w->n_kv; h++) {
        double b[DIM * DIM], inverse_t[DIM * DIM];
        for (int64_t i = 0; i < rotary.dims / 2; i++) {
            int64_t re = rotary.interleaved ? 2 * i : i;
            int64_t im = rotary.interleaved ? 2 * i + 1 : i + rotary.dims / 2;
            double complex a = rng_normal(rng) + I * rng_normal(rng);
            double *k = w->k + h * DIM * N_IN;
            turn_rows(a, k + re * N_IN, k + im * N_IN);
            for (int64_t q = h * n_q; q < (h + 1) * n_q; q++)
                turn_rows(1 / conj(a), w->q + (q * DIM + re) * N_IN, w->q + (q * DIM + im) * N_IN);
        }
        random_map(tail, rng, b, inverse_t);
        if (tail) {
            map_rows(b, tail, N_IN, w->k + (h * DIM + rotary.dims) * N_IN);
            for (int64_t q = h * n_q; q < (h + 1) * n_q; q++)
                map_rows(inverse_t, tail, N_IN, w->q + (q * DIM + rotary.dims) * N_IN);
        }
        random_map(DIM, rng, b, inverse_t);
        map_rows(b, DIM, N_IN, w->v + h * DIM * N_IN);
        for (int64_t q = h * n_q; q < (h + 1) * n_q; q++)
            for (int64_t r = 0; r < WIDTH; r++) {
                double *o = w->o + r * w->n_head * DIM + q * DIM, copy[DIM];
                memcpy(copy, o, sizeof copy);
                linalg_gemm(false, true, 1, DIM, DIM, copy, DIM, inverse_t, DIM, 0, o, DIM);
            }
    }
}

static void rotate(double *x, struct rotary rotary, double position) {
    for (int64_t i = 0; i < rotary.dims / 2; i++) {
        double *re = x + (rotary.interleaved ? 2 * i : i);
        double *im = x + (rotary.interleaved ? 2 * i + 1 : i + rotary.dims / 2);
        double complex z = (*re + I * *im) * cexp(I * position * pow(10, (double)-i));
        *re = creal(z);
        *im = cimag(z);
    }
}

static void rows_times(const double *w, const double *x, double *y) {
    linalg_gemm(false, false, DIM, 1, N_IN, w, N_IN, x, 1, 0, y, 1);
}

/* The function that a layer computes with a head: scores at a distance, values through o_proj. */
static void head_function(const struct attn_weights *w, struct rotary rotary, int64_t head,
                          const double *x, const double *y, double distance, double *score,
                          double *out) {
    int64_t kv = head / (w->n_head / w->n_kv), hd = w->n_head * DIM;
    double q[DIM], k[DIM], v[DIM];
    rows_times(w->q + head * DIM * N_IN, x, q);
    rows_times(w->k + kv * DIM * N_IN, y, k);
    rows_times(w->v + kv * DIM * N_IN, y, v);
    rotate(q, rotary, distance);
    *score = 0;
    for (int i = 0; i < DIM; i++)
        *score += q[i] * k[i];
    linalg_gemm(false, false, WIDTH, 1, DIM, w->o + head * DIM, hd, v, 1, 0, out, 1);
}

static double difference(const struct attn_weights *a, const struct attn_weights *b,
                         const int64_t *head_of_b, struct rotary rotary, struct rng *rng) {
    double worst = 0;
    for (int trial = 0; trial < 20; trial++) {
        double x[N_IN], y[N_IN], sa, sb, oa[WIDTH], ob[WIDTH], distance = (double)(trial * 3);
        for (int i = 0; i < N_IN; i++) {
            x[i] = i < WIDTH ? rng_normal(rng) : 1;
            y[i] = i < WIDTH ? rng_normal(rng) : 1;
        }
        for (int64_t h = 0; h < a->n_head; h++) {
            head_function(a, rotary, head_of_b ? head_of_b[h] : h, x, y, distance, &sa, oa);
            head_function(b, rotary, h, x, y, distance, &sb, ob);
            worst = fmax(worst, fabs(sa - sb));
            for (int i = 0; i < WIDTH; i++)
                worst = fmax(worst, fabs(oa[i] - ob[i]));
        }
    }
    return worst;
}

static void check_recovered(enum merge_method method, bool disguised, double tolerance) {
    struct rng rng = rng_seed(7);
    for (int i = 0; i < N_ROTARY; i++)
        for (int64_t n_kv = 1; n_kv <= 4; n_kv *= 2) {
            struct attn_weights shared = weights(16, n_kv, &rng);
            struct attn_weights from = expanded(&shared, 8, &rng);
            struct attn_weights to = weights(16, n_kv, &rng);
            struct fit_error error;
            double m[N_IN * N_IN];
            moment(&rng, m);
            if (disguised)
                disguise(&from, ROTARIES[i], &rng);
            OK(fit_layer(&from, m, NULL, ROTARIES[i], method, &to, &error, "test"));
            double off = difference(&from, &to, NULL, ROTARIES[i], &rng);
            bool none = error.k >= 0 && error.k <= 1e-9 && error.v >= 0 && error.v <= 1e-9;
            if (!(off <= tolerance) || !none)
                fail_msg("rotary case %d, %lld KV heads: off by %g, errors %g %g", i,
                         (long long)n_kv, off, error.k, error.v);
            attn_weights_free(&shared);
            attn_weights_free(&from);
            attn_weights_free(&to);
        }
}

static void equal_heads_come_back(void **state) {
    (void)state;
    check_recovered(MERGE_MEAN, false, 1e-10);
    check_recovered(MERGE_FIRST, false, 1e-10);
    check_recovered(MERGE_PROCRUSTES, false, 1e-8);
    check_recovered(MERGE_FIT, false, 1e-8);
}

static void disguised_heads_come_back(void **state) {
    (void)state;
    check_recovered(MERGE_FIT, true, 1e-7);
}

/* Heads that truly differ: the fit's error is the least, and the error it reports is the one that
 * its heads make under the moment it was given. */
static void fit_loses_least(void **state) {
    (void)state;
    struct rng rng = rng_seed(8);
    for (int i = 0; i < N_ROTARY; i++) {
        struct attn_weights from = weights(8, 8, &rng), to = weights(8, 2, &rng);
        struct fit_error fit, other;
        double m[N_IN * N_IN];
        moment(&rng, m);
        OK(fit_layer(&from, m, NULL, ROTARIES[i], MERGE_FIT, &to, &fit, "test"));
        assert_true(fit.k > 0.05 && fit.v > 0.05 && fit.k < 1 && fit.v < 1);
        for (enum merge_method method = MERGE_MEAN; method < MERGE_COUNT; method++) {
            if (method == MERGE_RANDOM || method == MERGE_REPEAT || method == MERGE_FIT)
                continue;
            OK(fit_layer(&from, m, NULL, ROTARIES[i], method, &to, &other, "test"));
            assert_true(fit.k < other.k && fit.v < other.v);
        }
        attn_weights_free(&from);
        attn_weights_free(&to);
    }
}

static void permuted_heads_are_the_same_function(void **state) {
    (void)state;
    struct rng rng = rng_seed(9);
    const int64_t order[] = {2, 0, 3, 1};
    int64_t head_of[8];
    struct attn_weights from = weights(8, 4, &rng), to = weights(8, 4, &rng);
    attn_weights_permute(&from, order, &to);
    for (int64_t h = 0; h < 8; h++)
        head_of[h] = order[h / 2] * 2 + h % 2;
    assert_true(difference(&from, &to, head_of, ROTARIES[0], &rng) <= 1e-12);
    attn_weights_free(&from);
    attn_weights_free(&to);
}

static void refit_finds_the_map(void **state) {
    (void)state;
    struct rng rng = rng_seed(10);
    enum { N = 6, W = 4, ROWS = 200 };
    struct refit_sums s = {.n_y = N, .width = W};
    OK(refit_sums_alloc(&s));
    double right[W * N], o[W * N], start[W * N], y[ROWS * N], t[ROWS * W], before, after;
    bool better;
    for (int i = 0; i < W * N; i++) {
        right[i] = rng_normal(&rng);
        o[i] = start[i] = rng_normal(&rng);
    }
    for (int held_out = 0; held_out < 2; held_out++) {
        for (int i = 0; i < ROWS * N; i++)
            y[i] = rng_normal(&rng);
        linalg_gemm(false, true, ROWS, W, N, y, N, right, N, 0, t, W);
        refit_sums_add(&s, held_out, ROWS, y, t);
    }
    OK(refit_solve(&s, o, &before, &after, &better, "test"));
    assert_true(better && before > 0.5 && after < 1e-5);
    for (int i = 0; i < W * N; i++)
        assert_true(fabs(o[i] - right[i]) <= 0.01);
    /* Held-out tokens that say the contrary of the others: the start is kept as it was. */
    refit_sums_clear(&s);
    linalg_gemm(false, true, ROWS, W, N, y, N, start, N, 0, t, W);
    refit_sums_add(&s, 1, ROWS, y, t);
    linalg_gemm(false, true, ROWS, W, N, y, N, right, N, 0, t, W);
    refit_sums_add(&s, 0, ROWS, y, t);
    memcpy(o, start, sizeof o);
    OK(refit_solve(&s, o, &before, &after, &better, "test"));
    assert_false(better);
    assert_memory_equal(o, start, sizeof o);
    refit_sums_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_heads_come_back),
        cmocka_unit_test(disguised_heads_come_back),
        cmocka_unit_test(fit_loses_least),
        cmocka_unit_test(permuted_heads_are_the_same_function),
        cmocka_unit_test(refit_finds_the_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
