/* Forward, gradients and ten distillation steps against PyTorch's float64 numbers in
 * reference.json (make_reference.py): in fp64 on cpu-ref, in fp32 on cpu and cpu-ref. */
#include "core/file.h"
#include "core/json.h"
#include "tests/support/hash_model.h"
#include "train/trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

enum { SEQ = 12 };

struct variant {
    const char *backend;
    enum dtype dtype;
    double tolerance; /* relative to the compared tensor's or number's size */
};
static const struct variant fp64 = {"cpu-ref", DTYPE_F64, 1e-9};
static const struct variant fp32_ref = {"cpu-ref", DTYPE_F32, 2e-5};
static const struct variant fp32 = {"cpu", DTYPE_F32, 2e-5};

static struct json *reference;
static char folder[64];

static void near(double found, double expected, double tolerance, const char *what) {
    if (!(fabs(found - expected) <= tolerance * fmax(1, fabs(expected))))
        fail_msg("%s: %.12g, expected %.12g", what, found, expected);
}

static double number(const struct json *j, const char *key) {
    double v = json_number(json_get(j, key));
    assert_false(isnan(v));
    return v;
}

static struct model *build(const struct json *j, const char *name, struct backend *be,
                           enum dtype dtype) {
    char dir[128];
    struct model *m;
    struct model_config c =
        hash_model_config(json_int(json_get(j, "n_kv_head")), json_true(json_get(j, "bias")),
                          json_true(json_get(j, "tied")));
    snprintf(dir, sizeof dir, "%s/%s", folder, name);
    OK(dir_remove(dir));
    OK(hash_model_write(dir, &c, (uint64_t)json_int(json_get(j, "seed")), DTYPE_F32));
    OK(model_open(dir, be, dtype, &m));
    return m;
}

static struct token_data tokens(uint64_t seed, int64_t n) {
    struct token_data d = {.n = n};
    OK(memory_alloc(n, (int64_t)sizeof *d.ids, "ids", &d.ids));
    for (int64_t i = 0; i < n; i++)
        d.ids[i] = hash_model_token(seed, i, 64);
    return d;
}

/* A device tensor as doubles; the caller frees. */
static double *fetch(struct backend *be, struct tensor t) {
    void *raw;
    double *out;
    OK(memory_alloc(tensor_count(&t), 8, "raw", &raw));
    OK(memory_alloc(tensor_count(&t), 8, "values", &out));
    OK(be->download(be, STREAM_COMPUTE, raw, t.data, tensor_bytes(&t)));
    OK(be->sync(be, STREAM_COMPUTE));
    assert_true(dtype_convert(raw, t.dtype, out, DTYPE_F64, tensor_count(&t)));
    memory_free(raw);
    return out;
}

/* Norm and three entries (first, a third in, last) of a tensor, as the script picks them. */
static void compare(struct backend *be, struct tensor t, const struct json *expected,
                    double tolerance, const char *name) {
    double *v = fetch(be, t), sum = 0, squares = 0;
    int64_t n = tensor_count(&t), at[] = {0, n / 3, n - 1};
    for (int64_t i = 0; i < n; i++) {
        sum += v[i];
        squares += v[i] * v[i];
    }
    double size = fmax(number(expected, "norm"), 1e-3);
    near(sqrt(squares) / size, number(expected, "norm") / size, tolerance, name);
    if (json_get(expected, "sum"))
        near(sum / size, number(expected, "sum") / size, tolerance * sqrt((double)n), name);
    int k = 0;
    for (const struct json *p = json_first(json_get(expected, "picks")); p; p = json_next(p), k++)
        near(v[at[k]] / size, json_number(p) / size, tolerance, name);
    assert_int_equal(k, 3);
    memory_free(v);
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

static void forward_case(const struct json *j, const struct variant *variant) {
    struct backend *be;
    OK(backend_open(variant->backend, &be));
    struct model *m = build(j, "model", be, variant->dtype);
    struct token_data data = tokens((uint64_t)json_int(json_get(j, "token_seed")), 2 * SEQ + 1);
    struct train_config c = train_config_default();
    c.seq_len = SEQ;
    c.batch = 2;
    c.lr = 0;
    c.clip = 0;
    struct trainer t;
    struct train_step step;
    OK(trainer_open(&c, be, m, NULL, &data, &t));
    step = one_step(&t, 0); /* lr 0: the gradients, and no change */
    near(step.loss, number(j, "nll"), variant->tolerance, "loss");
    assert_int_equal(step.parts.n_token, 2 * SEQ);

    const struct json *grads = json_get(j, "grads");
    assert_int_equal(json_len(grads), m->n_param_tensors);
    for (int64_t i = 0; i < m->n_param_tensors; i++)
        compare(be, model_view(m, t.grads, t.grad_dtype, i), json_get(grads, m->params[i].name),
                variant->tolerance, m->params[i].name);

    int32_t *ids = t.batch[!t.turn].ids;
    OK(be->upload(be, STREAM_COMPUTE, ids, data.ids, 2 * SEQ * (int64_t)sizeof(int32_t)));
    OK(model_forward(m, t.acts, NULL, ids, 2, SEQ));
    for (const struct json *row = json_first(json_get(j, "logits")); row; row = json_next(row)) {
        void *device;
        OK(be->alloc(be, 64 * 8, "logits", &device));
        struct tensor logits = tensor_2d(t.grad_dtype, device, 1, 64);
        OK(model_logits(m, t.acts, atoll(json_key(row)), 1, logits));
        double *found = fetch(be, logits);
        int64_t v = 0;
        for (const struct json *e = json_first(row); e; e = json_next(e))
            near(found[v++], json_number(e), variant->tolerance, "logit");
        assert_int_equal(v, 64);
        memory_free(found);
        be->free(be, device);
    }
    trainer_close(&t);
    token_data_close(&data);
    model_close(m);
    backend_close(be);
}

static void forward_and_gradients(void **state) {
    int n = 0;
    for (const struct json *j = json_first(json_get(reference, "forward")); j;
         j = json_next(j), n++)
        forward_case(j, *state);
    assert_int_equal(n, 3);
}

/* The reference sees all four windows in every step, so their order does not matter. */
static void train_case(const struct variant *variant, bool recompute, int64_t grad_accum) {
    const struct json *j = json_get(reference, "train"), *o = json_get(j, "optimizer");
    struct backend *be;
    OK(backend_open(variant->backend, &be));
    struct model *student = build(json_get(j, "student"), "student", be, variant->dtype);
    struct model *teacher = build(json_get(j, "teacher"), "teacher", be, variant->dtype);
    int64_t n_window = json_int(json_get(j, "n_window"));
    struct token_data data =
        tokens((uint64_t)json_int(json_get(j, "token_seed")), n_window * SEQ + 1);
    struct train_config c = train_config_default();
    c.seq_len = SEQ;
    c.grad_accum = grad_accum;
    c.batch = n_window / grad_accum;
    c.steps = json_int(json_get(j, "steps"));
    c.lr = number(o, "lr");
    c.beta1 = number(o, "beta1");
    c.beta2 = number(o, "beta2");
    c.eps = number(o, "eps");
    c.weight_decay = number(o, "weight_decay");
    c.clip = number(o, "clip");
    c.warmup = json_int(json_get(j, "warmup"));
    c.final = number(j, "final");
    c.alpha = number(json_get(j, "distill"), "alpha");
    c.temperature = number(json_get(j, "distill"), "temperature");
    c.recompute = recompute;
    struct trainer t;
    OK(trainer_open(&c, be, student, teacher, &data, &t));
    /* AdamW divides by sqrt(v): rounding in small gradients moves weights by more than eps. */
    double loose = variant->dtype == DTYPE_F64 ? variant->tolerance : 2e-3;
    int64_t done = 0;
    for (const struct json *row = json_first(json_get(j, "log")); row; row = json_next(row)) {
        struct train_step s;
        double lr = train_config_lr(&c, ++done);
        near(lr, number(row, "lr"), 1e-15, "lr");
        s = one_step(&t, lr);
        double tolerance = done == 1 ? variant->tolerance : fmax(variant->tolerance, loose / 10);
        near(s.loss, number(row, "loss"), tolerance, "loss");
        near(s.parts.ce, number(row, "ce"), tolerance, "ce");
        near(s.parts.kl, number(row, "kl"), tolerance, "kl");
        near(s.grad_norm, number(row, "grad_norm"), 10 * tolerance, "grad_norm");
        if (variant->dtype == DTYPE_F64)
            near(s.parts.agree, number(row, "agree"), 1e-12, "agree");
    }
    assert_int_equal(done, c.steps);
    const struct json *params = json_get(j, "params");
    assert_int_equal(json_len(params), student->n_param_tensors);
    for (int64_t i = 0; i < student->n_param_tensors; i++)
        compare(be, model_view(student, student->data, variant->dtype, i),
                json_get(params, student->params[i].name), loose, student->params[i].name);
    trainer_close(&t);
    token_data_close(&data);
    model_close(student);
    model_close(teacher);
    backend_close(be);
}

static void ten_steps(void **state) {
    train_case(*state, false, 1);
}
static void ten_steps_accumulated_and_recomputed(void **state) {
    train_case(*state, true, 2);
}

static int setup(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "%s", "/tmp/regroup-reference-XXXXXX");
    OK(json_load(TEST_DIR "/train/reference.json", &reference));
    return mkdtemp(folder) ? 0 : 1;
}
static int teardown(void **state) {
    (void)state;
    json_free(reference);
    return dir_remove(folder) == STATUS_OK ? 0 : 1;
}

#define WITH(test, variant)                                                                        \
    { #test " " #variant, test, NULL, NULL, (void *)(intptr_t) & (variant) }

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH(forward_and_gradients, fp64),
        WITH(forward_and_gradients, fp32_ref),
        WITH(forward_and_gradients, fp32),
        WITH(ten_steps, fp64),
        WITH(ten_steps, fp32_ref),
        WITH(ten_steps, fp32),
        WITH(ten_steps_accumulated_and_recomputed, fp64),
        WITH(ten_steps_accumulated_and_recomputed, fp32),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
