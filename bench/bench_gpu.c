/* The GPU table: attention, output head with loss, AdamW, a distillation step and decoding, each as
 * a share of what the device does in the same run: its matmul rate, or its copy bandwidth.
 *   bench_gpu [--tiny] [--backend NAME] [SECTION ...]
 * Sections: attention loss adamw model. --tiny: shapes of a few rows, which prove the program
 * where there is no GPU. Times are the best of several batches of calls between two syncs. */
#include "core/log.h"
#include "core/rng.h"
#include "eval/speed.h"
#include "train/trainer.h"
#ifdef REGROUP_CUDNN
#include "kernels/cuda/sdpa_cudnn.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct backend *be;
static bool tiny;
static double matmul_rate, copy_rate; /* FLOP/s in bf16; bytes/s, read and written counted */

static void row(const char *what, const char *shape, double value, const char *unit, double share,
                const char *of) {
    printf("| %-25s | %-34s | %9.4g %-9s | ", what, shape, value, unit);
    if (share > 0)
        printf("%5.1f%% of %-6s |\n", 100 * share, of);
    else
        printf("%-16s |\n", of);
    fflush(stdout);
}

/* Best seconds a call of `run` takes. */
typedef enum status run_function(const void *args);
static enum status best_seconds(run_function *run, const void *args, double *out) {
    const double batch = tiny ? 0 : 0.02, enough = tiny ? 0 : 0.25;
    int64_t calls = 1;
    double begun = 0;
    *out = INFINITY;
    for (int n = -1; n < 3 || clock_seconds() - begun < enough; n++) {
        double start = clock_seconds();
        for (int64_t i = 0; i < calls; i++)
            TRY(run(args));
        TRY(be->sync(be, STREAM_COMPUTE));
        double t = clock_seconds() - start;
        if (n < 0) { /* the first warms up */
            begun = clock_seconds();
            continue;
        }
        *out = fmin(*out, t / (double)calls);
        if (t < batch) {
            calls *= 2;
            n = n > 0 ? 0 : n;
        }
    }
    return STATUS_OK;
}

/* Device memory with values of about N(0, size); freed by free_all when a section ends. */
static void *allocated[64];
static int n_allocated;
static enum status device(int64_t bytes, void *out) {
    if (n_allocated == (int)(sizeof allocated / sizeof *allocated))
        return status_fail(STATUS_FAILED, "too many buffers");
    void *p = NULL;
    TRY(be->alloc(be, bytes, "benchmark", &p));
    allocated[n_allocated++] = p;
    memcpy(out, &p, sizeof p);
    return STATUS_OK;
}
static void free_all(void) {
    while (n_allocated > 0)
        be->free(be, allocated[--n_allocated]);
}
static enum status values(enum dtype dtype, int64_t n, double size, void *out) {
    enum { CHUNK = 1 << 16 };
    static float f[CHUNK];
    static uint16_t h[CHUNK];
    struct rng rng = rng_seed(7);
    char *p = NULL;
    for (int64_t i = 0; i < CHUNK; i++) {
        f[i] = (float)(size * rng_normal(&rng));
        h[i] = f32_to_bf16(f[i]);
    }
    TRY(device(n * dtype_size(dtype), &p));
    memcpy(out, &p, sizeof p);
    for (int64_t at = 0; at < n; at += CHUNK)
        TRY(be->upload(be, STREAM_COMPUTE, p + at * dtype_size(dtype),
                       dtype == DTYPE_F32 ? (void *)f : (void *)h,
                       size_min(CHUNK, n - at) * dtype_size(dtype)));
    return be->sync(be, STREAM_COMPUTE);
}

static enum status run_matmul(const void *args) {
    return be->matmul(be, args);
}
struct copy {
    void *to, *from;
    int64_t bytes;
};
static enum status run_copy(const void *args) {
    const struct copy *c = args;
    return be->copy(be, c->to, c->from, c->bytes);
}

static enum status limits(void) {
    const int64_t n = tiny ? 64 : 8192;
    struct matmul_args m = {.trans_b = true};
    struct copy c = {.bytes = tiny ? 4096 : (int64_t)1 << 30};
    double t;
    m.a = m.b = m.c = tensor_2d(DTYPE_BF16, NULL, n, n);
    TRY(values(DTYPE_BF16, n * n, 1, &m.a.data));
    TRY(values(DTYPE_BF16, n * n, 1, &m.b.data));
    TRY(device(n * n * 2, &m.c.data));
    TRY(best_seconds(run_matmul, &m, &t));
    matmul_rate = 2 * (double)n * (double)n * (double)n / t;
    TRY(device(c.bytes, &c.from));
    TRY(device(c.bytes, &c.to));
    TRY(best_seconds(run_copy, &c, &t));
    copy_rate = 2 * (double)c.bytes / t;
    row("limit: matmul bf16", tiny ? "64 x 64 x 64" : "8192 x 8192 x 8192", 1e-12 * matmul_rate,
        "TFLOP/s", 0, "");
    row("limit: copy", tiny ? "4 KiB" : "1 GiB", 1e-9 * copy_rate, "GB/s", 0, "");
    return STATUS_OK;
}

static enum status run_attention(const void *args) {
    const struct attention_bwd_args *a = args;
    return be->attention(be, &a->fwd);
}
static enum status run_attention_bwd(const void *args) {
    return be->attention_bwd(be, args);
}

/* q, k and v side by side in one row, as the model keeps them. */
static enum status attention_shape(const char *which, int64_t n_seq, int64_t n_batch) {
    const int64_t h = tiny ? 8 : 64, g = tiny ? 2 : 8, d = tiny ? 64 : 128;
    const int64_t n = n_batch * n_seq, packed = (h + 2 * g) * d;
    struct attention_bwd_args a = {.fwd = {.dtype = DTYPE_BF16,
                                           .kv_dtype = DTYPE_BF16,
                                           .n_batch = n_batch,
                                           .n_query = n_seq,
                                           .n_key = n_seq,
                                           .n_head = h,
                                           .n_kv_head = g,
                                           .head_dim = d,
                                           .scale = 1 / sqrt((double)d)}};
    uint16_t *qkv = NULL, *o = NULL, *d_o = NULL, *d_qkv = NULL;
    double forward, backward;
    char shape[64], what[64];
    TRY(values(DTYPE_BF16, n * packed, 1, &qkv));
    TRY(values(DTYPE_BF16, n * h * d, 1, &d_o));
    TRY(device(n * h * d * 2, &o));
    TRY(device(n * packed * 2, &d_qkv));
    TRY(device(n * h * 4, &a.fwd.lse));
    const struct heads in_row = {NULL, n_seq * packed, packed, d},
                       alone = {o, n_seq * h * d, h * d, d};
    struct heads *three[] = {&a.fwd.q, &a.fwd.k, &a.fwd.v, &a.d_q, &a.d_k, &a.d_v};
    for (int i = 0; i < 6; i++) {
        *three[i] = in_row;
        three[i]->data = (i < 3 ? qkv : d_qkv) + (i % 3 == 0 ? 0 : h + (i % 3 - 1) * g) * d;
    }
    a.fwd.o = a.d_o = alone;
    a.d_o.data = d_o;
    snprintf(shape, sizeof shape, "B%lld T%lld H%lld G%lld d%lld causal", (long long)n_batch,
             (long long)n_seq, (long long)h, (long long)g, (long long)d);
#ifdef REGROUP_CUDNN
    if (!strcmp(which, "cudnn") &&
        (!sdpa_cudnn_can(be, &a.fwd, false) || !sdpa_cudnn_can(be, &a.fwd, true))) {
        printf("| attention, cudnn | %s | not available: %s | |\n", shape, status_message());
        free_all();
        return STATUS_OK;
    }
#endif
    TRY(best_seconds(run_attention, &a, &forward));
    TRY(best_seconds(run_attention_bwd, &a, &backward));
    double pairs = (double)n * (double)(n_seq + 1) / 2 * (double)(h * d);
    snprintf(what, sizeof what, "attention forward, %s", which);
    row(what, shape, 4e-12 * pairs / forward, "TFLOP/s", 4 * pairs / forward / matmul_rate,
        "matmul");
    snprintf(what, sizeof what, "attention backward, %s", which);
    row(what, shape, 10e-12 * pairs / backward, "TFLOP/s", 10 * pairs / backward / matmul_rate,
        "matmul");
    free_all();
    return STATUS_OK;
}

/* Through a backend of its own: which kernels attend is settled when a backend opens. */
static enum status attention_by(const char *which) {
    struct backend *usual = be;
    setenv("REGROUP_ATTENTION", which, 1);
    enum status status = backend_open(usual->name, &be);
    unsetenv("REGROUP_ATTENTION");
    for (int64_t t = tiny ? 64 : 2048; t <= (tiny ? 64 : 16384) && status == STATUS_OK; t *= 2)
        status = attention_shape(which, t, tiny ? 1 : 16384 / t);
    free_all();
    backend_close(be);
    be = usual;
    return status;
}
static enum status bench_attention(void) {
    TRY(attention_by("own"));
#ifdef REGROUP_CUDNN
    TRY(attention_by("cudnn"));
#endif
    return STATUS_OK;
}

static enum status run_head_loss(const void *args) {
    return be->head_loss(be, args);
}
static enum status bench_loss(void) {
    const int64_t n = tiny ? 16 : 8192, w = tiny ? 32 : 2048, v = tiny ? 101 : 128256;
    struct head_loss_args a = {.ce_weight = 0.1, .kl_weight = 0.9, .temperature = 1};
    int32_t *targets = NULL;
    double t;
    char shape[64];
    a.grad_scale = 1 / (double)n;
    a.hidden = a.teacher_hidden = a.d_hidden = tensor_2d(DTYPE_BF16, NULL, n, w);
    a.head = a.teacher_head = tensor_2d(DTYPE_BF16, NULL, v, w);
    a.d_head = tensor_2d(DTYPE_F32, NULL, v, w);
    a.nll = a.kl = a.agree = tensor_1d(DTYPE_F32, NULL, n);
    TRY(values(DTYPE_BF16, n * w, 1, &a.hidden.data));
    TRY(values(DTYPE_BF16, n * w, 1, &a.teacher_hidden.data));
    TRY(values(DTYPE_BF16, v * w, 0.02, &a.head.data));
    TRY(values(DTYPE_BF16, v * w, 0.02, &a.teacher_head.data));
    TRY(device(tensor_bytes(&a.d_hidden), &a.d_hidden.data));
    TRY(device(tensor_bytes(&a.d_head), &a.d_head.data));
    struct tensor *rows[] = {&a.nll, &a.kl, &a.agree};
    for (int i = 0; i < 3; i++)
        TRY(device(tensor_bytes(rows[i]), &rows[i]->data));
    TRY(device(n * 4, &targets)); /* zeros: any id will do */
    a.targets = targets;
    TRY(best_seconds(run_head_loss, &a, &t));
    double flop = 8 * (double)n * (double)w * (double)v; /* 2 + 2 forward, 4 backward */
    snprintf(shape, sizeof shape, "%lld rows, width %lld, vocab %lld", (long long)n, (long long)w,
             (long long)v);
    row("head + CE + KL, gradients", shape, 1e-12 * flop / t, "TFLOP/s", flop / t / matmul_rate,
        "matmul");
    return STATUS_OK;
}

static enum status run_adamw(const void *args) {
    return be->adamw(be, args);
}
static enum status bench_adamw(void) {
    const int64_t n = tiny ? 1000 : 1 << 28;
    struct adamw_args a = {.lr = 1e-5,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .grad_scale = 1,
                           .step = 10};
    double t;
    char shape[64];
    a.param = tensor_1d(DTYPE_BF16, NULL, n);
    a.master = a.m = a.v = a.grad = tensor_1d(DTYPE_F32, NULL, n);
    TRY(device(2 * n, &a.param.data));
    struct tensor *state[] = {&a.master, &a.m, &a.v, &a.grad};
    for (int i = 0; i < 4; i++)
        TRY(device(4 * n, &state[i]->data));
    TRY(best_seconds(run_adamw, &a, &t));
    double bytes = 30 * (double)n; /* 16 read, 12 + 2 written */
    snprintf(shape, sizeof shape, "%.3g M parameters, bf16 + F32", 1e-6 * (double)n);
    row("AdamW", shape, 1e-9 * bytes / t, "GB/s", bytes / t / copy_rate, "copy");
    return STATUS_OK;
}

/* Shaped like Llama 3.2 1B; tiny: 2 layers of width 64. */
static struct model_config one_billion(int64_t n_kv_head) {
    struct model_config c = {.family = "llama",
                             .n_vocab = tiny ? 101 : 128256,
                             .n_layer = tiny ? 2 : 16,
                             .width = tiny ? 64 : 2048,
                             .n_head = tiny ? 4 : 32,
                             .head_dim = tiny ? 16 : 64,
                             .n_ff = tiny ? 128 : 8192,
                             .max_position = 131072,
                             .norm_eps = 1e-5,
                             .rope_theta = 500000,
                             .bos_id = 1,
                             .eos_id = 2,
                             .tied_head = true,
                             .dtype = DTYPE_BF16};
    for (int64_t l = 0; l < c.n_layer; l++)
        c.n_kv_head[l] = (int32_t)n_kv_head;
    return c;
}

/* Operations of a forward over n_token tokens in sequences of n_seq. The tied embedding counts
 * once, as the head. */
static double forward_flop(const struct model *m, double n_token, double n_seq) {
    const struct model_config *c = &m->config;
    double attention = 4 * n_seq / 2 * (double)(c->n_layer * c->n_head * c->head_dim);
    return n_token * (2 * (double)model_param_count(m) + attention);
}

static enum status time_steps(const struct model *teacher, struct trainer *t, int64_t n) {
    const struct train_config *c = t->config;
    const struct train_step *step;
    double best = INFINITY, tokens = (double)(c->batch * c->seq_len);
    char shape[64];
    int64_t n_read;
    for (int64_t round = 0; round < 3; round++) { /* the first warms up: scratch, then the graph */
        double start = clock_seconds();
        for (int64_t i = 0; i < n; i++) {
            if (trainer_is_full(t))
                TRY(trainer_read(t, &step, &n_read));
            TRY(trainer_step(t, 1e-6));
        }
        TRY(trainer_read(t, &step, &n_read));
        if (round > 0)
            best = fmin(best, (clock_seconds() - start) / (double)n);
    }
    double flop = forward_flop(teacher, tokens, (double)c->seq_len) +
                  3 * forward_flop(t->student, tokens, (double)c->seq_len);
    snprintf(shape, sizeof shape, "%.2fB, G%d from MHA, %lld x %lld",
             1e-9 * (double)model_param_count(t->student), t->student->config.n_kv_head[0],
             (long long)c->batch, (long long)c->seq_len);
    row("distillation step", shape, tokens / best, "tokens/s", flop / best / matmul_rate, "matmul");
    return STATUS_OK;
}

static enum status bench_step(struct model *teacher, struct model *student) {
    struct train_config c = train_config_default();
    struct trainer t = {0};
    struct token_data data = {0};
    struct rng rng = rng_seed(3);
    enum status status;
    c.seq_len = tiny ? 16 : 2048;
    c.batch = tiny ? 2 : 8;
    c.dtype = "bf16";
    data.n = 4 * c.batch * c.seq_len + 1;
    TRY_OUT(memory_alloc(data.n, sizeof *data.ids, "tokens", &data.ids));
    for (int64_t i = 0; i < data.n; i++)
        data.ids[i] = (int32_t)rng_below(&rng, student->config.n_vocab);
    TRY_OUT(trainer_open(&c, be, student, teacher, &data, &t));
    TRY_OUT(time_steps(teacher, &t, tiny ? 2 : 5));
out:
    if (t.be)
        trainer_close(&t);
    memory_free(data.ids);
    return status;
}

static enum status bench_decode(const struct model *m, const char *what) {
    const struct speed_options o = {.context = tiny ? 16 : 8192,
                                    .n_batch = tiny ? 2 : 16,
                                    .n_decode = tiny ? 4 : 64,
                                    .n_repeat = tiny ? 1 : 3};
    struct speed s;
    char shape[64];
    TRY(speed_measure(m, &o, &s));
    double weights = 2 * (double)model_param_count(m);
    double cache =
        (double)o.n_batch * s.cache_bytes_per_token * ((double)o.context + (double)o.n_decode / 2);
    double steps = s.decode.max / (double)o.n_batch;
    snprintf(shape, sizeof shape, "G%d, batch %lld, context %lld", m->config.n_kv_head[0],
             (long long)o.n_batch, (long long)o.context);
    row(what, shape, s.decode.max, "tokens/s", steps * (weights + cache) / copy_rate, "copy");
    return STATUS_OK;
}

static enum status bench_model(void) {
    struct model_config mha = one_billion(tiny ? 4 : 32), gqa = one_billion(tiny ? 1 : 8);
    struct model *teacher = NULL, *student = NULL;
    enum status status;
    TRY_OUT(model_new(&mha, be, DTYPE_BF16, 1, &teacher));
    TRY_OUT(model_new(&gqa, be, DTYPE_BF16, 2, &student));
    TRY_OUT(bench_step(teacher, student));
    TRY_OUT(bench_decode(teacher, "decode, MHA"));
    TRY_OUT(bench_decode(student, "decode, GQA"));
out:
    model_close(student);
    model_close(teacher);
    return status;
}

static const struct {
    const char *name;
    enum status (*run)(void);
} sections[] = {
    {"attention", bench_attention},
    {"loss", bench_loss},
    {"adamw", bench_adamw},
    {"model", bench_model},
};

static enum status bench(const char *backend, char **wanted, int n_wanted) {
    TRY(backend_open(backend, &be));
    fprintf(stderr, "%s: %s\n", be->name, be->detail);
    printf("| %-25s | %-34s | %-19s | %-16s |\n|---|---|---|---|\n", "what", "shape", "measured",
           "share of limit");
    TRY(limits());
    free_all();
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        bool run = n_wanted == 0;
        for (int k = 0; k < n_wanted; k++)
            run = run || !strcmp(wanted[k], sections[i].name);
        if (run)
            TRY(sections[i].run());
        free_all();
    }
    backend_close(be);
    return STATUS_OK;
}

int main(int argc, char **argv) {
    const char *backend = "cuda";
    int i = 1;
    for (; i < argc && !strncmp(argv[i], "--", 2); i++)
        if (!strcmp(argv[i], "--tiny"))
            tiny = true;
        else if (!strcmp(argv[i], "--backend") && i + 1 < argc)
            backend = argv[++i];
    if (bench(backend, argv + i, argc - i) == STATUS_OK)
        return 0;
    fprintf(stderr, "bench_gpu: %s\n", status_message());
    return 1;
}
