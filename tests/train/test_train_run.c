/* Whole runs on tiny models: a resumed run equals an uninterrupted one byte for byte, frozen
 * parameters stay, a step allocates nothing, and what must stop a run stops it. */
#include "checkpoints/checkpoint.h"
#include "core/file.h"
#include "tests/support/hash_model.h"
#include "tests/support/run_folder.h"
#include "train/state.h"
#include "train/train_run.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)
#define REFUSED(expr, word)                                                                        \
    do {                                                                                           \
        if ((expr) == STATUS_OK)                                                                   \
            fail_msg("accepted, expected a message with '%s'", word);                              \
        if (!strstr(status_message(), word))                                                       \
            fail_msg("'%s' lacks '%s'", status_message(), word);                                   \
    } while (0)

enum { SEQ = 16, N_ID = 40 * SEQ };

static const char *write_ids(const char *name, uint64_t seed) {
    uint16_t ids[N_ID];
    for (int64_t i = 0; i < N_ID; i++)
        ids[i] = (uint16_t)hash_model_token(seed, i, 64);
    OK(file_write(in_folder(name), ids, sizeof ids));
    return in_folder(name);
}

static const char *write_model(const char *name, int64_t n_kv_head, bool tied, uint64_t seed,
                               enum dtype dtype) {
    struct model_config c = hash_model_config(n_kv_head, !tied, tied);
    const char *dir = in_folder(name);
    OK(dir_remove(dir));
    OK(hash_model_write(dir, &c, seed, dtype));
    return dir;
}

static struct string_list one(const char *path) {
    struct string_list list = {.n = 1};
    OK(arena_alloc(&run_arena, 1, (int64_t)sizeof *list.items, &list.items));
    list.items[0] = path;
    return list;
}

/* A distillation of 4 -> 2 KV heads that evaluates and saves along the way. */
static struct train_config recipe(const char *out) {
    struct train_config c = train_config_default();
    c.teacher = write_model("teacher", 4, false, 2, DTYPE_F32);
    c.student = write_model("student", 2, true, 1, DTYPE_F32);
    c.train = one(write_ids("train.u16", 3));
    c.heldout = one(write_ids("heldout.u16", 4));
    c.out = in_folder(out);
    OK(dir_remove(c.out));
    c.seq_len = SEQ;
    c.batch = 2;
    c.grad_accum = 2;
    c.steps = 6;
    c.warmup = 2;
    c.lr = 0.01;
    c.weight_decay = 0.1;
    c.schedule = "constant";
    c.recompute = true;
    c.eval_every = 2;
    c.eval_windows = 5;
    c.save_every = 0;
    c.backend = "cpu";
    c.threads = 1; /* tiny work; tests/cli/test_train.sh runs with all of them */
    return c;
}

/* The log without what a clock decides, and the number of its lines. */
static int64_t timeless_log(const char *out, struct text *lines) {
    struct text text = {0};
    char *path;
    int64_t n = 0;
    OK(path_join(&run_arena, out, "log.jsonl", &path));
    OK(file_read(path, 0, &text));
    for (char *line = strtok(text.data, "\n"); line; line = strtok(NULL, "\n"), n++) {
        char *clock = strstr(line, ",\"tokens_per_s\"");
        OK(text_printf(lines, "%.*s\n", clock ? (int)(clock - line) : (int)strlen(line), line));
    }
    text_free(&text);
    return n;
}

struct resume_case {
    const char *objective, *dtype;
    enum dtype file_dtype;
    const char *trainable;
    bool stochastic_rounding;
    int64_t kv_heads_of_layer_1; /* layer 0 has 2; 0: as many */
};

static const char *write_mixed(int64_t kv_heads_of_layer_1, enum dtype dtype) {
    struct model_config c = hash_model_config(2, false, true);
    c.n_kv_head[1] = (int32_t)kv_heads_of_layer_1;
    OK(dir_remove(in_folder("student")));
    OK(hash_model_write(in_folder("student"), &c, 1, dtype));
    return in_folder("student");
}

static void resumed_equals_uninterrupted(void **state) {
    const struct resume_case *how = *state;
    struct train_config straight = recipe("straight"), halves;
    straight.objective = how->objective;
    straight.dtype = how->dtype;
    straight.stochastic_rounding = how->stochastic_rounding;
    straight.trainable = one(how->trainable);
    if (how->kv_heads_of_layer_1)
        straight.student = write_mixed(how->kv_heads_of_layer_1, how->file_dtype);
    else
        straight.student = write_model("student", 2, true, 1, how->file_dtype);
    halves = straight;
    halves.out = in_folder("halves");
    OK(dir_remove(halves.out));
    struct train_result a, b;
    OK(train_run(&straight, TRAIN_NEW, &a));
    halves.steps = 3;
    OK(train_run(&halves, TRAIN_NEW, &b));
    assert_int_equal(b.step, 3);
    halves.steps = 6;
    OK(train_run(&halves, TRAIN_RESUME, &b));
    assert_int_equal(b.step, 6);
    assert_true(a.loss == b.loss);
    assert_true(a.best_nll <= b.best_nll); /* the halves evaluated at step 3 too */
    same_file(straight.out, halves.out, "last/model.safetensors");
    same_file(straight.out, halves.out, "last/config.json");
    same_file(straight.out, halves.out, "last/training/state.safetensors");
    if (how->kv_heads_of_layer_1) {
        struct model_config saved;
        OK(model_config_load(in_folder("straight/last"), &saved));
        assert_int_equal(saved.n_kv_head[0], 2);
        assert_int_equal(saved.n_kv_head[1], how->kv_heads_of_layer_1);
    }
    struct text x = {0}, y = {0};
    assert_int_equal(timeless_log(straight.out, &x), 6 + 4); /* evaluations at 0, 2, 4, 6 */
    assert_int_equal(timeless_log(halves.out, &y), 6 + 5);
    char *extra = strstr(y.data, "{\"step\":3,\"eval\"");
    assert_non_null(extra);
    char *after = strchr(extra, '\n') + 1;
    memmove(extra, after, strlen(after) + 1);
    assert_string_equal(x.data, y.data);
    text_free(&x);
    text_free(&y);

    REFUSED(train_run(&halves, TRAIN_NEW, &b), "--resume");
    OK(train_run(&halves, TRAIN_RESUME, &b));
    assert_true(b.was_complete);
    assert_int_equal(b.step, 6);
    OK(train_run(&halves, TRAIN_FORCE, &b));
    assert_false(b.was_complete);
    assert_true(a.loss == b.loss);
}

static int64_t differing_tensors(const char *left, const char *right, const char *allowed) {
    struct checkpoint *a, *b;
    int64_t n = 0;
    OK(checkpoint_open(left, &a));
    OK(checkpoint_open(right, &b));
    assert_int_equal(checkpoint_count(a), checkpoint_count(b));
    for (int64_t i = 0; i < checkpoint_count(a); i++) {
        const struct checkpoint_tensor *x = checkpoint_at(a, i), *y;
        char *p, *q;
        OK(checkpoint_need(b, x->name, &y));
        assert_int_equal(x->n_byte, y->n_byte);
        OK(arena_alloc(&run_arena, x->n_byte, 1, &p));
        OK(arena_alloc(&run_arena, x->n_byte, 1, &q));
        OK(checkpoint_read(x, 0, x->n_byte, p));
        OK(checkpoint_read(y, 0, x->n_byte, q));
        bool differs = memcmp(p, q, (size_t)x->n_byte) != 0;
        if (differs && !strstr(x->name, allowed))
            fail_msg("%s changed although it is frozen", x->name);
        n += differs;
    }
    checkpoint_close(a);
    checkpoint_close(b);
    return n;
}

/* However seldom one looks: 11 steps read 4 at a time, with a checkpoint at 5 and an evaluation at
 * 6 in between. */
static void reading_seldom_changes_nothing(void **state) {
    struct train_config every = recipe("every"), seldom;
    struct train_result a, b;
    every.objective = *state;
    every.trainable = one("attention");
    every.dtype = "bf16";
    every.stochastic_rounding = true; /* whose numbers depend on the step */
    every.steps = 11;
    every.eval_every = 6;
    every.save_every = 5;
    seldom = every;
    seldom.log_every = 4;
    seldom.out = in_folder("seldom");
    OK(dir_remove(seldom.out));
    OK(train_run(&every, TRAIN_NEW, &a));
    OK(train_run(&seldom, TRAIN_NEW, &b));
    assert_true(a.loss == b.loss && a.best_nll == b.best_nll);
    same_file(every.out, seldom.out, "last/model.safetensors");
    same_file(every.out, seldom.out, "last/training/state.safetensors");
    struct text x = {0}, y = {0};
    assert_int_equal(timeless_log(every.out, &x), 11 + 3);
    assert_int_equal(timeless_log(seldom.out, &y), 11 + 3);
    assert_string_equal(x.data, y.data);
    text_free(&x);
    text_free(&y);
}

static void stochastic_rounding_is_used(void **state) {
    (void)state;
    struct train_config c = recipe("nearest");
    struct train_result r;
    c.dtype = "bf16";
    c.steps = 1;
    c.student = write_model("student", 2, true, 1, DTYPE_BF16);
    OK(train_run(&c, TRAIN_NEW, &r));
    const char *nearest = in_folder("nearest/last");
    c.stochastic_rounding = true;
    c.out = in_folder("chance");
    OK(dir_remove(c.out));
    OK(train_run(&c, TRAIN_NEW, &r));
    assert_true(differing_tensors(nearest, in_folder("chance/last"), "") > 10);
}

static void a_changed_run_is_refused(void **state) {
    (void)state;
    struct train_config c = recipe("changed");
    struct train_result r;
    c.steps = 2;
    OK(train_run(&c, TRAIN_NEW, &r));
    c.steps = 4;
    struct train_config other = c;
    other.lr = 0.02;
    REFUSED(train_run(&other, TRAIN_RESUME, &r), "optimizer.lr: 0.01 -> 0.02");
    other = c;
    other.schedule = "cosine";
    REFUSED(train_run(&other, TRAIN_RESUME, &r), "steps: 2 -> 4");
    write_ids("train.u16", 99);
    REFUSED(train_run(&c, TRAIN_RESUME, &r), "training data has changed");
    write_ids("train.u16", 3);
    write_ids("heldout.u16", 99);
    REFUSED(train_run(&c, TRAIN_RESUME, &r), "held-out data has changed");
    write_ids("heldout.u16", 4);
    OK(train_run(&c, TRAIN_RESUME, &r));
    assert_int_equal(r.step, 4);

    /* A folder that is not a run is never touched. */
    other = c;
    other.out = c.student;
    REFUSED(train_run(&other, TRAIN_FORCE, &r), "no training run");
    REFUSED(train_run(&other, TRAIN_RESUME, &r), "no training run");
}

static void two_runs_in_one_folder_are_refused(void **state) {
    (void)state;
    struct train_config c = recipe("locked");
    struct train_result r;
    c.steps = 2;
    OK(train_run(&c, TRAIN_NEW, &r));
    int fd = open(c.out, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0); /* as another process would hold it */
    c.steps = 4;
    REFUSED(train_run(&c, TRAIN_RESUME, &r), "another process");
    REFUSED(train_run(&c, TRAIN_FORCE, &r), "another process");
    assert_true(state_exists(c.out));
    close(fd);
    OK(train_run(&c, TRAIN_RESUME, &r));
    assert_int_equal(r.step, 4);
}

static void a_damaged_state_is_refused(void **state) {
    (void)state;
    struct train_config c = recipe("damaged");
    struct train_result r;
    struct text whole = {0};
    c.steps = 2;
    OK(train_run(&c, TRAIN_NEW, &r));
    c.steps = 3;
    const char *path = in_folder("damaged/last/training/state.safetensors");
    OK(file_read(path, 0, &whole));
    OK(file_write(path, whole.data, whole.n - 4));
    REFUSED(train_run(&c, TRAIN_RESUME, &r), "state.safetensors");
    OK(file_write(path, whole.data, whole.n));
    text_free(&whole);
    const char *json = in_folder("damaged/last/training/state.json");
    OK(file_write(json, "{\"step\": -1}", 12));
    REFUSED(train_run(&c, TRAIN_RESUME, &r), "state.json");
}

static void frozen_parameters_stay(void **state) {
    (void)state;
    struct train_config c = recipe("frozen");
    struct train_result r;
    c.trainable = one("attention");
    OK(train_run(&c, TRAIN_NEW, &r));
    char *last;
    OK(path_join(&run_arena, c.out, "last", &last));
    assert_int_equal(differing_tensors(c.student, last, "self_attn"), 2 * 4);
    c.trainable = one("*k_proj*");
    OK(train_run(&c, TRAIN_FORCE, &r));
    assert_int_equal(differing_tensors(c.student, last, "k_proj"), 2);
    c.trainable = one("*q_norm*");
    REFUSED(train_run(&c, TRAIN_FORCE, &r), "'*q_norm*' matches no tensor");
}

/* The trainer alone, on the recipe's models. */
struct alone {
    struct backend *be;
    struct model *student, *teacher;
    struct token_data data;
    struct trainer t;
};

static void alone_open(struct alone *x, const struct train_config *c) {
    OK(backend_open("cpu", &x->be));
    OK(model_open(c->student, x->be, DTYPE_F32, &x->student));
    OK(model_open(c->teacher, x->be, DTYPE_F32, &x->teacher));
    OK(token_data_open(c->train.items, 1, NULL, 64, &x->data));
    OK(trainer_open(c, x->be, x->student, x->teacher, &x->data, &x->t));
}

static void alone_close(struct alone *x) {
    trainer_close(&x->t);
    token_data_close(&x->data);
    model_close(x->teacher);
    model_close(x->student);
    backend_close(x->be);
}

static float *weights_of(const struct model *m, const char *name) {
    for (int64_t i = 0; i < m->n_param_tensors; i++)
        if (!strcmp(m->params[i].name, name))
            return (float *)m->data + m->params[i].offset;
    fail_msg("no %s", name);
    return NULL;
}

static void a_step_allocates_nothing(void **state) {
    struct train_config c = recipe("steps");
    struct alone x;
    const struct train_step *told;
    int64_t n, before = 0;
    c.objective = *state;
    c.trainable = one("attention");
    alone_open(&x, &c);
    for (int i = 0; i < 22; i++) { /* past the end of an epoch */
        if (i == 2)                /* kernels may keep what their first call made */
            before = memory_alloc_count();
        OK(trainer_step(&x.t, 0.01));
        OK(trainer_read(&x.t, &told, &n));
    }
    assert_int_equal(memory_alloc_count(), before);
    assert_true(x.t.position > 2 * x.t.batcher.n_window);
    alone_close(&x);
}

/* A finite loss whose gradient overflows in one tensor: gate is 0 and so is what the branch adds,
 * but its gradient is a product of up and down. Seen three steps late, it is told of the step it
 * happened in; and no weight has moved, even though the steps behind it may be fine again. */
static void overflow(bool fine_again, const char *message) {
    struct train_config c = recipe("overflow");
    struct alone x;
    const struct train_step *told;
    int64_t n;
    c.trainable = one("*layers.1.mlp.gate_proj*");
    c.log_every = 4;
    alone_open(&x, &c);
    OK(trainer_step(&x.t, 0.01));
    OK(trainer_step(&x.t, 0.01));
    OK(trainer_read(&x.t, &told, &n));
    assert_int_equal(n, 2);
    int64_t n_weight = x.student->config.n_ff * x.student->config.width;
    float *gate = weights_of(x.student, "model.layers.1.mlp.gate_proj.weight");
    float *up = weights_of(x.student, "model.layers.1.mlp.up_proj.weight");
    float *down = weights_of(x.student, "model.layers.1.mlp.down_proj.weight");
    for (int64_t i = 0; i < n_weight; i++)
        gate[i] = 0, up[i] *= 1e22f, down[i] *= 1e22f;
    for (int k = 0; k < 3; k++) {
        OK(trainer_step(&x.t, 0.01));
        for (int64_t i = 0; fine_again && i < n_weight; i++)
            up[i] = 0;
    }
    REFUSED(trainer_read(&x.t, &told, &n), message);
    assert_int_equal(n, 0);
    assert_int_equal(x.t.step, 2);
    assert_int_equal(x.t.position, 2 * c.grad_accum * c.batch);
    for (int64_t i = 0; i < n_weight; i++)
        assert_true(gate[i] == 0);
    alone_close(&x);
}

static void a_gradient_that_is_not_finite_moves_nothing(void **state) {
    (void)state;
    overflow(false, "step 3: the gradient of model.layers.1.mlp.gate_proj.weight is not finite");
    overflow(true, "step 3: the gradient of ");
}

static void a_run_that_is_not_finite_stops(void **state) {
    (void)state;
    struct train_config c = recipe("nan");
    struct train_result r;
    c.heldout = (struct string_list){0};
    c.heldout_fraction = 0;
    c.schedule = "linear";
    c.warmup = 0;
    c.clip = 0;
    c.lr = 10;
    c.weight_decay = 10; /* the weights are multiplied by about -99 a step */
    c.steps = 60;
    c.save_every = 1;
    REFUSED(train_run(&c, TRAIN_NEW, &r), "the last checkpoint is untouched");
    assert_true(r.step < 60);
    if (r.step > 0) { /* what was saved before opens */
        struct run_state saved;
        struct json *settings;
        OK(state_load(c.out, &saved, &settings));
        assert_int_equal(saved.step, r.step);
        json_free(settings);
    }
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    struct train_config c = recipe("misfit");
    struct train_result r;
    c.seq_len = N_ID + 1;
    REFUSED(train_run(&c, TRAIN_NEW, &r), "token");
    c = recipe("misfit");
    uint16_t beyond[2 * SEQ] = {64};
    OK(file_write(in_folder("beyond.u16"), beyond, sizeof beyond));
    c.train = one(in_folder("beyond.u16"));
    REFUSED(train_run(&c, TRAIN_NEW, &r), "beyond.u16");
    c = recipe("misfit");
    struct model_config wide = hash_model_config(4, false, false);
    wide.n_vocab = 65;
    c.teacher = in_folder("wide");
    OK(dir_remove(c.teacher));
    OK(hash_model_write(c.teacher, &wide, 2, DTYPE_F32));
    REFUSED(train_run(&c, TRAIN_NEW, &r), "vocabulary");
    c = recipe("misfit");
    c.heldout = (struct string_list){0};
    c.heldout_fraction = 0.001;
    REFUSED(train_run(&c, TRAIN_NEW, &r), "data.heldout_fraction");
}

static void pretraining_learns(void **state) {
    (void)state;
    struct train_config c = recipe("pretrain");
    struct train_result r;
    c.objective = "pretrain";
    c.model_config = c.student;
    c.teacher = c.student = NULL;
    c.heldout = c.train; /* forty windows of noise: learning them by heart shows the loop works */
    c.eval_windows = 0;
    c.schedule = "cosine";
    c.batch = 8;
    c.steps = 60;
    c.weight_decay = 0;
    OK(train_run(&c, TRAIN_NEW, &r));
    assert_int_equal(r.best_step, 60);
    if (!(r.best_nll < 0.8 * log(64)))
        fail_msg("NLL %.3f after pretraining, %.3f before", r.best_nll, log(64));
    assert_true(path_exists(in_folder("pretrain/best/config.json")));
}

int main(void) {
    static struct resume_case f32 = {"distill", "f32", DTYPE_F32, "all", false, 0},
                              bf16 = {"distill", "bf16", DTYPE_BF16, "all", false, 0},
                              part = {"distill", "f32", DTYPE_BF16, "attention", false, 0},
                              half = {"distill", "bf16", DTYPE_F16, "*norm*", false, 0},
                              chance = {"distill", "bf16", DTYPE_F16, "all", true, 0},
                              layers = {"attention", "f32", DTYPE_F32, "attention", false, 0},
                              layers16 = {"attention", "bf16", DTYPE_BF16, "*[kv]_proj*", true, 0},
                              mixed = {.objective = "distill",
                                       .dtype = "f32",
                                       .file_dtype = DTYPE_BF16,
                                       .trainable = "all",
                                       .kv_heads_of_layer_1 = 4};
    static char distill[] = "distill", attention[] = "attention";
    const struct CMUnitTest tests[] = {
        {"resumed == uninterrupted, f32", resumed_equals_uninterrupted, NULL, NULL, &f32},
        {"resumed == uninterrupted, bf16", resumed_equals_uninterrupted, NULL, NULL, &bf16},
        {"resumed == uninterrupted, frozen part", resumed_equals_uninterrupted, NULL, NULL, &part},
        {"resumed == uninterrupted, f16 file", resumed_equals_uninterrupted, NULL, NULL, &half},
        {"resumed == uninterrupted, stochastic", resumed_equals_uninterrupted, NULL, NULL, &chance},
        {"resumed == uninterrupted, layers", resumed_equals_uninterrupted, NULL, NULL, &layers},
        {"resumed == uninterrupted, layers bf16", resumed_equals_uninterrupted, NULL, NULL,
         &layers16},
        {"resumed == uninterrupted, layers of 2 and 4 KV heads", resumed_equals_uninterrupted, NULL,
         NULL, &mixed},
        cmocka_unit_test(a_changed_run_is_refused),
        cmocka_unit_test(two_runs_in_one_folder_are_refused),
        cmocka_unit_test(a_damaged_state_is_refused),
        cmocka_unit_test(frozen_parameters_stay),
        {"reading seldom changes nothing", reading_seldom_changes_nothing, NULL, NULL, distill},
        {"reading seldom changes nothing, layers", reading_seldom_changes_nothing, NULL, NULL,
         attention},
        cmocka_unit_test(stochastic_rounding_is_used),
        cmocka_unit_test(a_gradient_that_is_not_finite_moves_nothing),
        {"a step allocates nothing", a_step_allocates_nothing, NULL, NULL, distill},
        {"a step allocates nothing, layers", a_step_allocates_nothing, NULL, NULL, attention},
        cmocka_unit_test(a_run_that_is_not_finite_stops),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(pretraining_learns),
    };
    return cmocka_run_group_tests(tests, run_folder_open, run_folder_close);
}
