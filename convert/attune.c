/* Quasi-Newton over one layer's projections. In the coordinates z, w = start + z C^-1/2 with C the
 * second moment of what the projection reads, the problem is nearly round, and a dozen evaluations
 * (each one forward and backward of the attention alone) do most of what can be done. */
#include "convert/attune.h"
#include "convert/descend.h"
#include "convert/linalg.h"

#include <math.h>
#include <string.h>

static const double RIDGE = 1e-3; /* of the mean diagonal, as in refit.c */

struct block { /* rows of w that read the same input */
    double *w, *start, *root;
    int64_t rows, cols, first; /* first: place in z */
};

struct state {
    const struct attune *a;
    struct block blocks[4]; /* O last */
    int n_block;
    double *o;      /* [width, n_y]: o_proj with its bias as last column */
    double *w_grad; /* largest block */
    void *grads;    /* device */
    float *host;    /* one role's weights or gradients */
    bool *wanted;
    float *out, *error;
    struct arena arena;
};

/* m^-1/2 of [n, n] m with a ridge. */
static enum status inverse_root(struct arena *arena, int64_t n, const double *m, double **out,
                                const char *what) {
    double *copy, *values, *vectors, mean = 0;
    TRY(arena_alloc(arena, n * n, 8, out));
    TRY(memory_alloc(2 * n * n + n, 8, "coordinates", &copy));
    vectors = copy + n * n;
    values = vectors + n * n;
    memcpy(copy, m, (size_t)(n * n) * 8);
    linalg_mirror(n, copy);
    for (int64_t i = 0; i < n; i++)
        mean += copy[i * n + i] / (double)n;
    enum status status = linalg_eigen(n, copy, n, values, vectors, what);
    if (status == STATUS_OK) {
        for (int64_t i = 0; i < n; i++) {
            double scale = mean > 0 ? 1 / sqrt(fmax(values[i], 0) + RIDGE * mean) : 1;
            for (int64_t j = 0; j < n; j++)
                copy[i * n + j] = vectors[i * n + j] * scale;
        }
        linalg_gemm(true, false, n, n, n, vectors, n, copy, n, 0, *out, n);
    }
    memory_free(copy);
    return status;
}

/* A role's part of the block's matrix: columns [col, col + n_col) of each row. */
static enum status role_transfer(struct state *s, enum role role, const struct block *b,
                                 double *matrix, int64_t col, int64_t n_col, bool gradient) {
    const struct model *m = s->a->layer->model;
    int64_t index = m->layer_index[0][role];
    if (index < 0)
        return STATUS_OK;
    if (!gradient) {
        for (int64_t i = 0; i < b->rows; i++)
            for (int64_t j = 0; j < n_col; j++)
                s->host[i * n_col + j] = (float)matrix[i * b->cols + col + j];
        return one_layer_set(s->a->layer, role, s->host, b->rows * n_col);
    }
    struct tensor view = model_view(m, s->grads, DTYPE_F32, index);
    TRY(m->be->download(m->be, STREAM_COMPUTE, s->host, view.data, tensor_bytes(&view)));
    TRY(m->be->sync(m->be, STREAM_COMPUTE));
    for (int64_t i = 0; i < b->rows; i++)
        for (int64_t j = 0; j < n_col; j++)
            matrix[i * b->cols + col + j] = (double)s->host[i * n_col + j];
    return STATUS_OK;
}

static enum status block_transfer(struct state *s, int i, double *matrix, bool gradient) {
    static const enum role roles[][2] = {
        {ROLE_Q, ROLE_Q_BIAS}, {ROLE_K, ROLE_K_BIAS}, {ROLE_V, ROLE_V_BIAS}, {ROLE_O, ROLE_O_BIAS}};
    const struct block *b = &s->blocks[i];
    const enum role *r = roles[i == s->n_block - 1 ? 3 : i];
    int64_t plain = i == s->n_block - 1 ? s->a->w->n_head * s->a->w->head_dim : s->a->w->width;
    TRY(role_transfer(s, r[0], b, matrix, 0, plain, gradient));
    return b->cols > plain ? role_transfer(s, r[1], b, matrix, plain, 1, gradient) : STATUS_OK;
}

static void place(const struct state *s, const double *z) {
    for (int i = 0; i < s->n_block; i++) {
        const struct block *b = &s->blocks[i];
        memcpy(b->w, b->start, (size_t)(b->rows * b->cols) * 8);
        linalg_gemm(false, false, b->rows, b->cols, b->cols, z + b->first, b->cols, b->root,
                    b->cols, 1, b->w, b->cols);
    }
}

static enum status evaluate(void *user, const double *z, double *f, double *gradient) {
    struct state *s = user;
    const struct attune *a = s->a;
    struct model *m = a->layer->model;
    int64_t w = a->w->width, step = a->layer->n_batch;
    double sum = 0, all = 0;
    place(s, z);
    for (int i = 0; i < s->n_block; i++)
        TRY(block_transfer(s, i, s->blocks[i].w, false));
    TRY(m->be->zero(m->be, s->grads, m->n_param * 4));
    for (int64_t at = 0; at < a->n_window; at += step * a->stride) {
        int64_t n = size_min(step, a->n_window - at), rows = n * a->n_seq;
        const float *x = a->x + at * a->n_seq * w, *mid = a->mid + at * a->n_seq * w;
        TRY(model_layer_attend(m, a->layer->acts, 0, n, a->n_seq, x, s->out));
        for (int64_t i = 0; i < rows * w; i++) {
            double t = (double)mid[i] - (double)x[i], e = (double)s->out[i] - t;
            sum += e * e;
            all += t * t;
            s->error[i] = (float)e;
        }
        TRY(model_layer_attend_bwd(m, a->layer->acts, 0, s->error, s->grads, s->wanted));
    }
    double scale = all > 0 ? 1 / all : 1;
    *f = sum * scale;
    for (int i = 0; i < s->n_block; i++) {
        const struct block *b = &s->blocks[i];
        TRY(block_transfer(s, i, s->w_grad, true));
        for (int64_t j = 0; j < b->rows * b->cols; j++)
            s->w_grad[j] *= 2 * scale;
        linalg_gemm(false, true, b->rows, b->cols, b->cols, s->w_grad, b->cols, b->root, b->cols, 0,
                    gradient + b->first, b->cols);
    }
    return STATUS_OK;
}

static enum status add_block(struct state *s, double *w, int64_t rows, int64_t cols, double *root,
                             int64_t *end) {
    struct block *b = &s->blocks[s->n_block++];
    *b = (struct block){.w = w, .root = root, .rows = rows, .cols = cols, .first = *end};
    *end += rows * cols;
    TRY(arena_alloc(&s->arena, rows * cols, 8, &b->start));
    memcpy(b->start, w, (size_t)(rows * cols) * 8);
    return STATUS_OK;
}

enum status attune_run(const struct attune *a, double *before, double *after, const char *what) {
    struct state s = {.a = a};
    struct attn_weights *w = a->w;
    struct model *m = a->layer->model;
    int64_t d = w->head_dim, hd = w->n_head * d, n = 0, most = 0;
    int64_t rows = a->layer->n_batch * a->n_seq * w->width;
    double *z, *in_root, *o_root;
    enum status status;
    TRY_OUT(inverse_root(&s.arena, w->n_in, a->moment, &in_root, what));
    TRY_OUT(inverse_root(&s.arena, a->n_y, a->heads, &o_root, what));
    TRY_OUT(arena_alloc(&s.arena, w->width * a->n_y, 8, &s.o));
    attn_weights_get_o(w, a->n_y, s.o);
    TRY_OUT(add_block(&s, w->q, hd, w->n_in, in_root, &n));
    if (!a->queries_only) {
        TRY_OUT(add_block(&s, w->k, w->n_kv * d, w->n_in, in_root, &n));
        TRY_OUT(add_block(&s, w->v, w->n_kv * d, w->n_in, in_root, &n));
    }
    TRY_OUT(add_block(&s, s.o, w->width, a->n_y, o_root, &n));
    for (int i = 0; i < s.n_block; i++)
        most = size_max(most, s.blocks[i].rows * s.blocks[i].cols);
    TRY_OUT(arena_alloc(&s.arena, n, 8, &z));
    TRY_OUT(arena_alloc(&s.arena, most, 8, &s.w_grad));
    TRY_OUT(arena_alloc(&s.arena, most, 4, &s.host));
    TRY_OUT(arena_alloc(&s.arena, rows, 4, &s.out));
    TRY_OUT(arena_alloc(&s.arena, rows, 4, &s.error));
    TRY_OUT(arena_alloc(&s.arena, m->n_param_tensors, sizeof(bool), &s.wanted));
    for (int64_t i = 0; i < m->n_param_tensors; i++)
        s.wanted[i] = role_is_attention(m->params[i].role);
    TRY_OUT(m->be->alloc(m->be, m->n_param * 4, "gradients", &s.grads));
    TRY_OUT(descend(n, z, a->n_eval, evaluate, &s, before, after));
    place(&s, z);
    attn_weights_set_o(w, a->n_y, s.o);
out:
    if (s.grads)
        m->be->free(m->be, s.grads);
    arena_free(&s.arena);
    return status;
}
