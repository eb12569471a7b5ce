/* Shared keys and values of a group of heads. With w_h the rows of a head, every method gives the
 * shared head as sum_h T_h w_h and each member back as B_h times it: scalars of the complex plane
 * for rotary pairs, matrices elsewhere. B then moves into the queries, or into o_proj. */
#include "convert/fit.h"
#include "convert/linalg.h"

#include <complex.h>
#include <math.h>
#include <string.h>

enum { PROCRUSTES_ROUNDS = 12 };

enum status attn_weights_alloc(struct attn_weights *w) {
    int64_t d = w->head_dim, size = (int64_t)sizeof(double);
    TRY(memory_alloc(w->n_head * d * w->n_in, size, "queries", &w->q));
    TRY(memory_alloc(w->n_kv * d * w->n_in, size, "keys", &w->k));
    TRY(memory_alloc(w->n_kv * d * w->n_in, size, "values", &w->v));
    TRY(memory_alloc(w->width, size, "o_proj", &w->o_bias));
    return memory_alloc(w->n_head * d * w->width, size, "o_proj", &w->o);
}

void attn_weights_free(struct attn_weights *w) {
    memory_free(w->q);
    memory_free(w->k);
    memory_free(w->v);
    memory_free(w->o);
    memory_free(w->o_bias);
    w->q = w->k = w->v = w->o = w->o_bias = NULL;
}

void attn_weights_permute(const struct attn_weights *from, const int64_t *order,
                          struct attn_weights *to) {
    int64_t d = from->head_dim, n = from->n_in, hd = from->n_head * d;
    int64_t kv = d, q = from->n_head / from->n_kv * d; /* rows of a KV head, of its query heads */
    for (int64_t i = 0; i < from->n_kv; i++) {
        int64_t j = order[i];
        memcpy(to->k + i * kv * n, from->k + j * kv * n, (size_t)(kv * n) * sizeof(double));
        memcpy(to->v + i * kv * n, from->v + j * kv * n, (size_t)(kv * n) * sizeof(double));
        memcpy(to->q + i * q * n, from->q + j * q * n, (size_t)(q * n) * sizeof(double));
        for (int64_t r = 0; r < from->width; r++)
            memcpy(to->o + r * hd + i * q, from->o + r * hd + j * q, (size_t)q * sizeof(double));
    }
    memcpy(to->o_bias, from->o_bias, (size_t)from->width * sizeof(double));
}

void attn_weights_get_o(const struct attn_weights *w, int64_t n_y, double *o) {
    int64_t hd = w->n_head * w->head_dim;
    for (int64_t i = 0; i < w->width; i++) {
        memcpy(o + i * n_y, w->o + i * hd, (size_t)hd * sizeof *o);
        if (n_y > hd)
            o[i * n_y + hd] = w->o_bias[i];
    }
}

void attn_weights_set_o(struct attn_weights *w, int64_t n_y, const double *o) {
    int64_t hd = w->n_head * w->head_dim;
    for (int64_t i = 0; i < w->width; i++) {
        memcpy(w->o + i * hd, o + i * n_y, (size_t)hd * sizeof *o);
        if (n_y > hd)
            w->o_bias[i] = o[i * n_y + hd];
    }
}

/* What the fit of one layer works with. */
struct fit {
    const struct attn_weights *from;
    struct attn_weights *to;
    struct rotary rotary;
    enum merge_method method;
    const char *what;
    int64_t r, n_q; /* heads in a group; query heads of one KV head */
    struct fit_cov cov_of;
    double complex *pair, *c, *a; /* [r, r]; [r]; [r] */
    double *real, *vector;        /* [2r, 2r]; [2r] */
    double *metric, *t, *b;       /* [r, d, d]; [d, r d]; [r d, d] */
    double *cov, *work, *work2;   /* [r d, r d] */
    double *shared;               /* [d, d] */
    double *q_weight;             /* [n_head] */
    const double *seen;
    double k_loss, k_all, v_loss, v_all;
    struct arena arena;
};

static enum status doubles(struct fit *f, int64_t n, double **out) {
    return arena_alloc(&f->arena, n, (int64_t)sizeof **out, out);
}

static int64_t pair_row(const struct fit *f, int64_t head, int64_t i, bool imaginary) {
    int64_t first = head * f->from->head_dim;
    if (f->rotary.interleaved)
        return first + 2 * i + imaginary;
    return first + i + (imaginary ? f->rotary.dims / 2 : 0);
}

/* w_h C w_h'^H of pair i. */
static double complex pair_product(const struct fit *f, int64_t i, int64_t h, int64_t g) {
    int64_t n = f->from->n_kv * f->from->head_dim;
    const double *re = f->cov_of.k + pair_row(f, h, i, false) * n;
    const double *im = f->cov_of.k + pair_row(f, h, i, true) * n;
    int64_t gr = pair_row(f, g, i, false), gi = pair_row(f, g, i, true);
    return re[gr] + im[gi] + I * (im[gr] - re[gi]);
}

/* What query head q adds to the stream, per token, as a share of the most that one does: E|Wo_q
 * v|^2. An error of its scores counts for as much. */
static enum status weigh_queries(struct fit *f) {
    const struct attn_weights *w = f->from;
    int64_t d = w->head_dim, all = w->n_kv * d, hd = w->n_head * d;
    double *m, most = 0;
    TRY(doubles(f, w->n_head, &f->q_weight));
    TRY(doubles(f, d * d, &m));
    for (int64_t q = 0; q < w->n_head; q++) {
        const double *v = f->cov_of.v + (q / f->n_q) * d * (all + 1);
        linalg_gemm(true, false, d, d, w->width, w->o + q * d, hd, w->o + q * d, hd, 0, m, d);
        for (int64_t i = 0; i < d * d; i++)
            f->q_weight[q] += m[i] * v[i / d * all + i % d];
        most = fmax(most, f->q_weight[q]);
    }
    for (int64_t q = 0; q < w->n_head && most > 0; q++)
        f->q_weight[q] /= most;
    return STATUS_OK;
}

/* Energy of the queries that meet pair i of KV head h, weighed by what they are worth. */
static double pair_energy(const struct fit *f, int64_t i, int64_t h) {
    int64_t d = f->from->head_dim;
    double e = 0;
    for (int64_t q = h * f->n_q; q < (h + 1) * f->n_q; q++) {
        const double *cov = f->cov_of.q + q * d * d;
        int64_t re = pair_row(f, 0, i, false), im = pair_row(f, 0, i, true);
        e += f->q_weight[q] * (cov[re * d + re] + cov[im * d + im]);
    }
    return e;
}

/* row = A c^H, so that row[h] = E[k_h conj(k_shared)]; returns E|k_shared|^2. */
static double against_shared(const struct fit *f, double complex *row) {
    double complex all = 0;
    for (int64_t h = 0; h < f->r; h++) {
        row[h] = 0;
        for (int64_t g = 0; g < f->r; g++)
            row[h] += f->pair[h * f->r + g] * conj(f->c[g]);
        all += f->c[h] * row[h];
    }
    return creal(all);
}

/* The eigenvector of the Hermitian matrix (weighted by energies) into c and a. */
static enum status pair_eigen(struct fit *f, const double *energy, double complex *row) {
    int64_t r = f->r;
    for (int64_t h = 0; h < r; h++)
        for (int64_t g = 0; g < r; g++) {
            double complex m = f->pair[h * r + g] * sqrt(energy[h] * energy[g]);
            double *block = f->real + h * 2 * r + g;
            block[0] = block[r * 2 * r + r] = creal(m);
            block[r] = -cimag(m);
            block[r * 2 * r] = cimag(m);
        }
    double top;
    TRY(linalg_eigen(2 * r, f->real, 1, &top, f->vector, f->what));
    for (int64_t h = 0; h < r; h++)
        f->c[h] = top > 0 ? conj(f->vector[h] + I * f->vector[r + h]) * sqrt(energy[h]) : 1.0 / r;
    double all = against_shared(f, row);
    for (int64_t h = 0; h < r; h++)
        f->a[h] = all > 0 ? row[h] / all : 0;
    return STATUS_OK;
}

/* Unit factors that bring the heads onto their mean. */
static void pair_procrustes(struct fit *f, double complex *row) {
    int64_t r = f->r;
    for (int64_t h = 0; h < r; h++) {
        double complex z = f->pair[h * r];
        f->a[h] = cabs(z) > 0 ? z / cabs(z) : 1;
    }
    for (int round = 0; round <= PROCRUSTES_ROUNDS; round++) {
        for (int64_t h = 0; h < r; h++)
            f->c[h] = conj(f->a[h]) / (double)r;
        if (round == PROCRUSTES_ROUNDS)
            break;
        against_shared(f, row);
        for (int64_t h = 0; h < r; h++)
            if (cabs(row[h]) > 0)
                f->a[h] = row[h] / cabs(row[h]);
    }
}

/* Any factor z may sit in a and 1/z in c: leave the shared key as large as its members and, on
 * average, in their phase, so that equal heads give back exactly themselves. */
static void pair_normalise(struct fit *f) {
    double complex sum = 0;
    double squares = 0;
    for (int64_t h = 0; h < f->r; h++) {
        sum += f->a[h];
        squares += creal(f->a[h] * conj(f->a[h]));
    }
    if (!(squares > 0))
        return;
    double complex z = sqrt(squares / (double)f->r);
    if (cabs(sum) > 0)
        z *= sum / cabs(sum);
    for (int64_t h = 0; h < f->r; h++) {
        f->a[h] /= z;
        f->c[h] *= z;
    }
}

static enum status fit_pair(struct fit *f, int64_t group, int64_t i, double *energy,
                            double complex *row) {
    const struct attn_weights *from = f->from;
    int64_t r = f->r, n = from->n_in, first = group * r;
    for (int64_t h = 0; h < r; h++) {
        energy[h] = pair_energy(f, i, first + h);
        for (int64_t g = 0; g < r; g++)
            f->pair[h * r + g] = pair_product(f, i, first + h, first + g);
        f->c[h] = f->method == MERGE_FIRST ? h == 0 : 1.0 / (double)r;
        f->a[h] = 1;
    }
    if (f->method == MERGE_FIT) {
        TRY(pair_eigen(f, energy, row));
        pair_normalise(f);
    } else if (f->method == MERGE_PROCRUSTES) {
        pair_procrustes(f, row);
    }
    double all = against_shared(f, row);
    double *re = f->to->k + pair_row(f, group, i, false) * n;
    double *im = f->to->k + pair_row(f, group, i, true) * n;
    memset(re, 0, (size_t)n * sizeof *re);
    memset(im, 0, (size_t)n * sizeof *im);
    for (int64_t h = 0; h < r; h++) {
        double complex a = f->a[h], c = f->c[h];
        double own = creal(f->pair[h * r + h]);
        f->k_all += energy[h] * own;
        f->k_loss += energy[h] * (own - 2 * creal(conj(a) * row[h]) + creal(a * conj(a)) * all);
        const double *wr = from->k + pair_row(f, first + h, i, false) * n;
        const double *wi = from->k + pair_row(f, first + h, i, true) * n;
        for (int64_t j = 0; j < n; j++) {
            re[j] += creal(c) * wr[j] - cimag(c) * wi[j];
            im[j] += creal(c) * wi[j] + cimag(c) * wr[j];
        }
        for (int64_t q = (first + h) * f->n_q; q < (first + h + 1) * f->n_q; q++) {
            int64_t at_re = pair_row(f, q, i, false) * n, at_im = pair_row(f, q, i, true) * n;
            for (int64_t j = 0; j < n; j++) { /* conj(a) q */
                double x = from->q[at_re + j], y = from->q[at_im + j];
                f->to->q[at_re + j] = creal(a) * x + cimag(a) * y;
                f->to->q[at_im + j] = creal(a) * y - cimag(a) * x;
            }
        }
    }
    return STATUS_OK;
}

/* b = cov t^T (t cov t^T)^-1 for t whose rows are eigenvectors: the inverse is that of `values`. */
static enum status linear_eigen(struct fit *f, int64_t d) {
    int64_t r = f->r, n = r * d;
    double *s = f->metric, *values = f->shared;
    for (int64_t h = 0; h < r; h++)
        linalg_gemm(false, false, d, n, d, s + h * d * d, d, f->cov + h * d * n, n, 0,
                    f->work + h * d * n, n);
    for (int64_t h = 0; h < r; h++)
        linalg_gemm(false, true, n, d, d, f->work + h * d, n, s + h * d * d, d, 0, f->work2 + h * d,
                    n);
    TRY(linalg_eigen(n, f->work2, d, values, f->work, f->what));
    for (int64_t h = 0; h < r; h++)
        linalg_gemm(false, false, d, d, d, f->work + h * d, n, s + h * d * d, d, 0, f->t + h * d,
                    n);
    linalg_gemm(false, true, n, d, n, f->cov, n, f->t, n, 0, f->b, d);
    for (int64_t k = 0; k < d; k++) {
        bool used = values[k] > 1e-13 * values[0];
        double squares = 0;
        for (int64_t i = 0; i < n; i++) {
            f->b[i * d + k] = used ? f->b[i * d + k] / values[k] : 0;
            squares += f->b[i * d + k] * f->b[i * d + k];
        }
        double scale = used && squares > 0 ? sqrt(squares / (double)r) : 1;
        for (int64_t i = 0; i < n; i++) {
            f->b[i * d + k] /= scale;
            f->t[k * n + i] *= scale;
        }
    }
    return STATUS_OK;
}

static enum status linear_procrustes(struct fit *f, int64_t d) {
    int64_t r = f->r, n = r * d;
    for (int round = 0; round <= PROCRUSTES_ROUNDS; round++) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < d; k++)
                f->t[k * n + i] = round ? f->b[i * d + k] / (double)r : i == k; /* the first head */
        if (round == PROCRUSTES_ROUNDS)
            break;
        linalg_gemm(false, true, n, d, n, f->cov, n, f->t, n, 0, f->work, d);
        for (int64_t h = 0; h < r; h++)
            TRY(linalg_polar(d, f->work + h * d * d, f->b + h * d * d, f->what));
    }
    return STATUS_OK;
}

/* t and b for r blocks of d dimensions with covariance f->cov and error metrics s^T s in
 * f->metric; adds the error and what it is relative to. */
static enum status fit_linear(struct fit *f, int64_t d, double *loss, double *all) {
    int64_t r = f->r, n = r * d;
    for (int64_t h = 0; h < r; h++)
        TRY(linalg_root(d, f->metric + h * d * d, f->what));
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < d; k++) {
            f->t[k * n + i] = i % d != k ? 0 : f->method == MERGE_FIRST ? i < d : 1.0 / (double)r;
            f->b[i * d + k] = i % d == k;
        }
    if (f->method == MERGE_FIT)
        TRY(linear_eigen(f, d));
    else if (f->method == MERGE_PROCRUSTES)
        TRY(linear_procrustes(f, d));
    /* e_h = s (w_h - b_h t w): rows of p = s (1 - b t), error the trace of p cov p^T. */
    for (int64_t h = 0; h < r; h++) {
        double *p = f->work, *q = f->work2;
        const double *s = f->metric + h * d * d;
        linalg_gemm(false, false, d, n, d, f->b + h * d * d, d, f->t, n, 0, q, n);
        for (int64_t i = 0; i < d; i++)
            for (int64_t j = 0; j < n; j++)
                q[i * n + j] = (j == h * d + i) - q[i * n + j];
        linalg_gemm(false, false, d, n, d, s, d, q, n, 0, p, n);
        linalg_gemm(false, false, d, n, n, p, n, f->cov, n, 0, q, n);
        for (int64_t i = 0; i < d * n; i++)
            *loss += p[i] * q[i];
        linalg_gemm(false, false, d, d, d, s, d, f->cov + h * d * n + h * d, n, 0, q, d);
        for (int64_t i = 0; i < d * d; i++)
            *all += s[i] * q[i];
    }
    return STATUS_OK;
}

/* Blocks [first, first + r) of `cov` over all KV heads, dimensions [skip, head_dim) of each. */
static void group_cov(struct fit *f, const double *cov, int64_t first, int64_t skip) {
    int64_t d = f->from->head_dim, used = d - skip, n = f->r * used, all = f->from->n_kv * d;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            f->cov[i * n + j] = cov[((first + i / used) * d + skip + i % used) * all +
                                    (first + j / used) * d + skip + j % used];
}

/* Keys beyond the rotation: free as values are, seen through their queries. */
static enum status fit_tail(struct fit *f, int64_t group) {
    const struct attn_weights *from = f->from;
    int64_t d = from->head_dim, skip = f->rotary.dims, n = d - skip, w = from->n_in;
    int64_t first = group * f->r;
    if (!n)
        return STATUS_OK;
    group_cov(f, f->cov_of.k, first, skip);
    memset(f->metric, 0, (size_t)(f->r * n * n) * sizeof *f->metric);
    for (int64_t q = first * f->n_q; q < (first + f->r) * f->n_q; q++)
        for (int64_t i = 0; i < n * n; i++)
            f->metric[(q / f->n_q - first) * n * n + i] +=
                f->q_weight[q] * f->cov_of.q[q * d * d + (skip + i / n) * d + skip + i % n];
    TRY(fit_linear(f, n, &f->k_loss, &f->k_all));
    double *k = f->to->k + (group * d + skip) * w;
    for (int64_t h = 0; h < f->r; h++) {
        linalg_gemm(false, false, n, w, n, f->t + h * n, f->r * n,
                    from->k + ((first + h) * d + skip) * w, w, h > 0, k, w);
        for (int64_t q = (first + h) * f->n_q; q < (first + h + 1) * f->n_q; q++)
            linalg_gemm(true, false, n, w, n, f->b + h * n * n, n, from->q + (q * d + skip) * w, w,
                        0, f->to->q + (q * d + skip) * w, w);
    }
    return STATUS_OK;
}

static enum status fit_values(struct fit *f, int64_t group) {
    const struct attn_weights *from = f->from;
    int64_t d = from->head_dim, w = from->n_in, hd = from->n_head * d, first = group * f->r;
    if (f->seen) {
        int64_t n = f->r * d;
        memcpy(f->cov, f->seen + group * n * n, (size_t)(n * n) * sizeof *f->cov);
    } else {
        group_cov(f, f->cov_of.v, first, 0);
    }
    for (int64_t q = first * f->n_q; q < (first + f->r) * f->n_q; q++)
        linalg_gemm(true, false, d, d, from->width, from->o + q * d, hd, from->o + q * d, hd,
                    q % f->n_q > 0, f->metric + (q / f->n_q - first) * d * d, d);
    TRY(fit_linear(f, d, &f->v_loss, &f->v_all));
    linalg_gemm(false, false, d, w, f->r * d, f->t, f->r * d, from->v + first * d * w, w, 0,
                f->to->v + group * d * w, w);
    for (int64_t q = first * f->n_q; q < (first + f->r) * f->n_q; q++)
        linalg_gemm(false, false, from->width, d, d, from->o + q * d, hd,
                    f->b + (q / f->n_q - first) * d * d, d, 0, f->to->o + q * d, hd);
    return STATUS_OK;
}

/* out = w m for symmetric m [n, n]; a diagonal one, as without text, only scales. */
static void times_moment(int64_t rows, int64_t n, const double *w, const double *m, double *out) {
    bool diagonal = true;
    for (int64_t i = 1; i < n && diagonal; i++)
        for (int64_t j = 0; j < i && diagonal; j++)
            diagonal = m[i * n + j] == 0;
    if (!diagonal) {
        linalg_gemm(false, false, rows, n, n, w, n, m, n, 0, out, n);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            out[i * n + j] = w[i * n + j] * m[j * (n + 1)];
}

enum status fit_covariances(const struct attn_weights *w, const double *moment, int64_t n_group,
                            struct arena *arena, struct fit_cov *out) {
    int64_t d = w->head_dim, n = w->n_in, kv = w->n_kv * d, side = kv / n_group;
    double *product;
    TRY(arena_alloc(arena, kv * kv, 8, &out->k));
    TRY(arena_alloc(arena, kv * kv, 8, &out->v));
    TRY(arena_alloc(arena, w->n_head * d * d, 8, &out->q));
    TRY(memory_alloc(w->n_head * d * n, 8, "covariances", &product));
    for (int values = 0; values < 2; values++) {
        const double *rows = values ? w->v : w->k;
        double *cov = values ? out->v : out->k;
        times_moment(kv, n, rows, moment, product);
        for (int64_t at = 0; at < kv; at += side)
            linalg_gemm(false, true, side, side, n, product + at * n, n, rows + at * n, n, 0,
                        cov + at * (kv + 1), kv);
    }
    times_moment(w->n_head * d, n, w->q, moment, product);
    for (int64_t h = 0; h < w->n_head; h++)
        linalg_gemm(false, true, d, d, n, product + h * d * n, n, w->q + h * d * n, n, 0,
                    out->q + h * d * d, d);
    memory_free(product);
    return STATUS_OK;
}

/* Rounding may leave a loss of nothing below 0; a NaN stays. */
static double share(double loss, double all) {
    return loss <= 0 || all <= 0 ? 0 : loss / all;
}

enum status fit_layer(const struct attn_weights *from, const double *moment, const double *seen,
                      struct rotary rotary, enum merge_method method, struct attn_weights *to,
                      struct fit_error *error, const char *what) {
    struct fit f = {.from = from, .to = to, .rotary = rotary, .method = method, .what = what};
    int64_t d = from->head_dim, r = from->n_kv / to->n_kv, size = (int64_t)sizeof(double complex);
    double *energy;
    double complex *row;
    enum status status;
    f.r = r;
    f.seen = seen;
    f.n_q = from->n_head / from->n_kv;
    TRY_OUT(fit_covariances(from, moment, to->n_kv, &f.arena, &f.cov_of));
    TRY_OUT(weigh_queries(&f));
    TRY_OUT(arena_alloc(&f.arena, r * r, size, &f.pair));
    TRY_OUT(arena_alloc(&f.arena, r, size, &f.c));
    TRY_OUT(arena_alloc(&f.arena, r, size, &f.a));
    TRY_OUT(arena_alloc(&f.arena, r, size, &row));
    TRY_OUT(doubles(&f, r, &energy));
    TRY_OUT(doubles(&f, 4 * r * r, &f.real));
    TRY_OUT(doubles(&f, 2 * r, &f.vector));
    TRY_OUT(doubles(&f, r * d * d, &f.metric));
    TRY_OUT(doubles(&f, r * d * d, &f.t));
    TRY_OUT(doubles(&f, r * d * d, &f.b));
    TRY_OUT(doubles(&f, r * d * r * d + d, &f.cov));
    TRY_OUT(doubles(&f, r * d * (r * d + d), &f.work));
    TRY_OUT(doubles(&f, r * d * (r * d + d), &f.work2));
    TRY_OUT(doubles(&f, d * d, &f.shared));
    for (int64_t g = 0; g < to->n_kv; g++) {
        for (int64_t i = 0; i < rotary.dims / 2; i++)
            TRY_OUT(fit_pair(&f, g, i, energy, row));
        TRY_OUT(fit_tail(&f, g));
        TRY_OUT(fit_values(&f, g));
    }
    memcpy(to->o_bias, from->o_bias, (size_t)from->width * sizeof(double));
    *error = (struct fit_error){share(f.k_loss, f.k_all), share(f.v_loss, f.v_all)};
out:
    arena_free(&f.arena);
    return status;
}
