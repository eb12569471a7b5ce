/* What the cuda backend promises around the ops: transfers that arrive by sync, streams that wait,
 * graphs that compute what plain launches do, messages. On the simulator or on a device. */
#include "core/memory.h"
#include "tests/cuda_sim/cuda_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct backend *be;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)
#define REFUSED(call, text)                                                                        \
    do {                                                                                           \
        assert_int_equal(call, STATUS_FAILED);                                                     \
        if (!strstr(status_message(), text))                                                       \
            fail_msg("'%s' does not say '%s'", status_message(), text);                            \
    } while (0)

static void *device(int64_t bytes) {
    void *p = NULL;
    OK(be->alloc(be, bytes, "test", &p));
    return p;
}
static struct tensor floats(int64_t n) {
    return tensor_1d(DTYPE_F32, device(n * 4), n);
}
static void set(struct tensor t, float value) {
    int64_t n = tensor_count(&t);
    float *host = NULL;
    OK(memory_alloc(n, 4, "host", &host));
    for (int64_t i = 0; i < n; i++)
        host[i] = value + (float)(i % 7);
    OK(be->upload(be, STREAM_COMPUTE, t.data, host, n * 4));
    OK(be->sync(be, STREAM_COMPUTE));
    memory_free(host);
}
static void expect(struct tensor t, float scale, float value) {
    int64_t n = tensor_count(&t);
    float *host = NULL;
    OK(memory_alloc(n, 4, "host", &host));
    OK(be->download(be, STREAM_COMPUTE, host, t.data, n * 4));
    OK(be->sync(be, STREAM_COMPUTE));
    for (int64_t i = 0; i < n; i++)
        if (!(host[i] == scale * (value + (float)(i % 7))))
            fail_msg("element %lld is %g, not %g", (long long)i, host[i],
                     scale * (value + (float)(i % 7)));
    memory_free(host);
}

/* Longer than all pinned slots together, and no multiple of one. */
static void long_transfers_arrive(void **state) {
    (void)state;
    const int64_t n = (41 << 20) + 13;
    unsigned char *out = NULL, *in = NULL, *p = device(n);
    OK(memory_alloc(n, 1, "host", &out));
    OK(memory_alloc(n, 1, "host", &in));
    OK(be->download(be, STREAM_COPY, in, p, n));
    OK(be->sync(be, STREAM_COPY));
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(in[i], 0); /* alloc zeroes */
    for (int64_t i = 0; i < n; i++)
        out[i] = (unsigned char)(i * 7919 >> 5);
    OK(be->upload(be, STREAM_COPY, p, out, n));
    OK(be->download(be, STREAM_COPY, in, p, n));
    OK(be->sync(be, STREAM_COPY));
    assert_memory_equal(in, out, (size_t)n);
    be->free(be, p);
    memory_free(in);
    memory_free(out);
}

/* More downloads on their way than there are slots; the last of two into the same place stays. */
static void many_downloads_arrive_in_order(void **state) {
    (void)state;
    enum { N = 21 };
    int32_t in[N + 1] = {0}, out[N];
    int32_t *p = device(sizeof out);
    for (int i = 0; i < N; i++)
        out[i] = 100 + i;
    OK(be->upload(be, STREAM_COMPUTE, p, out, sizeof out));
    for (int i = 0; i < N; i++) {
        OK(be->download(be, STREAM_COMPUTE, &in[i], &p[i], 4));
        OK(be->download(be, STREAM_COMPUTE, &in[N], &p[i], 4));
    }
    OK(be->sync(be, STREAM_COMPUTE));
    assert_memory_equal(in, out, sizeof out);
    assert_int_equal(in[N], out[N - 1]);
    be->free(be, p);
}

/* Values cross the streams in both directions, round after round. */
static void streams_wait_for_each_other(void **state) {
    (void)state;
    struct tensor a = floats(1000), b = floats(1000);
    float host[1000], back[1000];
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 1000; i++)
            host[i] = (float)(round * 1000 + i);
        OK(be->upload(be, STREAM_COPY, a.data, host, sizeof host));
        OK(be->wait(be, STREAM_COMPUTE, STREAM_COPY));
        OK(be->add(be, &(struct add_args){a, a, b}));
        OK(be->wait(be, STREAM_COPY, STREAM_COMPUTE));
        OK(be->download(be, STREAM_COPY, back, b.data, sizeof back));
        OK(be->sync(be, STREAM_COPY));
        for (int i = 0; i < 1000; i++)
            assert_true(back[i] == 2 * host[i]);
    }
    be->free(be, a.data);
    be->free(be, b.data);
}

/* n differences in a row: scale, scale^2, ... of (a - 0). */
static enum status differences(struct tensor a, struct tensor zero, struct tensor *out, int n,
                               double scale) {
    for (int i = 0; i < n; i++)
        TRY(be->difference(be,
                           &(struct difference_args){
                               .a = i ? out[i - 1] : a, .b = zero, .out = out[i], .scale = scale}));
    return STATUS_OK;
}

static void graphs_compute_what_launches_do(void **state) {
    (void)state;
    struct tensor a[2] = {floats(500), floats(500)}, zero = floats(500), out[3];
    for (int i = 0; i < 3; i++)
        out[i] = floats(500);
    set(a[0], 1);
    set(a[1], 50);
    int64_t before = 0;
    for (int round = 0; round < 9; round++) { /* other buffers and numbers under the same key */
        double scale = round % 2 ? 2 : 0.5;
        int n = round < 6 ? 2 : 3; /* then other work */
        if (round == 3)
            before = memory_alloc_count();
        OK(be->graph_begin(be, 77));
        OK(differences(a[round % 2], zero, out, n, scale));
        OK(be->graph_end(be));
        if (round >= 3 && round < 6)
            assert_int_equal(memory_alloc_count(), before);
        before += 1; /* what expect allocates */
        expect(out[n - 1], (float)(n == 2 ? scale * scale : scale * scale * scale),
               round % 2 ? 50 : 1);
    }
    for (int64_t key = 0; key < 40; key++) /* more keys than are kept */
        for (int round = 0; round < 2; round++) {
            OK(be->graph_begin(be, key));
            OK(differences(a[0], zero, out, 1, 4));
            OK(be->graph_end(be));
            expect(out[0], 4, 1);
        }
    for (int i = 0; i < 3; i++)
        be->free(be, out[i].data);
    be->free(be, a[0].data);
    be->free(be, a[1].data);
    be->free(be, zero.data);
}

static enum status column_sums(struct tensor of, struct tensor sums) {
    return be->bias_bwd(be, &(struct bias_bwd_args){.d_out = of.data,
                                                    .dtype = DTYPE_F32,
                                                    .n_row = 70,
                                                    .n_col = tensor_count(&sums),
                                                    .row_stride = tensor_count(&sums),
                                                    .d_bias = sums});
}
static void expect_sums(struct tensor sums, int rounds) {
    int64_t n = tensor_count(&sums);
    float *host = NULL;
    OK(memory_alloc(n, 4, "host", &host));
    OK(be->download(be, STREAM_COMPUTE, host, sums.data, n * 4));
    OK(be->sync(be, STREAM_COMPUTE));
    for (int64_t j = 0; j < n; j++) {
        float want = 0;
        for (int64_t r = 0; r < 70; r++)
            want += (float)((1 + (r * n + j) % 7) * rounds);
        assert_true(host[j] == want);
    }
    memory_free(host);
}

/* Scratch that has to grow while a graph is recorded in which a smaller one is used already. */
static void graphs_may_need_more_scratch(void **state) {
    (void)state;
    enum { ROUNDS = 4, FEW = 16, MANY = 1 << 16 };
    struct tensor a = floats(70 * FEW), wide = floats(70 * MANY);
    struct tensor sums = floats(FEW), wide_sums = floats(MANY);
    set(a, 1);
    set(wide, 1);
    for (int round = 0; round < ROUNDS; round++) {
        OK(be->graph_begin(be, 5));
        OK(column_sums(a, sums));
        if (round > 0)
            OK(column_sums(wide, wide_sums));
        OK(be->graph_end(be));
    }
    expect_sums(sums, ROUNDS);
    expect_sums(wide_sums, ROUNDS - 1);
    struct tensor *all[] = {&a, &wide, &sums, &wide_sums};
    for (int i = 0; i < 4; i++)
        be->free(be, all[i]->data);
}

static void graphs_refuse_what_waits(void **state) {
    (void)state;
    struct tensor a = floats(8), out = floats(8);
    float host[8];
    void *p;
    set(a, 3);
    for (int round = 0; round < 2; round++) { /* the second is recorded */
        OK(be->graph_begin(be, 9));
        OK(be->add(be, &(struct add_args){a, a, out}));
        OK(be->graph_end(be));
    }
    OK(be->graph_begin(be, 9));
    REFUSED(be->alloc(be, 64, "test", &p), "alloc between graph_begin and graph_end");
    REFUSED(be->download(be, STREAM_COMPUTE, host, a.data, 32), "download between");
    REFUSED(be->upload(be, STREAM_COMPUTE, a.data, host, 32), "upload between");
    REFUSED(be->sync(be, STREAM_COMPUTE), "sync between");
    REFUSED(be->wait(be, STREAM_COMPUTE, STREAM_COPY), "wait between");
    REFUSED(be->upload(be, STREAM_COPY, out.data, host, 32), "upload between");
    OK(be->add(be, &(struct add_args){a, a, out}));
    OK(be->graph_end(be));
    expect(out, 2, 3);
    REFUSED(be->graph_end(be), "without graph_begin");
    be->free(be, a.data);
    be->free(be, out.data);
}

/* More shapes than plans are kept; bias in both types of the result. */
static void matmul_by_shape(void **state) {
    (void)state;
    static const int most = 12;
    struct tensor a = floats(most * most), b = floats(most * most), bias = floats(most), c, host;
    float *out = NULL;
    int shapes = 0;
    set(a, 1);
    set(b, 2);
    set(bias, 3);
    OK(memory_alloc(most * most, 4, "host", &out));
    c = floats(most * most);
    for (int m = 1; m <= most; m++)
        for (int n = 1; n <= most; n++)
            for (int k = 4; k <= most; k += 2, shapes++) {
                bool trans = (m + n) % 2;
                struct matmul_args args = {
                    .a = tensor_2d(DTYPE_F32, a.data, m, k),
                    .b = tensor_2d(DTYPE_F32, b.data, trans ? n : k, trans ? k : n),
                    .c = tensor_2d(DTYPE_F32, c.data, m, n),
                    .bias = tensor_1d(DTYPE_F32, bias.data, n),
                    .trans_b = trans};
                OK(be->matmul(be, &args));
                host = args.c;
                OK(be->download(be, STREAM_COMPUTE, out, host.data, tensor_bytes(&host)));
                OK(be->sync(be, STREAM_COMPUTE));
                for (int i = 0; i < m; i++)
                    for (int j = 0; j < n; j++) {
                        float want = (float)(3 + j % 7);
                        for (int l = 0; l < k; l++)
                            want += (float)(1 + (i * k + l) % 7) *
                                    (float)(2 + (trans ? j * k + l : l * n + j) % 7);
                        assert_true(out[i * n + j] == want); /* small integers: exact */
                    }
            }
    assert_true(shapes > 512);
    memory_free(out);
    struct tensor *all[] = {&a, &b, &bias, &c};
    for (int i = 0; i < 4; i++)
        be->free(be, all[i]->data);
}

static void messages(void **state) {
    (void)state;
    void *p = NULL;
    char line[512];
    struct matmul_args args = {.a = tensor_2d(DTYPE_F16, &p, 2, 2),
                               .b = tensor_2d(DTYPE_F16, &p, 2, 2),
                               .c = tensor_2d(DTYPE_F16, &p, 2, 2)};
    REFUSED(be->alloc(be, (int64_t)1 << 50, "the moon", &p), "the moon needs 1073741824.0 MiB");
    assert_non_null(strstr(status_message(), "are free"));
    REFUSED(be->matmul(be, &args), "F16 is not a compute type");
    backend_describe_cuda(line, sizeof line);
    assert_non_null(strstr(line, "cuda: built for "));
    assert_non_null(strstr(line, "device 0: "));
    setenv("REGROUP_ATTENTION", "best", 1);
    struct backend *other;
    assert_int_equal(backend_open("cuda", &other), STATUS_USAGE);
    unsetenv("REGROUP_ATTENTION");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_transfers_arrive),
        cmocka_unit_test(many_downloads_arrive_in_order),
        cmocka_unit_test(streams_wait_for_each_other),
        cmocka_unit_test(graphs_compute_what_launches_do),
        cmocka_unit_test(graphs_may_need_more_scratch),
        cmocka_unit_test(graphs_refuse_what_waits),
        cmocka_unit_test(matmul_by_shape),
        cmocka_unit_test(messages),
    };
    int closed = cuda_test_open(&be);
    if (closed)
        return closed;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend_close(be);
    return failed;
}
