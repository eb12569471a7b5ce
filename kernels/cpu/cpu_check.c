/* Arguments that no CPU backend can take: ids outside a table, shapes that do not fit together; and
 * what both make of the same scalar arguments. */
#include "kernels/cpu/cpu_internal.h"

#include <math.h>

enum status cpu_check_embed(const char *op, const struct embed_args *a) {
    for (int64_t r = 0; r < a->out.shape[0]; r++)
        if (a->ids[r] < 0 || a->ids[r] >= a->table.shape[0])
            return status_fail(STATUS_FAILED,
                               "%s: id %d at row %lld is outside the vocabulary of %lld; the text "
                               "was made with another tokenizer",
                               op, a->ids[r], (long long)r, (long long)a->table.shape[0]);
    return STATUS_OK;
}

enum status cpu_check_matmul(const struct matmul_args *a) {
    const struct tensor *t[3] = {&a->a, &a->b, &a->c};
    char text[3][64];
    int64_t m = a->a.shape[a->trans_a], k = a->a.shape[!a->trans_a];
    if (a->a.rank != 2 || a->b.rank != 2 || a->c.rank != 2 || k != a->b.shape[a->trans_b] ||
        m != a->c.shape[0] || a->b.shape[!a->trans_b] != a->c.shape[1] ||
        (a->bias.data && tensor_count(&a->bias) != a->c.shape[1])) {
        for (int i = 0; i < 3; i++)
            tensor_shape_text(t[i]->rank, t[i]->shape, text[i], sizeof text[i]);
        return status_fail(STATUS_FAILED, "matmul: shapes a %s%s, b %s%s and c %s do not fit",
                           text[0], a->trans_a ? "^T" : "", text[1], a->trans_b ? "^T" : "",
                           text[2]);
    }
    enum dtype in = a->a.dtype, grad = in == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    if (!dtype_is_float(in) || a->b.dtype != in || (a->c.dtype != in && a->c.dtype != grad) ||
        (a->bias.data && a->bias.dtype != in))
        return status_fail(STATUS_FAILED, "matmul: dtypes a %s, b %s, c %s, bias %s do not fit",
                           dtype_name(in), dtype_name(a->b.dtype), dtype_name(a->c.dtype),
                           a->bias.data ? dtype_name(a->bias.dtype) : "none");
    return STATUS_OK;
}

enum status cpu_check_head_loss(const struct head_loss_args *a) {
    int64_t n_row = a->hidden.shape[0], n_vocab = a->head.shape[0];
    for (int64_t r = 0; r < n_row; r++)
        if (a->targets[r] < -1 || a->targets[r] >= n_vocab)
            return status_fail(STATUS_FAILED,
                               "head_loss: target %d at row %lld is outside the vocabulary of %lld",
                               a->targets[r], (long long)r, (long long)n_vocab);
    if (a->teacher_hidden.data && a->teacher_head.shape[0] != n_vocab)
        return status_fail(STATUS_FAILED,
                           "head_loss: the teacher's vocabulary has %lld entries, the student's "
                           "%lld; distillation needs the same tokenizer",
                           (long long)a->teacher_head.shape[0], (long long)n_vocab);
    if (!(a->temperature > 0) || !isfinite(a->temperature))
        return status_fail(STATUS_FAILED, "head_loss: temperature %g is not positive",
                           a->temperature);
    return STATUS_OK;
}

bool cpu_adamw_scale(const struct adamw_args *a, double *grad_scale) {
    const double *squares = a->grad_square.data;
    *grad_scale = a->grad_scale;
    if (!squares)
        return true;
    int64_t n = tensor_count(&a->grad_square);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(squares[i]))
            return false;
    double clipping = a->clip > 0 ? a->clip / (sqrt(squares[n - 1]) + 1e-6) : 1;
    if (clipping < 1)
        *grad_scale *= clipping;
    return true;
}

double cpu_difference_scale(const struct difference_args *a) {
    double size = a->size.data ? *(const double *)a->size.data : 1;
    return a->scale / (size == 0 ? (double)tensor_count(&a->out) : size);
}

uint16_t cpu_bf16_stochastic(float v, uint64_t seed, int64_t i) {
    union {
        float f;
        uint32_t u;
    } x = {v};
    uint64_t at = (uint64_t)i;
    uint32_t r = adamw_mix((uint32_t)at ^ (uint32_t)seed);
    r = adamw_mix(r ^ ((uint32_t)(at >> 32) + (uint32_t)(seed >> 32))) >> 16;
    return isnan(v) ? f32_to_bf16(v) : (uint16_t)((x.u + r) >> 16);
}
