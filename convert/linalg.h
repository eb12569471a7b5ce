/* Inside convert/: the little fp64 linear algebra that fitting needs, on LAPACK and BLAS. Matrices
 * are row-major; the leading dimension is the row length unless a function says otherwise. */
#ifndef REGROUP_CONVERT_LINALG_H
#define REGROUP_CONVERT_LINALG_H

#include "core/memory.h"

/* c [m, n] = op(a) op(b) + beta c; lda, ldb, ldc: elements from one stored row to the next. */
void linalg_gemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const double *a,
                 int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);
/* c [n, n] += x^T x for x [rows, n]; only the upper triangle until linalg_mirror. */
void linalg_gram(int64_t rows, int64_t n, const double *x, double *c);
void linalg_mirror(int64_t n, double *c);
/* The k largest eigenvalues of symmetric a [n, n] (destroyed), largest first, and their unit
 * vectors as rows of vectors [k, n]. `what` is for the message. */
enum status linalg_eigen(int64_t n, double *a, int64_t k, double *values, double *vectors,
                         const char *what) MUST_USE;
/* Symmetric m [n, n] becomes s with s^T s = m; what is negative in it counts as zero. */
enum status linalg_root(int64_t n, double *m, const char *what) MUST_USE;
/* Rows x_j of b [n_row, n] become the solutions of g x_j = b_j; g positive definite, destroyed. */
enum status linalg_solve(int64_t n, double *g, int64_t n_row, double *b, const char *what) MUST_USE;
/* The orthogonal matrix nearest to a [n, n] (destroyed), into r: U V^T of a = U S V^T. */
enum status linalg_polar(int64_t n, double *a, double *r, const char *what) MUST_USE;

#endif
