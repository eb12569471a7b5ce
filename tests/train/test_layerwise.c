/* Objective "attention": loss and gradient of a whole step, fp64 on cpu-ref, against the loss
 * written out here and central finite differences of it; and what it refuses. */
#include "core/rng.h"
#include "train/layerwise.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

enum { BATCH = 2, SEQ = 6, ACCUM = 2, ROWS = BATCH * SEQ, VOCAB = 19, LAYERS = 3, WIDTH = 12 };

static struct model_config config_of(const int32_t *n_kv, int64_t n_head, bool bias) {
    struct model_config c = {.family = "llama",
                             .n_vocab = VOCAB,
                             .n_layer = LAYERS,
                             .width = WIDTH,
                             .n_head = n_head,
                             .head_dim = 6,
                             .n_ff = 10,
                             .max_position = 64,
                             .norm_eps = 1e-5,
                             .rope_theta = 100,
                             .qkv_bias = bias,
                             .o_bias = bias,
                             .bos_id = -1,
                             .eos_id = -1,
                             .dtype = DTYPE_F32};
    memcpy(c.n_kv_head, n_kv, LAYERS * sizeof *n_kv);
    return c;
}

/* Weights of order one, so that softmax is away from its linear range. */
static struct model *random_model(struct backend *be, const struct model_config *c, uint64_t seed) {
    struct model *m;
    OK(model_new(c, be, DTYPE_F64, seed, &m));
    struct rng r = rng_seed(seed);
    for (int64_t i = 0; i < m->n_param; i++)
        ((double *)m->data)[i] += 0.4 * rng_normal(&r);
    return m;
}

static struct train_config recipe(void) {
    static const char *attention[] = {"attention"};
    struct train_config c = train_config_default();
    c.objective = "attention";
    c.trainable = (struct string_list){attention, 1};
    c.batch = BATCH;
    c.seq_len = SEQ;
    c.grad_accum = ACCUM;
    c.rows = true;
    c.clip = 0;
    c.dtype = "f64";
    return c;
}

/* One step, and what is said of it. */
static struct train_step one_step(struct trainer *t, double lr) {
    const struct train_step *s;
    int64_t n;
    OK(trainer_step(t, lr));
    OK(trainer_read(t, &s, &n));
    assert_int_equal(n, 1);
    return *s;
}

static struct token_data open_tokens(void) {
    char path[] = "/tmp/regroup-layerwise-XXXXXX.u16";
    uint16_t tokens[ACCUM * ROWS];
    struct token_data data;
    int fd = mkstemps(path, 4);
    assert_true(fd >= 0);
    for (int i = 0; i < ACCUM * ROWS; i++)
        tokens[i] = (uint16_t)((i * 11 + i / 5) % VOCAB);
    assert_int_equal(write(fd, tokens, sizeof tokens), (ssize_t)sizeof tokens);
    close(fd);
    const char *paths[] = {path};
    OK(token_data_open(paths, 1, NULL, VOCAB, &data));
    unlink(path);
    return data;
}

/* What one layer's attention adds, for the stream `in`, of the model `m`: [ROWS, WIDTH]. */
static void branch(const struct model *m, struct acts *a, int64_t layer, struct tensor in,
                   double *out) {
    struct tensor adds;
    OK(model_attention_branch(m, a, layer, BATCH, SEQ, in, &adds));
    memcpy(out, adds.data, ROWS * WIDTH * sizeof *out);
}

/* The loss, written out, over all windows in the order in which the batcher serves them. */
static double loss_of(struct trainer *t, const struct model *m, struct acts *a, double *per_layer) {
    double loss = 0, taught[ROWS * WIDTH], learnt[ROWS * WIDTH];
    for (int64_t l = 0; l < LAYERS; l++)
        per_layer[l] = 0;
    for (int64_t k = 0; k < ACCUM; k++) {
        OK(model_forward(t->teacher, t->teacher_acts, NULL, t->batch[!t->turn].host_ids + k * ROWS,
                         BATCH, SEQ));
        for (int64_t l = 0; l < LAYERS; l++) {
            struct tensor in = acts_layer_input(t->teacher_acts, l);
            branch(t->teacher, t->teacher_acts, l, in, taught);
            branch(m, a, l, in, learnt);
            double error = 0, size = 0;
            for (int64_t i = 0; i < ROWS * WIDTH; i++) {
                error += (learnt[i] - taught[i]) * (learnt[i] - taught[i]);
                size += taught[i] * taught[i];
            }
            per_layer[l] += error / size / ACCUM;
            loss += error / size / ACCUM / LAYERS;
        }
    }
    return loss;
}

static void check(const int32_t *n_kv, bool bias) {
    static const int32_t all_heads[LAYERS] = {4, 4, 4};
    struct backend *be;
    OK(backend_open("cpu-ref", &be));
    struct model_config c = config_of(n_kv, 4, bias), tc = config_of(all_heads, 4, bias);
    struct model *m = random_model(be, &c, 1), *teacher = random_model(be, &tc, 2);
    struct train_config how = recipe();
    struct token_data data = open_tokens();
    struct trainer t;
    struct train_step step;
    double *saved, *w = m->data, per_layer[LAYERS];
    OK(memory_alloc(m->n_param, 8, "test", &saved));
    OK(trainer_open(&how, be, m, teacher, &data, &t));
    step = one_step(&t, 0); /* learning rate 0: the weights stay */
    double loss = loss_of(&t, m, t.acts, per_layer);
    assert_true(fabs(step.loss - loss) <= 1e-12 * loss);
    assert_int_equal(step.n_layer, LAYERS);
    for (int64_t l = 0; l < LAYERS; l++)
        assert_true(fabs(step.layer_loss[l] - per_layer[l]) <= 1e-12 * per_layer[l]);

    const double *grads = t.grads;
    struct rng r = rng_seed(3);
    memcpy(saved, w, (size_t)m->n_param * 8);
    for (int64_t p = 0; p < m->n_param_tensors; p++) {
        const struct param *param = &m->params[p];
        int64_t first = param->offset, n = param->count;
        double analytic = 0, size = 0, direction[512];
        assert_true(n <= 512);
        for (int64_t i = 0; i < n; i++) {
            direction[i] = rng_normal(&r);
            analytic += grads[first + i] * direction[i];
            size += fabs(grads[first + i]);
        }
        assert_true(role_is_attention(param->role) ? size > 0 : size == 0);
        if (!role_is_attention(param->role))
            continue;
        /* Four points: the error of the difference itself is of order h^4. */
        static const double side[4] = {-2, -1, 1, 2}, factor[4] = {1, -8, 8, -1};
        double h = 2e-5, numeric = 0;
        for (int k = 0; k < 4; k++) {
            for (int64_t i = 0; i < n; i++)
                w[first + i] = saved[first + i] + side[k] * h * direction[i];
            numeric += factor[k] * loss_of(&t, m, t.acts, per_layer) / (12 * h);
        }
        memcpy(w, saved, (size_t)m->n_param * 8);
        if (!(fabs(numeric - analytic) <= 1e-8 * (1 + fabs(analytic))))
            fail_msg("%s: analytic %.12g, numeric %.12g", param->name, analytic, numeric);
    }
    memory_free(saved);
    trainer_close(&t);
    token_data_close(&data);
    model_close(m);
    model_close(teacher);
    backend_close(be);
}

static void gradients_are_right(void **state) {
    (void)state;
    check((const int32_t[LAYERS]){2, 2, 2}, false);
    check((const int32_t[LAYERS]){4, 1, 2}, true);
}

/* The teacher itself has nothing to learn: loss exactly 0, and the weights stay, bit for bit. */
static void the_teacher_is_a_fixed_point(void **state) {
    (void)state;
    static const int32_t n_kv[LAYERS] = {2, 2, 2};
    struct backend *be;
    OK(backend_open("cpu", &be));
    struct model_config c = config_of(n_kv, 4, true);
    struct model *m, *teacher;
    OK(model_new(&c, be, DTYPE_F32, 5, &m));
    OK(model_new(&c, be, DTYPE_F32, 5, &teacher));
    struct train_config how = recipe();
    struct token_data data = open_tokens();
    struct trainer t;
    struct train_step step;
    OK(trainer_open(&how, be, m, teacher, &data, &t));
    step = one_step(&t, 0.1);
    assert_true(step.loss == 0 && step.grad_norm == 0);
    assert_memory_equal(m->data, teacher->data, (size_t)m->n_param * sizeof(float));
    trainer_close(&t);
    token_data_close(&data);
    model_close(m);
    model_close(teacher);
    backend_close(be);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    static const int32_t n_kv[LAYERS] = {2, 2, 2};
    static const char *const trainable[] = {"all", "*gate_proj*", "*layernorm*"};
    static const char *const named[] = {"embed_tokens", "mlp.gate_proj", "input_layernorm"};
    struct backend *be;
    OK(backend_open("cpu-ref", &be));
    struct model_config c = config_of(n_kv, 4, false), less = c;
    less.n_layer = LAYERS - 1;
    struct model *m, *teacher, *shallow;
    OK(model_new(&c, be, DTYPE_F64, 1, &m));
    OK(model_new(&c, be, DTYPE_F64, 2, &teacher));
    OK(model_new(&less, be, DTYPE_F64, 2, &shallow));
    struct token_data data = open_tokens();
    struct trainer t;
    for (int i = 0; i < 3; i++) {
        struct train_config how = recipe();
        const char *item = trainable[i];
        how.trainable.items = &item;
        assert_int_equal(trainer_open(&how, be, m, teacher, &data, &t), STATUS_USAGE);
        if (!strstr(status_message(), named[i]))
            fail_msg("'%s' does not name %s", status_message(), named[i]);
    }
    struct train_config how = recipe();
    assert_int_equal(trainer_open(&how, be, m, shallow, &data, &t), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "2 layers"));
    token_data_close(&data);
    model_close(m);
    model_close(teacher);
    model_close(shallow);
    backend_close(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_right),
        cmocka_unit_test(the_teacher_is_a_fixed_point),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
