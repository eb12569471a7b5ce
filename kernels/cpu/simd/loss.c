/* The output head and its loss, a tile of rows at a time: logits of student and teacher by matmul,
 * one pass over each row for log-sum-exp, one for divergence and gradient, and the gradient back
 * by two matmuls. Tokens x vocabulary never exists: a tile has TILE_ROWS rows, which keep matmul
 * busy, or the fewer that fit in TILE_BYTES. */
#include "core/memory.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/simd/simd.h"

enum { TILE_ROWS = 512, TILE_BYTES = 64 << 20, SUM_BLOCK = 16 * VF_LEN };

struct row_sum {
    float top;         /* largest logit */
    int64_t best;      /* its first index; -1 when there is none (NaN) */
    double lse, lse_t; /* log sum exp of z, and of z / T */
};

/* n lanes of z at j; lanes beyond n are -inf, which adds nothing to a sum of exponentials. */
INLINE vf logits_at(const float *z, int64_t j, int64_t n) {
    if (n >= VF_LEN)
        return vf_load(z + j);
    float lanes[VF_LEN];
    for (int64_t i = 0; i < VF_LEN; i++)
        lanes[i] = i < n ? z[j + i] : -INFINITY;
    return vf_load(lanes);
}

static struct row_sum sum_row(const float *z, int64_t n, float inv_t, bool want_lse) {
    struct row_sum r = {.best = -1};
    vf top = vf_set(-INFINITY);
    for (int64_t j = 0; j < n; j += VF_LEN)
        top = vf_max(top, logits_at(z, j, n - j));
    r.top = vf_hmax(top);
    for (int64_t j = 0; j < n && r.best < 0; j += VF_LEN) {
        uint32_t hit = vf_equal(logits_at(z, j, n - j), vf_set(r.top));
        if (hit)
            r.best = j + __builtin_ctz(hit);
    }
    double sum = 0, sum_t = 0; /* lanes are emptied into doubles every SUM_BLOCK elements */
    for (int64_t block = 0; block < n; block += SUM_BLOCK) {
        vf s = vf_set(0), t = vf_set(0);
        for (int64_t j = block; j < size_min(n, block + SUM_BLOCK); j += VF_LEN) {
            vf x = logits_at(z, j, n - j) - r.top;
            if (want_lse)
                s += vf_exp(x);
            if (inv_t != 1)
                t += vf_exp(x * inv_t);
        }
        sum += (double)vf_hsum(s);
        sum_t += (double)vf_hsum(t);
    }
    r.lse = (double)r.top + log(sum);
    r.lse_t = inv_t == 1 ? r.lse : (double)r.top * (double)inv_t + log(sum_t);
    return r;
}

struct tile {
    int64_t n_vocab;
    float *z, *y; /* [rows, n_vocab] logits of the student and of the teacher (NULL: none) */
    void *g;      /* [rows, n_vocab] gradient in the compute dtype; F32: written over z; or NULL */
    bool bf16;
};

/* Row `local` of the tile is row r of the batch; NULL outputs are not wanted. */
static void loss_row(const struct head_loss_args *a, const struct tile *t, int64_t local,
                     int64_t r) {
    int64_t n_vocab = t->n_vocab, target = a->targets[r], at = local * n_vocab;
    float *nll = a->nll.data, *kl = a->kl.data, *agree = a->agree.data;
    const float *z = t->z + at, *y = t->y ? t->y + at : NULL;
    struct row_sum student = {0}, teacher = {0};
    float inv_t = (float)(1 / a->temperature);
    double divergence = 0;
    if (target >= 0) {
        student = sum_row(z, n_vocab, y ? inv_t : 1, true);
        if (y)
            teacher = sum_row(y, n_vocab, inv_t, inv_t == 1);
    }
    if (nll)
        nll[r] = target < 0 ? 0 : (float)(student.lse - (double)z[target]);
    if (agree)
        agree[r] = target >= 0 && y && student.best >= 0 && student.best == teacher.best;

    float ce = (float)(a->ce_weight * a->grad_scale);
    float kd = (float)(a->kl_weight * a->grad_scale * a->temperature);
    /* Differences are taken before exp and against each row's own top: no large numbers meet. */
    float lse = (float)(student.lse - (double)student.top);
    float lse_z = (float)(student.lse_t - (double)student.top * (double)inv_t);
    float lse_y = (float)(teacher.lse_t - (double)teacher.top * (double)inv_t);
    float lse_gap = (float)(teacher.lse_t - student.lse_t);
    float z_target = target >= 0 ? z[target] : 0;
    for (int64_t block = 0; block < n_vocab; block += SUM_BLOCK) {
        vf sum = vf_set(0);
        for (int64_t j = block; j < size_min(n_vocab, block + SUM_BLOCK); j += VF_LEN) {
            int64_t n = n_vocab - j;
            vf g = vf_set(0);
            if (target >= 0) {
                vf zj = logits_at(z, j, n), soft = vf_exp(zj - student.top - lse);
                g = ce * soft;
                if (y) {
                    vf yj = logits_at(y, j, n);
                    vf p = vf_exp((yj - teacher.top) * inv_t - lse_y);
                    vf q = inv_t == 1 ? soft : vf_exp((zj - student.top) * inv_t - lse_z);
                    vf term = p * ((yj - zj) * inv_t - lse_gap);
                    vu counts = (vu)(p != 0.0f); /* 0 log 0 = 0; NaN counts */
                    sum += (vf)((vu)term & counts);
                    g += kd * (q - p);
                }
            }
            if (!t->g)
                continue;
            if (n >= VF_LEN)
                vf_put(t->g, at + j, g, t->bf16);
            else
                vf_put_n(t->g, at + j, g, n, t->bf16);
        }
        divergence += (double)vf_hsum(sum);
    }
    if (kl)
        kl[r] = target < 0 || !y ? 0 : (float)(a->temperature * a->temperature * divergence);
    if (target >= 0 && t->g) {
        double soft = exp((double)z_target - student.lse), g = (double)ce * (soft - 1);
        if (y)
            g += (double)kd * (exp((double)z_target * (double)inv_t - student.lse_t) -
                               exp((double)y[target] * (double)inv_t - teacher.lse_t));
        if (t->bf16)
            ((uint16_t *)t->g)[at + target] = f32_to_bf16((float)g);
        else
            ((float *)t->g)[at + target] = (float)g;
    }
}

static enum status loss_tile(struct backend *be, const struct head_loss_args *a, struct tile *t,
                             int64_t first, int64_t n) {
    enum dtype dtype = a->hidden.dtype;
    struct tensor hidden = tensor_rows(a->hidden, first, n);
    TRY(be->matmul(be, &(struct matmul_args){.a = hidden,
                                             .b = a->head,
                                             .trans_b = true,
                                             .c = tensor_2d(DTYPE_F32, t->z, n, t->n_vocab)}));
    if (t->y)
        TRY(be->matmul(be, &(struct matmul_args){.a = tensor_rows(a->teacher_hidden, first, n),
                                                 .b = a->teacher_head,
                                                 .trans_b = true,
                                                 .c = tensor_2d(DTYPE_F32, t->y, n, t->n_vocab)}));
#pragma omp parallel for schedule(static) if (n * t->n_vocab >= PARALLEL_MIN / 4)
    for (int64_t r = 0; r < n; r++)
        loss_row(a, t, r, first + r);
    if (!t->g)
        return STATUS_OK;
    struct tensor g = tensor_2d(dtype, t->g, n, t->n_vocab);
    TRY(be->matmul(
        be, &(struct matmul_args){.a = g, .b = a->head, .c = tensor_rows(a->d_hidden, first, n)}));
    if (a->d_head.data)
        TRY(be->matmul(be, &(struct matmul_args){
                               .a = g, .trans_a = true, .b = hidden, .c = a->d_head, .beta = 1}));
    return STATUS_OK;
}

enum status ISA(head_loss)(struct backend *be, const struct head_loss_args *a) {
    int64_t n_row = a->hidden.shape[0], n_vocab = a->head.shape[0];
    struct tile t = {.n_vocab = n_vocab, .bf16 = a->hidden.dtype == DTYPE_BF16};
    bool teacher = a->teacher_hidden.data && a->teacher_head.data;
    bool apart = a->d_hidden.data && t.bf16; /* the gradient has a buffer of its own */
    TRY(cpu_check_head_loss(a));
    int64_t row_bytes = n_vocab * (4 + (teacher ? 4 : 0) + (apart ? 2 : 0));
    int64_t rows = size_max(1, size_min(TILE_ROWS, TILE_BYTES / row_bytes));
    if (rows > 16)
        rows = rows / 16 * 16;
    rows = size_min(rows, n_row);
    char *scratch;
    TRY(cpu_scratch(be, SCRATCH_OP, rows * row_bytes, &scratch));
    t.z = (float *)(void *)scratch;
    t.y = teacher ? t.z + rows * n_vocab : NULL;
    if (a->d_hidden.data)
        t.g = apart ? (void *)(t.z + rows * n_vocab * (teacher ? 2 : 1)) : (void *)t.z;
    for (int64_t first = 0; first < n_row; first += rows)
        TRY(loss_tile(be, a, &t, first, size_min(rows, n_row - first)));
    return STATUS_OK;
}
