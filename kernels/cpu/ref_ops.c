/* Reference for everything but attention and the loss. */
#include "kernels/cpu/ref.h"

#include <math.h>

static enum status ref_embed(struct backend *be, const struct embed_args *a) {
    (void)be;
    int64_t width = a->out.shape[1];
    TRY(cpu_check_embed("embed", a));
    for (int64_t r = 0; r < a->out.shape[0]; r++)
        for (int64_t c = 0; c < width; c++)
            ref_set(&a->out, r * width + c, ref_at(&a->table, a->ids[r] * width + c));
    return STATUS_OK;
}

static enum status ref_embed_bwd(struct backend *be, const struct embed_args *a) {
    (void)be;
    int64_t width = a->out.shape[1];
    TRY(cpu_check_embed("embed_bwd", a));
    for (int64_t r = 0; r < a->out.shape[0]; r++)
        for (int64_t c = 0; c < width; c++)
            ref_accumulate(&a->table, a->ids[r] * width + c, ref_at(&a->out, r * width + c));
    return STATUS_OK;
}

static real ref_or(const struct tensor *t, int64_t i, real absent) {
    return t->data ? ref_at(t, i) : absent;
}

/* What a row's elements are taken relative to: its mean for LayerNorm, 0 for RMSNorm. */
static real row_center(const struct tensor *x, int64_t r, int64_t width, bool center) {
    real sum = 0;
    for (int64_t i = r * width; center && i < (r + 1) * width; i++)
        sum += ref_at(x, i);
    return sum / (real)width;
}

/* The norm is taken of the sum as stored: that is what the backward pass will see. */
static enum status ref_norm(struct backend *be, const struct norm_args *a) {
    (void)be;
    int64_t n_row = a->out.shape[0], width = a->out.shape[1];
    const struct tensor *x = a->residual.data ? &a->sum : &a->x;
    for (int64_t r = 0; r < n_row; r++) {
        real squares = 0;
        for (int64_t i = r * width; a->residual.data && i < (r + 1) * width; i++)
            ref_set(&a->sum, i, ref_at(&a->x, i) + ref_at(&a->residual, i));
        real mean = row_center(x, r, width, a->center);
        for (int64_t i = r * width; i < (r + 1) * width; i++)
            squares += (ref_at(x, i) - mean) * (ref_at(x, i) - mean);
        real rstd = 1 / (real)sqrt((double)(squares / (real)width + (real)a->eps));
        for (int64_t c = 0; c < width; c++) {
            real y = (ref_at(x, r * width + c) - mean) * rstd * ref_or(&a->weight, c, 1);
            ref_set(&a->out, r * width + c, a->bias.data ? y + ref_at(&a->bias, c) : y);
        }
        if (a->rstd.data)
            ref_set(&a->rstd, r, rstd);
    }
    return STATUS_OK;
}

/* With xh = (x - mean) rstd and g = w dy: d_x = rstd (g - mean(g) - xh mean(g xh)), where RMSNorm
 * has no mean(g); d_w = sum_rows dy xh, d_b = sum_rows dy. */
static enum status ref_norm_bwd(struct backend *be, const struct norm_bwd_args *a) {
    (void)be;
    int64_t n_row = a->x.shape[0], width = a->x.shape[1];
    for (int64_t c = 0; c < width && (a->d_weight.data || a->d_bias.data); c++) {
        real d_w = 0, d_b = 0;
        for (int64_t r = 0; r < n_row; r++) {
            real dy = ref_at(&a->d_out, r * width + c);
            d_w += dy * (ref_at(&a->x, r * width + c) - row_center(&a->x, r, width, a->center)) *
                   ref_at(&a->rstd, r);
            d_b += dy;
        }
        if (a->d_weight.data)
            ref_accumulate(&a->d_weight, c, d_w);
        if (a->d_bias.data)
            ref_accumulate(&a->d_bias, c, d_b);
    }
    for (int64_t r = 0; r < n_row; r++) {
        real rstd = ref_at(&a->rstd, r), mean = row_center(&a->x, r, width, a->center);
        real mean_g = 0, mean_gx = 0;
        for (int64_t c = 0; c < width; c++) {
            real g = ref_or(&a->weight, c, 1) * ref_at(&a->d_out, r * width + c);
            mean_g += a->center ? g : 0;
            mean_gx += g * (ref_at(&a->x, r * width + c) - mean) * rstd;
        }
        mean_g /= (real)width;
        mean_gx /= (real)width;
        for (int64_t c = 0; c < width; c++) {
            int64_t i = r * width + c;
            real g = rstd * (ref_or(&a->weight, c, 1) * ref_at(&a->d_out, i) - mean_g -
                             (ref_at(&a->x, i) - mean) * rstd * mean_gx);
            ref_set(&a->d_x, i, g + (a->d_residual.data ? ref_at(&a->d_residual, i) : 0));
        }
    }
    return STATUS_OK;
}

static enum status ref_matmul(struct backend *be, const struct matmul_args *a) {
    (void)be;
    TRY(cpu_check_matmul(a));
    int64_t m = a->c.shape[0], n = a->c.shape[1], k = a->a.shape[!a->trans_a];
    int64_t a_row = a->trans_a ? 1 : k, a_col = a->trans_a ? m : 1;
    int64_t b_row = a->trans_b ? 1 : n, b_col = a->trans_b ? k : 1;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            real sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += ref_at(&a->a, i * a_row + l * a_col) * ref_at(&a->b, l * b_row + j * b_col);
            if (a->beta != 0)
                sum += (real)a->beta * ref_at(&a->c, i * n + j);
            if (a->bias.data)
                sum += ref_at(&a->bias, j);
            ref_set(&a->c, i * n + j, sum);
        }
    return STATUS_OK;
}

static enum status ref_bias_bwd(struct backend *be, const struct bias_bwd_args *a) {
    (void)be;
    for (int64_t c = 0; c < a->n_col; c++) {
        real sum = 0;
        for (int64_t r = 0; r < a->n_row; r++)
            sum += ref_get(a->d_out, a->dtype, r * a->row_stride + c);
        ref_accumulate(&a->d_bias, c, sum);
    }
    return STATUS_OK;
}

/* Angles are taken in double whatever `real` is: an angle is position times frequency, and late
 * positions lose their fraction in single precision. */
static enum status ref_rope(struct backend *be, const struct rope_args *a) {
    (void)be;
    int64_t half = a->rotary / 2;
    for (int64_t r = 0; r < a->n_row; r++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)(a->first_position + r % a->n_seq) * (double)a->inv_freq[i];
            real cosine = (real)cos(angle), sine = (real)(a->inverse ? -sin(angle) : sin(angle));
            for (int64_t h = 0; h < a->n_head; h++) {
                int64_t head = r * a->row_stride + h * a->head_dim;
                int64_t x = head + (a->interleaved ? 2 * i : i),
                        y = x + (a->interleaved ? 1 : half);
                real vx = ref_get(a->x, a->dtype, x), vy = ref_get(a->x, a->dtype, y);
                ref_put(a->x, a->dtype, x, vx * cosine - vy * sine);
                ref_put(a->x, a->dtype, y, vy * cosine + vx * sine);
            }
        }
    return STATUS_OK;
}

static enum status ref_copy_heads(struct backend *be, const struct copy_heads_args *a) {
    (void)be;
    for (int64_t b = 0; b < a->n_batch; b++)
        for (int64_t t = 0; t < a->n_row; t++)
            for (int64_t h = 0; h < a->n_head; h++) {
                int64_t from = b * a->from.batch + t * a->from.row + h * a->from.head;
                int64_t to = b * a->to.batch + t * a->to.row + h * a->to.head;
                for (int64_t c = 0; c < a->head_dim; c++)
                    ref_put(a->to.data, a->to_dtype, to + c,
                            ref_get(a->from.data, a->from_dtype, from + c));
            }
    return STATUS_OK;
}

/* f(x) = x * share, f'(x) = slope * rest. gelu_tanh is x sigmoid(2 u): (1 + tanh u) / 2 = sigmoid(2
 * u).
 */
struct curve {
    real share, slope, rest;
};
static struct curve activation_at(enum activation_kind kind, real x) {
    if (kind == ACTIVATION_GELU) {
        real below = (real)(0.5 * erfc(-(double)x * sqrt(0.5)));
        real density = (real)(exp(-0.5 * (double)x * (double)x) / sqrt(2 * acos(-1.0)));
        return (struct curve){below, below + x * density, 1};
    }
    real y = x, dy = 1; /* f = x sigmoid(y(x)) */
    if (kind != ACTIVATION_SWIGLU) {
        real k = (real)sqrt(8 / acos(-1.0));
        y = k * (x + (real)0.044715 * x * x * x);
        dy = k * (1 + 3 * (real)0.044715 * x * x);
    }
    real s = (real)(1 / (1 + exp(-(double)y)));
    return (struct curve){s, s, 1 + x * dy * (1 - s)};
}

static enum status ref_activation(struct backend *be, const struct activation_args *a) {
    (void)be;
    int64_t n_row = a->out.shape[0], n_ff = a->out.shape[1];
    bool gated = activation_is_gated(a->kind);
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t j = 0; j < n_ff; j++) {
            int64_t i = r * a->in.shape[1] + j;
            real x = ref_at(&a->in, i), f = x * activation_at(a->kind, x).share;
            ref_set(&a->out, r * n_ff + j, gated ? f * ref_at(&a->in, i + n_ff) : f);
        }
    return STATUS_OK;
}

static enum status ref_activation_bwd(struct backend *be, const struct activation_bwd_args *a) {
    (void)be;
    int64_t n_row = a->d_out.shape[0], n_ff = a->d_out.shape[1];
    bool gated = activation_is_gated(a->kind);
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t j = 0; j < n_ff; j++) {
            int64_t i = r * a->in.shape[1] + j;
            real x = ref_at(&a->in, i), up = gated ? ref_at(&a->in, i + n_ff) : 1;
            real dy = ref_at(&a->d_out, r * n_ff + j);
            struct curve f = activation_at(a->kind, x);
            ref_set(&a->d_in, i, dy * up * f.slope * f.rest);
            if (gated)
                ref_set(&a->d_in, i + n_ff, dy * x * f.share);
        }
    return STATUS_OK;
}

static enum status ref_add(struct backend *be, const struct add_args *a) {
    (void)be;
    for (int64_t i = 0, n = tensor_count(&a->out); i < n; i++)
        ref_set(&a->out, i, ref_at(&a->a, i) + ref_at(&a->b, i));
    return STATUS_OK;
}

static enum status ref_difference(struct backend *be, const struct difference_args *a) {
    (void)be;
    real scale = (real)cpu_difference_scale(a);
    for (int64_t i = 0, n = tensor_count(&a->out); i < n; i++)
        ref_set(&a->out, i, scale * (ref_at(&a->a, i) - ref_at(&a->b, i)));
    return STATUS_OK;
}

static enum status ref_adamw(struct backend *be, const struct adamw_args *a) {
    (void)be;
    double grad_scale;
    if (!cpu_adamw_scale(a, &grad_scale))
        return STATUS_OK;
    real b1 = (real)a->beta1, b2 = (real)a->beta2, lr = (real)a->lr;
    real c1 = (real)(1 - pow(a->beta1, (double)a->step));
    real c2 = (real)(1 - pow(a->beta2, (double)a->step));
    bool stochastic = a->rounding_seed && a->param.dtype == DTYPE_BF16;
    for (int64_t i = 0, n = tensor_count(&a->param); i < n; i++) {
        real g = ref_at(&a->grad, i) * (real)grad_scale, p = ref_at(&a->master, i);
        real m = b1 * ref_at(&a->m, i) + (1 - b1) * g;
        real v = b2 * ref_at(&a->v, i) + (1 - b2) * g * g;
        p -= lr *
             (m / c1 / ((real)sqrt((double)(v / c2)) + (real)a->eps) + (real)a->weight_decay * p);
        ref_set(&a->m, i, m);
        ref_set(&a->v, i, v);
        ref_set(&a->master, i, p);
        if (stochastic)
            ((uint16_t *)a->param.data)[i] = cpu_bf16_stochastic((float)p, a->rounding_seed, i);
        else
            ref_set(&a->param, i, p);
    }
    return STATUS_OK;
}

static enum status ref_sum_squares(struct backend *be, const struct sum_squares_args *a) {
    (void)be;
    double sum = 0;
    for (int64_t i = 0, n = tensor_count(&a->x); i < n; i++) {
        double v = (double)ref_at(&a->x, i);
        sum += v * v;
    }
    *(double *)a->out.data = sum;
    return STATUS_OK;
}

static enum status ref_cast(struct backend *be, const struct cast_args *a) {
    (void)be;
    if (!dtype_convert(a->x.data, a->x.dtype, a->out.data, a->out.dtype, tensor_count(&a->out)))
        return status_fail(STATUS_FAILED, "cast: %s to %s is not a conversion between floats",
                           dtype_name(a->x.dtype), dtype_name(a->out.dtype));
    return STATUS_OK;
}

void ref_fill_ops(struct backend *be) {
    be->embed = ref_embed;
    be->embed_bwd = ref_embed_bwd;
    be->norm = ref_norm;
    be->norm_bwd = ref_norm_bwd;
    be->matmul = ref_matmul;
    be->bias_bwd = ref_bias_bwd;
    be->rope = ref_rope;
    be->copy_heads = ref_copy_heads;
    be->activation = ref_activation;
    be->activation_bwd = ref_activation_bwd;
    be->add = ref_add;
    be->difference = ref_difference;
    be->adamw = ref_adamw;
    be->sum_squares = ref_sum_squares;
    be->cast = ref_cast;
}
