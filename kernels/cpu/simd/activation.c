/* Feed-forward activations and their gradients. */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/simd/simd.h"

/* f(x) = x * share, f'(x) = slope * rest. */
struct curve {
    vf share, slope, rest;
};

/* Phi(-t) = exp(-t^2 / 2) u P(u), u = 1 / (1 + 0.24 t): P fitted for the least relative error over
 * t >= 0, 1.2e-8 (the form is Abramowitz & Stegun 7.1.26). */
INLINE struct curve gelu(vf x) {
    static const float p[] = {0.0476687551f, -0.23209241f,  0.373479217f, -0.242605507f,
                              0.24817583f,   0.0730328709f, 0.17041789f,  0.178817272f,
                              0.191617832f,  0.191488236f};
    vf t = (vf)((vu)x & 0x7fffffffu), u = 1.0f / (1.0f + 0.24f * t), q = vf_set(p[0]);
    for (int k = 1; k < (int)(sizeof p / sizeof *p); k++)
        q = vf_fma(q, u, vf_set(p[k]));
    vf bell = vf_exp(-0.5f * x * x), tail = 0.5f * bell * u * q;
    vf share = vf_select((vu)(x < 0.0f), tail, 1.0f - tail);
    return (struct curve){share, share + x * (0.398942280f * bell), vf_set(1)};
}

/* gelu_tanh is x s, s = sigmoid(y), since (1 + tanh u) / 2 = sigmoid(2 u). 1 - s is taken as e s:
 * the subtraction would cancel. Beyond y = -80 all is 0 anyway. */
INLINE struct curve gelu_tanh(vf x) {
    const float k = 1.59576912f, cube = 0.044715f; /* sqrt(8 / pi) */
    vf y = k * (x + cube * x * x * x), slope = k * (1.0f + 3.0f * cube * x * x);
    vf e = vf_exp(vf_min(vf_set(80), -y)), s = 1.0f / (1.0f + e); /* the order lets NaN through */
    return (struct curve){s, s, 1.0f + x * slope * (e * s)};
}

INLINE struct curve silu(vf x) {
    vf s = 1.0f / (1.0f + vf_exp(-x));
    return (struct curve){s, s, 1.0f + x * (1.0f - s)};
}

INLINE struct curve curve(enum activation_kind kind, vf x) {
    return kind == ACTIVATION_GELU ? gelu(x) : kind == ACTIVATION_SWIGLU ? silu(x) : gelu_tanh(x);
}

/* Row r; a tail goes through the same arithmetic on a partial vector. */
INLINE void forward_row(const struct activation_args *a, int64_t r, enum activation_kind kind,
                        bool bf16) {
    const bool gated = activation_is_gated(kind);
    int64_t n_ff = a->out.shape[1], in = r * n_ff * (gated ? 2 : 1), out = r * n_ff, j = 0;
    const void *x = a->in.data;
    for (; j + VF_LEN <= n_ff; j += VF_LEN) {
        vf v = vf_get(x, in + j, bf16), y = v * curve(kind, v).share;
        if (gated)
            y = y * vf_get(x, in + n_ff + j, bf16);
        vf_put(a->out.data, out + j, y, bf16);
    }
    if (j < n_ff) {
        int64_t n = n_ff - j;
        vf v = vf_get_n(x, in + j, n, bf16), y = v * curve(kind, v).share;
        if (gated)
            y = y * vf_get_n(x, in + n_ff + j, n, bf16);
        vf_put_n(a->out.data, out + j, y, n, bf16);
    }
}

INLINE void backward_row(const struct activation_bwd_args *a, int64_t r, enum activation_kind kind,
                         bool bf16) {
    const bool gated = activation_is_gated(kind);
    int64_t n_ff = a->d_out.shape[1], in = r * n_ff * (gated ? 2 : 1), out = r * n_ff, j = 0;
    const void *x = a->in.data;
    for (; j + VF_LEN <= n_ff; j += VF_LEN) {
        vf v = vf_get(x, in + j, bf16), dy = vf_get(a->d_out.data, out + j, bf16);
        struct curve f = curve(kind, v);
        vf up = gated ? vf_get(x, in + n_ff + j, bf16) : vf_set(1);
        vf_put(a->d_in.data, in + j, dy * up * f.slope * f.rest, bf16);
        if (gated)
            vf_put(a->d_in.data, in + n_ff + j, dy * v * f.share, bf16);
    }
    if (j < n_ff) {
        int64_t n = n_ff - j;
        vf v = vf_get_n(x, in + j, n, bf16), dy = vf_get_n(a->d_out.data, out + j, n, bf16);
        struct curve f = curve(kind, v);
        vf up = gated ? vf_get_n(x, in + n_ff + j, n, bf16) : vf_set(1);
        vf_put_n(a->d_in.data, in + j, dy * up * f.slope * f.rest, n, bf16);
        if (gated)
            vf_put_n(a->d_in.data, in + n_ff + j, dy * v * f.share, n, bf16);
    }
}

/* One copy of a row's loop for each kind and dtype, chosen per row. */
#define EACH(row, kind)                                                                            \
    case kind:                                                                                     \
        if (bf16)                                                                                  \
            row(a, r, kind, true);                                                                 \
        else                                                                                       \
            row(a, r, kind, false);                                                                \
        break;
#define ROW(row)                                                                                   \
    switch (a->kind) {                                                                             \
        EACH(row, ACTIVATION_SWIGLU)                                                               \
        EACH(row, ACTIVATION_GEGLU)                                                                \
        EACH(row, ACTIVATION_GELU)                                                                 \
    default:                                                                                       \
        EACH(row, ACTIVATION_GELU_TANH)                                                            \
    }

enum status ISA(activation)(struct backend *be, const struct activation_args *a) {
    (void)be;
    bool bf16 = a->out.dtype == DTYPE_BF16;
#pragma omp parallel for schedule(static) if (tensor_count(&a->out) >= PARALLEL_MIN)
    for (int64_t r = 0; r < a->out.shape[0]; r++)
        ROW(forward_row)
    return STATUS_OK;
}

enum status ISA(activation_bwd)(struct backend *be, const struct activation_bwd_args *a) {
    (void)be;
    bool bf16 = a->d_out.dtype == DTYPE_BF16;
#pragma omp parallel for schedule(static) if (tensor_count(&a->d_out) >= PARALLEL_MIN)
    for (int64_t r = 0; r < a->d_out.shape[0]; r++)
        ROW(backward_row)
    return STATUS_OK;
}
