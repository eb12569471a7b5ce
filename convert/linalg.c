/* See linalg.h. LAPACK is column-major: a symmetric matrix is its own transpose, and a column of
 * LAPACK's is a row of ours. */
#include "convert/linalg.h"

#include <cblas.h>
#include <lapacke.h>
#include <math.h>
#include <string.h>

void linalg_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const double *a,
                 int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc) {
    cblas_dgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, 1, a, (int)lda, b,
                (int)ldb, beta, c, (int)ldc);
}

void linalg_gram(int64_t rows, int64_t n, const double *x, double *c) {
    cblas_dsyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)n, (int)rows, 1, x, (int)n, 1, c,
                (int)n);
}

void linalg_mirror(int64_t n, double *c) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++)
            c[i * n + j] = c[j * n + i];
}

static enum status failed(const char *what, const char *routine, lapack_int info) {
    return status_fail(STATUS_FAILED,
                       "%s: LAPACK's %s failed (%d): are there NaN or infinities in the weights or "
                       "activations?",
                       what, routine, (int)info);
}

enum status linalg_eigen(int64_t n, double *a, int64_t k, double *values, double *vectors,
                         const char *what) {
    enum status status;
    double *w = NULL;
    lapack_int *support = NULL, found = 0;
    TRY_OUT(memory_alloc(n, (int64_t)sizeof *w, "eigenvalues", &w));
    TRY_OUT(memory_alloc(2 * n, (int64_t)sizeof *support, "eigenvalues", &support));
    lapack_int size = (lapack_int)n;
    lapack_int info =
        LAPACKE_dsyevr(LAPACK_COL_MAJOR, 'V', 'I', 'U', size, a, size, 0, 0,
                       (lapack_int)(n - k + 1), size, 0, &found, w, vectors, size, support);
    if (info || found != k) {
        status = failed(what, "dsyevr", info);
        goto out;
    }
    for (int64_t i = 0; i < k; i++)
        values[i] = w[k - 1 - i];
    for (int64_t i = 0; i < k / 2; i++)
        for (int64_t j = 0; j < n; j++) {
            double swap = vectors[i * n + j];
            vectors[i * n + j] = vectors[(k - 1 - i) * n + j];
            vectors[(k - 1 - i) * n + j] = swap;
        }
out:
    memory_free(w);
    memory_free(support);
    return status;
}

enum status linalg_root(int64_t n, double *m, const char *what) {
    double *vectors;
    TRY(memory_alloc(n * n + n, (int64_t)sizeof *vectors, "root of a metric", &vectors));
    double *values = vectors + n * n;
    enum status status = linalg_eigen(n, m, n, values, vectors, what);
    for (int64_t i = 0; i < n && status == STATUS_OK; i++)
        for (int64_t j = 0; j < n; j++)
            m[i * n + j] = (values[i] > 0 ? sqrt(values[i]) : 0) * vectors[i * n + j];
    memory_free(vectors);
    return status;
}

enum status linalg_solve(int64_t n, double *g, int64_t n_row, double *b, const char *what) {
    lapack_int info = LAPACKE_dposv(LAPACK_COL_MAJOR, 'L', (lapack_int)n, (lapack_int)n_row, g,
                                    (lapack_int)n, b, (lapack_int)n);
    return info ? failed(what, "dposv", info) : STATUS_OK;
}

enum status linalg_polar(int64_t n, double *a, double *r, const char *what) {
    enum status status;
    double *memory = NULL;
    TRY(memory_alloc(n * n * 2 + 2 * n, (int64_t)sizeof *memory, "rotation", &memory));
    double *u = memory, *vt = u + n * n, *s = vt + n * n, *rest = s + n;
    lapack_int size = (lapack_int)n;
    lapack_int info =
        LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'A', 'A', size, size, a, size, s, u, size, vt, size, rest);
    status = info ? failed(what, "dgesvd", info) : STATUS_OK;
    if (!info)
        linalg_gemm(false, false, n, n, n, u, n, vt, n, 0, r, n);
    memory_free(memory);
    return status;
}
