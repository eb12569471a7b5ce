/* Distillation on the cuda backend, simulated or real: the losses of the first steps are as near to
 * the truth (F64) as the CPU's in the same dtype, a resumed run equals the uninterrupted one byte
 * for byte, and the order of threads, blocks and streams shows nowhere. */
#include "core/file.h"
#include "tests/cuda_sim/cuda_test.h"
#include "tests/support/hash_model.h"
#include "tests/support/run_folder.h"
#include "train/train_run.h"
#ifdef REGROUP_CUDA_SIM
#include "cuda_sim.h"
#endif

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

enum { SEQ = 12, STEPS = 5, N_ID = 20 * SEQ, NUMBERS = 4 };

static const char *write_model(const char *name, int64_t n_kv_head, int64_t head_dim,
                               uint64_t seed) {
    struct model_config c = hash_model_config(n_kv_head, true, false);
    const char *dir = in_folder(name);
    c.head_dim = head_dim;
    OK(dir_remove(dir));
    OK(hash_model_write(dir, &c, seed, DTYPE_BF16));
    return dir;
}

struct how {
    const char *objective, *dtype;
    int64_t head_dim; /* 64: attention on tensor cores when bf16 */
};

/* 4 -> 2 KV heads; evaluates and saves along the way. */
static struct train_config recipe(const struct how *how, const char *backend, const char *out) {
    static const char *trainable[2][1] = {{"all"}, {"attention"}}, *data[1];
    struct train_config c = train_config_default();
    uint16_t ids[N_ID];
    for (int64_t i = 0; i < N_ID; i++)
        ids[i] = (uint16_t)hash_model_token(3, i, 64);
    data[0] = in_folder("ids.u16");
    OK(file_write(data[0], ids, sizeof ids));
    c.objective = how->objective;
    c.dtype = how->dtype;
    c.backend = backend;
    c.teacher = write_model("teacher", 4, how->head_dim, 2);
    c.student = write_model("student", 2, how->head_dim, 1);
    c.train = (struct string_list){data, 1};
    c.heldout_fraction = 0.2;
    c.trainable = (struct string_list){trainable[!strcmp(how->objective, "attention")], 1};
    c.out = in_folder(out);
    OK(dir_remove(c.out));
    c.seq_len = SEQ;
    c.batch = 2;
    c.grad_accum = 2;
    c.steps = STEPS;
    c.warmup = 1;
    c.lr = 2e-3;
    c.weight_decay = 0.1;
    c.clip = 0.05; /* below the norms here */
    c.schedule = "constant";
    c.eval_every = 3;
    c.eval_windows = 2;
    c.threads = 1;
    return c;
}

/* loss, kl, the gradient's norm of every step, and the held-out losses. */
static int64_t read_log(const char *out, double numbers[][NUMBERS]) {
    static const char *const keys[NUMBERS] = {"loss", "kl", "grad_norm", "eval"};
    struct text text = {0};
    char *path;
    int64_t n = 0;
    OK(path_join(&run_arena, out, "log.jsonl", &path));
    OK(file_read(path, 0, &text));
    for (char *line = strtok(text.data, "\n"); line; line = strtok(NULL, "\n"), n++) {
        struct json *j;
        OK(json_parse(line, (int64_t)strlen(line), path, &j));
        for (int k = 0; k < NUMBERS; k++) {
            const struct json *v = json_get(j, keys[k]);
            numbers[n][k] = json_number(k == 3 ? json_get(v, "nll") : v); /* NaN: not there */
        }
        json_free(j);
    }
    text_free(&text);
    return n;
}

enum { LINES = STEPS + 3 }; /* evaluations at 0, 3 and the last */
struct losses {
    double of[LINES][NUMBERS];
};
static struct losses run(const struct how *how, const char *backend, const char *dtype) {
    struct losses x;
    struct train_result r;
    struct how that = *how;
    that.dtype = dtype;
    struct train_config c = recipe(&that, backend, "run");
    OK(train_run(&c, TRAIN_NEW, &r));
    assert_int_equal(read_log(c.out, x.of), LINES);
    return x;
}

/* The largest error of each kind of number over the run, relative to the truth. */
static void errors(const struct losses *x, const struct losses *truth, double *worst) {
    for (int k = 0; k < NUMBERS; k++) {
        worst[k] = 0;
        for (int i = 0; i < LINES; i++) {
            double e = fabs(x->of[i][k] - truth->of[i][k]) / fabs(truth->of[i][k]);
            if (!isnan(truth->of[i][k]) && !(e <= worst[k]) && !isnan(worst[k]))
                worst[k] = e; /* a NaN stays */
        }
    }
}

static void losses_match_the_cpu(void **state) {
    static const char *const names[NUMBERS] = {"loss", "KL", "gradient norm", "held-out NLL"};
    const struct how *how = *state;
    struct losses truth = run(how, "cpu-ref", "f64");
    struct losses cpu = run(how, "cpu", how->dtype), cuda = run(how, "cuda", how->dtype);
    double of_cpu[NUMBERS], of_cuda[NUMBERS];
    errors(&cpu, &truth, of_cpu);
    errors(&cuda, &truth, of_cuda);
    for (int k = 0; k < NUMBERS; k++) {
        print_message("%s %s %s: relative error %.2g, on the cpu %.2g\n", how->objective,
                      how->dtype, names[k], of_cuda[k], of_cpu[k]);
        if (!(of_cuda[k] <= 2 * of_cpu[k] + 0x1p-23))
            fail_msg("%s: %.3g is beyond twice %.3g", names[k], of_cuda[k], of_cpu[k]);
    }
}

/* The halves run in another order of threads, blocks and streams, and read every loss at once: a
 * batch that came too late or a buffer overwritten too early would show. */
static void resumed_equals_uninterrupted(void **state) {
    struct train_config straight = recipe(*state, "cuda", "straight"), halves;
    struct train_result a, b;
    straight.stochastic_rounding = !strcmp(straight.dtype, "bf16");
    OK(train_run(&straight, TRAIN_NEW, &a));
#ifdef REGROUP_CUDA_SIM
    cuda_sim_seed(99);
#endif
    halves = straight;
    halves.out = in_folder("halves");
    OK(dir_remove(halves.out));
    halves.log_every = 1;
    halves.steps = 2;
    OK(train_run(&halves, TRAIN_NEW, &b));
    halves.steps = STEPS;
    OK(train_run(&halves, TRAIN_RESUME, &b));
    assert_true(a.loss == b.loss);
    same_file(straight.out, halves.out, "last/model.safetensors");
    same_file(straight.out, halves.out, "last/training/state.safetensors");
}

int main(void) {
    static struct how bf16 = {"distill", "bf16", 64}, f32 = {"distill", "f32", 8},
                      layers = {"attention", "bf16", 8};
    const struct CMUnitTest tests[] = {
        {"losses match the cpu, bf16", losses_match_the_cpu, NULL, NULL, &bf16},
        {"losses match the cpu, f32", losses_match_the_cpu, NULL, NULL, &f32},
        {"losses match the cpu, layers", losses_match_the_cpu, NULL, NULL, &layers},
        {"resumed == uninterrupted, bf16", resumed_equals_uninterrupted, NULL, NULL, &bf16},
        {"resumed == uninterrupted, f32", resumed_equals_uninterrupted, NULL, NULL, &f32},
        {"resumed == uninterrupted, layers", resumed_equals_uninterrupted, NULL, NULL, &layers},
    };
    struct backend *be;
    int closed = cuda_test_open(&be);
    if (closed)
        return closed;
    backend_close(be);
    return cmocka_run_group_tests(tests, run_folder_open, run_folder_close);
}
