/* Reference head and loss, one row at a time. The gradient of the logits is rounded to the compute
 * dtype before it meets the head and the hidden state: it is a matmul operand like any other. */
#include "kernels/cpu/ref.h"

#include <math.h>

/* z = hidden[r,:] head^T; returns the index of the largest (the first of equals). */
static int64_t logits(const struct tensor *hidden, const struct tensor *head, int64_t r, real *z) {
    int64_t width = head->shape[1], best = 0;
    for (int64_t j = 0; j < head->shape[0]; j++) {
        z[j] = 0;
        for (int64_t c = 0; c < width; c++)
            z[j] += ref_at(hidden, r * width + c) * ref_at(head, j * width + c);
        if (z[j] > z[best])
            best = j;
    }
    return best;
}

static real log_sum_exp(const real *z, int64_t n, real top, real temperature) {
    real sum = 0;
    for (int64_t j = 0; j < n; j++)
        sum += (real)exp((double)((z[j] - top) / temperature));
    return top / temperature + (real)log((double)sum);
}

static void store(const struct tensor *out, int64_t r, real v) {
    if (out->data)
        ref_set(out, r, v);
}

static void backward_row(const struct head_loss_args *a, int64_t r, const real *g) {
    int64_t width = a->head.shape[1], n_vocab = a->head.shape[0];
    for (int64_t c = 0; c < width; c++) {
        real sum = 0;
        for (int64_t j = 0; j < n_vocab; j++)
            sum += g[j] * ref_at(&a->head, j * width + c);
        ref_set(&a->d_hidden, r * width + c, sum);
    }
    if (a->d_head.data)
        for (int64_t j = 0; j < n_vocab; j++)
            for (int64_t c = 0; c < width; c++)
                ref_accumulate(&a->d_head, j * width + c, g[j] * ref_at(&a->hidden, r * width + c));
}

static enum status ref_head_loss(struct backend *be, const struct head_loss_args *a) {
    int64_t n_vocab = a->head.shape[0], n_row = a->hidden.shape[0];
    bool teacher = a->teacher_hidden.data && a->teacher_head.data;
    real T = (real)a->temperature, *z, *y; /* y: the teacher's logits, then the gradient */
    TRY(cpu_check_head_loss(a));
    TRY(cpu_scratch(be, SCRATCH_OP, 2 * n_vocab * (int64_t)sizeof *z, &z));
    y = z + n_vocab;
    for (int64_t r = 0; r < n_row; r++) {
        int64_t target = a->targets[r];
        real nll = 0, kl = 0, agree = 0;
        if (target >= 0) {
            int64_t best = logits(&a->hidden, &a->head, r, z);
            real lse = log_sum_exp(z, n_vocab, z[best], 1);
            nll = lse - z[target];
            real lse_z = log_sum_exp(z, n_vocab, z[best], T), lse_y = 0;
            if (teacher) {
                int64_t top = logits(&a->teacher_hidden, &a->teacher_head, r, y);
                lse_y = log_sum_exp(y, n_vocab, y[top], T);
                agree = top == best;
            }
            for (int64_t j = 0; j < n_vocab; j++) {
                real g = (real)a->ce_weight * ((real)exp((double)(z[j] - lse)) - (j == target));
                if (teacher) {
                    real log_p = y[j] / T - lse_y, log_q = z[j] / T - lse_z;
                    real p = (real)exp((double)log_p), q = (real)exp((double)log_q);
                    kl += p == 0 ? 0 : T * T * p * (log_p - log_q);
                    g += (real)a->kl_weight * T * (q - p);
                }
                y[j] = ref_round(a->hidden.dtype, g * (real)a->grad_scale);
            }
        } else {
            for (int64_t j = 0; j < n_vocab; j++)
                y[j] = 0;
        }
        store(&a->nll, r, nll);
        store(&a->kl, r, kl);
        store(&a->agree, r, agree);
        if (a->d_hidden.data)
            backward_row(a, r, y);
    }
    return STATUS_OK;
}

void ref_fill_loss(struct backend *be) {
    be->head_loss = ref_head_loss;
}
