/* Reference attention: one query at a time, scores in a row of scratch. */
#include "core/memory.h"
#include "kernels/cpu/ref.h"

#include <math.h>

/* P and dS as the operand of a product: tensor cores take it in the compute dtype. The tests build
 * this file so as the yardstick of kernels that run there. */
#ifdef REF_TENSOR_CORES
#define OPERAND(dtype, v) ref_round(dtype, v)
#else
#define OPERAND(dtype, v) (v)
#endif

static int64_t at(const struct heads *x, int64_t b, int64_t t, int64_t h) {
    return b * x->batch + t * x->row + h * x->head;
}

static real dot(const struct heads *x, enum dtype xt, int64_t xi, const struct heads *y,
                enum dtype yt, int64_t yi, int64_t n) {
    real sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += ref_get(x->data, xt, xi + c) * ref_get(y->data, yt, yi + c);
    return sum;
}

/* Keys [first, end) are those that query i sees. */
static void visible(const struct attention_args *a, int64_t i, int64_t *first, int64_t *end) {
    int64_t position = a->q_first + i;
    *first = a->window > 0 ? size_max(0, position - a->window + 1) : 0;
    *end = size_min(a->n_key, position + 1);
}

static enum status ref_attention(struct backend *be, const struct attention_args *a) {
    real *p;
    TRY(cpu_scratch(be, SCRATCH_OP, a->n_key * (int64_t)sizeof *p, &p));
    enum dtype lse_dtype = a->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    int64_t group = a->n_head / a->n_kv_head, row = 0;
    for (int64_t b = 0; b < a->n_batch; b++)
        for (int64_t h = 0; h < a->n_head; h++)
            for (int64_t i = 0; i < a->n_query; i++, row++) {
                int64_t first, end, qi = at(&a->q, b, i, h), oi = at(&a->o, b, i, h);
                visible(a, i, &first, &end);
                real top = (real)-INFINITY, sum = 0;
                for (int64_t j = first; j < end; j++) {
                    p[j] = (real)a->scale * dot(&a->q, a->dtype, qi, &a->k, a->kv_dtype,
                                                at(&a->k, b, j, h / group), a->head_dim);
                    top = p[j] > top ? p[j] : top;
                }
                for (int64_t j = first; j < end; j++) {
                    p[j] = (real)exp((double)(p[j] - top));
                    sum += p[j];
                }
                for (int64_t c = 0; c < a->head_dim; c++) {
                    real o = 0;
                    for (int64_t j = first; j < end; j++)
                        o += OPERAND(a->dtype, p[j]) *
                             ref_get(a->v.data, a->kv_dtype, at(&a->v, b, j, h / group) + c);
                    ref_put(a->o.data, a->dtype, oi + c, end > first ? o / sum : 0);
                }
                if (a->lse)
                    ref_put(a->lse, lse_dtype, row, top + (real)log((double)sum));
            }
    return STATUS_OK;
}

/* With p = exp(s - lse), dp = d_o v^T and D = sum(d_o * o): ds = p (dp - D). */
static enum status ref_attention_bwd(struct backend *be, const struct attention_bwd_args *args) {
    const struct attention_args *a = &args->fwd;
    enum dtype t = a->dtype, lse_dtype = t == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    int64_t d = a->head_dim, n_kv = a->n_key * d, group = a->n_head / a->n_kv_head;
    real *dk;
    TRY(cpu_scratch(be, SCRATCH_OP, (2 * n_kv + d) * (int64_t)sizeof *dk, &dk));
    real *dv = dk + n_kv, *dq = dv + n_kv;
    for (int64_t b = 0; b < a->n_batch; b++)
        for (int64_t g = 0; g < a->n_kv_head; g++) {
            for (int64_t i = 0; i < 2 * n_kv; i++)
                dk[i] = 0;
            for (int64_t h = g * group; h < (g + 1) * group; h++)
                for (int64_t i = 0; i < a->n_query; i++) {
                    int64_t first, end, qi = at(&a->q, b, i, h), di = at(&args->d_o, b, i, h);
                    visible(a, i, &first, &end);
                    real lse = ref_get(a->lse, lse_dtype, (b * a->n_head + h) * a->n_query + i);
                    real D = dot(&args->d_o, t, di, &a->o, t, at(&a->o, b, i, h), d);
                    for (int64_t c = 0; c < d; c++)
                        dq[c] = 0;
                    for (int64_t j = first; j < end; j++) {
                        int64_t ki = at(&a->k, b, j, g), vi = at(&a->v, b, j, g);
                        real s = (real)a->scale * dot(&a->q, t, qi, &a->k, a->kv_dtype, ki, d);
                        real p = (real)exp((double)(s - lse));
                        real dp = dot(&args->d_o, t, di, &a->v, a->kv_dtype, vi, d);
                        real ds = OPERAND(t, (real)a->scale * p * (dp - D));
                        real weight = OPERAND(t, p);
                        for (int64_t c = 0; c < d; c++) {
                            dq[c] += ds * ref_get(a->k.data, a->kv_dtype, ki + c);
                            dk[j * d + c] += ds * ref_get(a->q.data, t, qi + c);
                            dv[j * d + c] += weight * ref_get(args->d_o.data, t, di + c);
                        }
                    }
                    for (int64_t c = 0; c < d; c++)
                        ref_put(args->d_q.data, t, at(&args->d_q, b, i, h) + c, dq[c]);
                }
            for (int64_t j = 0; j < a->n_key; j++)
                for (int64_t c = 0; c < d; c++) {
                    ref_put(args->d_k.data, t, at(&args->d_k, b, j, g) + c, dk[j * d + c]);
                    ref_put(args->d_v.data, t, at(&args->d_v, b, j, g) + c, dv[j * d + c]);
                }
        }
    return STATUS_OK;
}

void ref_fill_attention(struct backend *be) {
    be->attention = ref_attention;
    be->attention_bwd = ref_attention_bwd;
}
