/* The whole model's gradient, fp64 on cpu-ref, against central finite differences: for every
 * parameter tensor along a random direction, and for single entries. */
#include "core/rng.h"
#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

enum { BATCH = 2, SEQ = 7, ROWS = BATCH * SEQ, VOCAB = 19 };

struct setting {
    const char *name;
    int32_t n_kv[3];
    bool qkv_bias, o_bias, tied, recompute;
    int64_t window;
    double ce, kl, temperature;
};

static struct model_config config_of(const struct setting *s) {
    struct model_config c = {.family = "llama",
                             .n_vocab = VOCAB,
                             .n_layer = 3,
                             .width = 12,
                             .n_head = 4,
                             .head_dim = 6,
                             .n_ff = 10,
                             .max_position = 64,
                             .norm_eps = 1e-5,
                             .rope_theta = 100,
                             .qkv_bias = s->qkv_bias,
                             .o_bias = s->o_bias,
                             .tied_head = s->tied,
                             .sliding_window = s->window,
                             .bos_id = -1,
                             .eos_id = -1,
                             .dtype = DTYPE_F32};
    memcpy(c.n_kv_head, s->n_kv, sizeof s->n_kv);
    return c;
}

/* Weights of order one, so that softmax and silu are away from their linear ranges. */
static struct model *random_model(struct backend *be, const struct model_config *c, uint64_t seed) {
    struct model *m;
    OK(model_new(c, be, DTYPE_F64, seed, &m));
    struct rng r = rng_seed(seed);
    for (int64_t i = 0; i < m->n_param; i++)
        ((double *)m->data)[i] = ((double *)m->data)[i] + 0.4 * rng_normal(&r);
    return m;
}

static void run(struct model *m, struct acts *a, struct model *teacher, struct acts *ta,
                const struct setting *s, const int32_t *ids, const int32_t *targets, double *rows,
                bool gradients, double *grads) {
    struct backend *be = m->be;
    OK(model_forward(m, a, NULL, ids, BATCH, SEQ));
    OK(model_forward(teacher, ta, NULL, ids, BATCH, SEQ));
    struct head_loss_args args = {.hidden = acts_hidden(a),
                                  .head = model_head(m),
                                  .targets = targets,
                                  .teacher_hidden = acts_hidden(ta),
                                  .teacher_head = model_head(teacher),
                                  .ce_weight = s->ce,
                                  .kl_weight = s->kl,
                                  .temperature = s->temperature,
                                  .grad_scale = 1.0 / ROWS,
                                  .nll = tensor_1d(DTYPE_F64, rows, ROWS),
                                  .kl = tensor_1d(DTYPE_F64, rows + ROWS, ROWS)};
    if (gradients) {
        args.d_hidden = acts_d_hidden(a);
        args.d_head = model_d_head(m, grads);
    }
    OK(be->head_loss(be, &args));
    if (gradients)
        OK(model_backward(m, a, grads, NULL));
}

static double loss_of(const struct setting *s, const double *rows) {
    double sum = 0;
    for (int i = 0; i < ROWS; i++)
        sum += s->ce * rows[i] + s->kl * rows[ROWS + i];
    return sum / ROWS;
}

static void check(const struct setting *s) {
    struct backend *be;
    OK(backend_open("cpu-ref", &be));
    struct model_config c = config_of(s), tc = c;
    for (int l = 0; l < 3; l++)
        tc.n_kv_head[l] = 4;
    struct model *m = random_model(be, &c, 1), *teacher = random_model(be, &tc, 2);
    struct acts *a, *ta;
    OK(acts_open(m, s->recompute ? ACTS_RECOMPUTE : ACTS_TRAIN, BATCH, SEQ, &a));
    OK(acts_open(teacher, ACTS_INFER, BATCH, SEQ, &ta));
    int32_t ids[ROWS], targets[ROWS];
    struct rng r = rng_seed(3);
    for (int i = 0; i < ROWS; i++) {
        ids[i] = (int32_t)rng_below(&r, VOCAB);
        targets[i] = i % 5 == 4 ? -1 : (int32_t)rng_below(&r, VOCAB);
    }
    double rows[2 * ROWS], *grads, *direction, *w = m->data, *saved;
    OK(memory_alloc(m->n_param, 8, "test", &grads));
    OK(memory_alloc(m->n_param, 8, "test", &direction));
    OK(memory_alloc(m->n_param, 8, "test", &saved));
    run(m, a, teacher, ta, s, ids, targets, rows, true, grads);
    memcpy(saved, w, (size_t)m->n_param * 8);
    for (int64_t p = 0; p < m->n_param_tensors; p++) {
        const struct param *param = &m->params[p];
        double analytic = 0, scale = 0;
        for (int64_t i = param->offset; i < param->offset + param->count; i++) {
            direction[i] = rng_normal(&r);
            analytic += grads[i] * direction[i];
            scale += fabs(grads[i]);
        }
        assert_true(scale > 0); /* a gradient that is all zero would pass nothing */
        /* Four points: the error of the difference itself is of order h^4. */
        static const double step[4] = {-2, -1, 1, 2}, factor[4] = {1, -8, 8, -1};
        double h = 2e-5, numeric = 0;
        for (int side = 0; side < 4; side++) {
            for (int64_t i = param->offset; i < param->offset + param->count; i++)
                w[i] = saved[i] + step[side] * h * direction[i];
            run(m, a, teacher, ta, s, ids, targets, rows, false, NULL);
            numeric += factor[side] * loss_of(s, rows) / (12 * h);
        }
        memcpy(w, saved, (size_t)m->n_param * 8);
        if (!(fabs(numeric - analytic) <= 1e-8 * (1 + fabs(analytic))))
            fail_msg("%s, %s: analytic %.12g, numeric %.12g", s->name, param->name, analytic,
                     numeric);
    }
    memory_free(grads);
    memory_free(direction);
    memory_free(saved);
    acts_close(a);
    acts_close(ta);
    model_close(m);
    model_close(teacher);
    backend_close(be);
}

static void gradients_are_right(void **state) {
    (void)state;
    static const struct setting settings[] = {
        {"MHA", {4, 4, 4}, false, false, false, false, 0, 1, 0, 1},
        {"GQA with biases, KL", {2, 2, 2}, true, true, false, false, 0, 0, 1, 2},
        {"MQA tied, mixed loss", {1, 1, 1}, false, false, true, false, 0, 0.3, 0.7, 1.5},
        {"per-layer heads, recompute", {4, 1, 2}, true, false, true, true, 0, 0.5, 0.5, 1},
        {"window", {2, 2, 2}, false, false, false, false, 3, 1, 0, 1},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        check(&settings[i]);
}

/* Wanting only some parameters changes nothing about theirs and leaves the others' at zero. */
static void unwanted_gradients_stay_zero(void **state) {
    (void)state;
    const struct setting s = {"wanted", {2, 2, 2}, true, true, true, false, 0, 1, 0, 1};
    struct backend *be;
    OK(backend_open("cpu-ref", &be));
    struct model_config c = config_of(&s);
    struct model *m = random_model(be, &c, 1);
    struct acts *a;
    OK(acts_open(m, ACTS_TRAIN, BATCH, SEQ, &a));
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS; i++)
        ids[i] = (i * 7 + 3) % VOCAB;
    double *all, *some;
    bool wanted[64] = {false};
    OK(memory_alloc(m->n_param, 8, "test", &all));
    OK(memory_alloc(m->n_param, 8, "test", &some));
    for (int64_t p = 0; p < m->n_param_tensors; p++)
        wanted[p] = m->params[p].role == ROLE_K || m->params[p].role == ROLE_O_BIAS;
    for (int pass = 0; pass < 2; pass++) {
        OK(model_forward(m, a, NULL, ids, BATCH, SEQ));
        for (int64_t i = 0; i < ROWS * c.width; i++)
            ((double *)acts_d_hidden(a).data)[i] = sin((double)i);
        OK(model_backward(m, a, pass ? some : all, pass ? wanted : NULL));
    }
    for (int64_t p = 0; p < m->n_param_tensors; p++)
        for (int64_t i = 0; i < m->params[p].count; i++) {
            double x = some[m->params[p].offset + i], y = all[m->params[p].offset + i];
            assert_true(x == (wanted[p] ? y : 0));
        }
    memory_free(all);
    memory_free(some);
    acts_close(a);
    model_close(m);
    backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_right),
        cmocka_unit_test(unwanted_gradients_stay_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
