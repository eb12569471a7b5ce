/* Attention of the "cpu" backend beside what the machine gives in the same run: forward and
 * backward GF/s as a share of the backend's own f32 matmul, decode GB/s (bytes of K and V read) as
 * a share of memcpy. Useful flops only: 4 * head_dim per visible (query, key) pair and head
 * forward, 10 * head_dim backward (five products). A number given on the command line is the
 * repetitions. */
#include "core/memory.h"
#include "core/parallel.h"
#include "kernels/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct shape {
    int64_t n_batch, n_query, n_key, n_head, n_kv_head, head_dim;
    enum dtype dtype;
};

struct buffers {
    void *q, *k, *v, *o, *lse, *d_o, *d_q, *d_k, *d_v;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int repetitions = 5;

/* Seconds of the fastest of some calls. */
#define BEST(seconds, call)                                                                        \
    do {                                                                                           \
        (seconds) = INFINITY;                                                                      \
        for (int i_ = 0; i_ <= repetitions; i_++) {                                                \
            double start_ = now();                                                                 \
            TRY(call);                                                                             \
            TRY(be->sync(be, STREAM_COMPUTE));                                                     \
            (seconds) = fmin((seconds), now() - start_);                                           \
        }                                                                                          \
    } while (0)

static enum status random_buffer(struct backend *be, int64_t n, enum dtype t, void **out) {
    TRY(be->alloc(be, n * dtype_size(t), "benchmark", out));
    for (int64_t i = 0; i < n; i++) {
        float x = (float)(rand() % 2001 - 1000) / 1000;
        (void)dtype_convert(&x, DTYPE_F32, (char *)*out + i * dtype_size(t), t, 1);
    }
    return STATUS_OK;
}

static enum status bench_matmul(struct backend *be, double *flops) {
    enum { N = 1536 };
    void *a, *b, *c;
    double seconds;
    TRY(random_buffer(be, N * N, DTYPE_F32, &a));
    TRY(random_buffer(be, N * N, DTYPE_F32, &b));
    TRY(random_buffer(be, N * N, DTYPE_F32, &c));
    struct matmul_args args = {.a = tensor_2d(DTYPE_F32, a, N, N),
                               .b = tensor_2d(DTYPE_F32, b, N, N),
                               .c = tensor_2d(DTYPE_F32, c, N, N),
                               .trans_b = true};
    BEST(seconds, be->matmul(be, &args));
    *flops = 2.0 * N * N * N / seconds;
    be->free(be, a), be->free(be, b), be->free(be, c);
    return STATUS_OK;
}

/* Bytes read by a copy of far more than the caches hold, all threads. */
static enum status bench_copy(double *bytes_per_second) {
    enum { PART = 64 << 20 };
    int64_t n = parallel_threads();
    char *from, *to;
    TRY(memory_alloc(n, PART, "benchmark", &from));
    TRY(memory_alloc(n, PART, "benchmark", &to));
    memset(from, 1, (size_t)(n * PART));
    double best = INFINITY;
    for (int i = 0; i <= repetitions; i++) {
        double start = now();
#pragma omp parallel for schedule(static)
        for (int64_t p = 0; p < n; p++)
            memcpy(to + p * PART, from + p * PART, PART);
        best = fmin(best, now() - start);
    }
    *bytes_per_second = (double)(n * PART) / best;
    memory_free(from), memory_free(to);
    return STATUS_OK;
}

/* Bytes a plain sum over memory reads: the roof of decoding. */
static enum status bench_read(double *bytes_per_second) {
    int64_t n = (int64_t)parallel_threads() << 24;
    uint64_t *x, total = 0;
    TRY(memory_alloc(n, sizeof *x, "benchmark", &x));
    memset(x, 1, (size_t)n * sizeof *x);
    double best = INFINITY;
    for (int i = 0; i <= repetitions; i++) {
        double start = now();
#pragma omp parallel for schedule(static) reduction(+ : total)
        for (int64_t j = 0; j < n; j++)
            total += x[j];
        best = fmin(best, now() - start);
    }
    *bytes_per_second = total ? (double)(n * (int64_t)sizeof *x) / best : 0;
    memory_free(x);
    return STATUS_OK;
}

/* Training: the heads of a token side by side. Decoding: the cache, each head's rows together. */
static struct heads heads_of(void *data, int64_t n_row, int64_t n_head, int64_t head_dim,
                             bool cache) {
    if (cache)
        return (struct heads){data, n_row * n_head * head_dim, head_dim, n_row * head_dim};
    return (struct heads){data, n_row * n_head * head_dim, n_head * head_dim, head_dim};
}

static enum status open_shape(struct backend *be, const struct shape *s, struct buffers *m,
                              struct attention_bwd_args *args) {
    int64_t d = s->head_dim, nq = s->n_batch * s->n_query * s->n_head * d;
    int64_t nk = s->n_batch * s->n_key * s->n_kv_head * d;
    void **query[] = {&m->q, &m->o, &m->d_o, &m->d_q}, **key[] = {&m->k, &m->v, &m->d_k, &m->d_v};
    for (int i = 0; i < 4; i++) {
        TRY(random_buffer(be, nq, s->dtype, query[i]));
        TRY(random_buffer(be, nk, s->dtype, key[i]));
    }
    TRY(random_buffer(be, s->n_batch * s->n_head * s->n_query, DTYPE_F32, &m->lse));
    args->fwd = (struct attention_args){
        .dtype = s->dtype,
        .kv_dtype = s->dtype,
        .n_batch = s->n_batch,
        .n_query = s->n_query,
        .n_key = s->n_key,
        .n_head = s->n_head,
        .n_kv_head = s->n_kv_head,
        .head_dim = d,
        .q_first = s->n_key - s->n_query,
        .scale = 1 / sqrt((double)d),
        .q = heads_of(m->q, s->n_query, s->n_head, d, false),
        .k = heads_of(m->k, s->n_key, s->n_kv_head, d, s->n_query < s->n_key),
        .v = heads_of(m->v, s->n_key, s->n_kv_head, d, s->n_query < s->n_key),
        .o = heads_of(m->o, s->n_query, s->n_head, d, false),
        .lse = m->lse};
    args->d_o = heads_of(m->d_o, s->n_query, s->n_head, d, false);
    args->d_q = heads_of(m->d_q, s->n_query, s->n_head, d, false);
    args->d_k = heads_of(m->d_k, s->n_key, s->n_kv_head, d, false);
    args->d_v = heads_of(m->d_v, s->n_key, s->n_kv_head, d, false);
    return STATUS_OK;
}

static void close_shape(struct backend *be, struct buffers *m) {
    void *all[] = {m->q, m->k, m->v, m->o, m->lse, m->d_o, m->d_q, m->d_k, m->d_v};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        be->free(be, all[i]);
}

static void print_shape(const struct shape *s) {
    printf("%-5s B%-2lld T%-4lld S%-5lld H%-2lld G%-2lld d%-4lld", dtype_name(s->dtype),
           (long long)s->n_batch, (long long)s->n_query, (long long)s->n_key, (long long)s->n_head,
           (long long)s->n_kv_head, (long long)s->head_dim);
}

static enum status bench_training(struct backend *be, const struct shape *s, double matmul) {
    struct buffers m = {0};
    struct attention_bwd_args args;
    double forward, backward, t = (double)s->n_query;
    TRY(open_shape(be, s, &m, &args));
    BEST(forward, be->attention(be, &args.fwd));
    BEST(backward, be->attention_bwd(be, &args));
    double pairs = t * (t + 1) / 2 * (double)(s->n_batch * s->n_head * s->head_dim);
    print_shape(s);
    printf(" forward %6.1f GF/s (%4.1f%%, %6.2f ms)  backward %6.1f GF/s (%4.1f%%, %6.2f ms)\n",
           4e-9 * pairs / forward, 100 * 4 * pairs / forward / matmul, 1e3 * forward,
           1e-8 * pairs / backward, 100 * 10 * pairs / backward / matmul, 1e3 * backward);
    close_shape(be, &m);
    return STATUS_OK;
}

static enum status bench_decode(struct backend *be, const struct shape *s, double copy,
                                double read) {
    struct buffers m = {0};
    struct attention_bwd_args args;
    double seconds;
    TRY(open_shape(be, s, &m, &args));
    BEST(seconds, be->attention(be, &args.fwd));
    double bytes = 2.0 * (double)(s->n_batch * s->n_key * s->n_kv_head * s->head_dim) *
                   (double)dtype_size(s->dtype);
    print_shape(s);
    printf(" %7.1f us  %6.1f MB  %5.1f GB/s (%5.1f%% of memcpy, %5.1f%% of reading)\n",
           1e6 * seconds, 1e-6 * bytes, 1e-9 * bytes / seconds, 100 * bytes / seconds / copy,
           100 * bytes / seconds / read);
    close_shape(be, &m);
    return STATUS_OK;
}

static enum status bench(void) {
    static const struct shape training[] = {
        {8, 256, 256, 8, 8, 8, DTYPE_F32},      {8, 256, 256, 8, 2, 8, DTYPE_F32},
        {8, 256, 256, 8, 8, 16, DTYPE_F32},     {8, 256, 256, 8, 2, 16, DTYPE_F32},
        {8, 256, 256, 8, 2, 16, DTYPE_BF16},    {4, 512, 512, 16, 4, 64, DTYPE_F32},
        {4, 512, 512, 16, 4, 64, DTYPE_BF16},   {4, 512, 512, 16, 4, 128, DTYPE_F32},
        {1, 1024, 1024, 16, 16, 64, DTYPE_F32}, {1, 1024, 1024, 16, 4, 64, DTYPE_F32},
        {1, 1024, 1024, 16, 1, 80, DTYPE_F32},  {1, 4096, 4096, 8, 2, 128, DTYPE_F32},
    };
    static const struct shape decode[] = {
        {4, 1, 4096, 32, 32, 64, DTYPE_F32},  {4, 1, 4096, 32, 8, 64, DTYPE_F32},
        {4, 1, 4096, 32, 1, 64, DTYPE_F32},   {4, 1, 4096, 32, 32, 64, DTYPE_BF16},
        {4, 1, 4096, 32, 8, 64, DTYPE_BF16},  {4, 1, 4096, 32, 1, 64, DTYPE_BF16},
        {1, 1, 32768, 32, 8, 128, DTYPE_F32}, {1, 1, 32768, 32, 8, 128, DTYPE_BF16},
        {1, 1, 32768, 8, 1, 128, DTYPE_BF16},
    };
    struct backend *be;
    double matmul, copy, read;
    TRY(backend_open("cpu", &be));
    TRY(bench_matmul(be, &matmul));
    TRY(bench_copy(&copy));
    TRY(bench_read(&read));
    printf("%s; matmul f32 %.1f GF/s, memcpy %.1f GB/s, reading %.1f GB/s\n", be->detail,
           1e-9 * matmul, 1e-9 * copy, 1e-9 * read);
    printf("training, causal; share of matmul f32:\n");
    for (size_t i = 0; i < sizeof training / sizeof *training; i++)
        TRY(bench_training(be, &training[i], matmul));
    printf("decode, one new token per sequence:\n");
    for (size_t i = 0; i < sizeof decode / sizeof *decode; i++)
        TRY(bench_decode(be, &decode[i], copy, read));
    backend_close(be);
    return STATUS_OK;
}

int main(int argc, char **argv) {
    if (argc > 1)
        repetitions = atoi(argv[1]);
    if (bench() == STATUS_OK)
        return 0;
    fprintf(stderr, "bench_attention: %s\n", status_message());
    return 1;
}
