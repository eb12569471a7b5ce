/* What tolerances do not show about the fast attention: a visible NaN reaches the output and a
 * masked one does not, the same call gives the same bits, the rows of a long block and of a short
 * one agree, and a second call allocates nothing. */
#include "core/memory.h"
#include "core/parallel.h"
#include "kernels/backend.h"

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

enum { SEQ = 205, HEADS = 4, KV = 2, DIM = 24, Q = SEQ * HEADS * DIM, K = SEQ * KV * DIM };

static struct backend *be;
static float q[Q], k[K], v[K], o[Q], lse[SEQ * HEADS], d_o[Q], d_q[Q], d_k[K], d_v[K];

static void fill(float *x, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(seed >> 40) / (1 << 23) - 1;
    }
}

static struct heads heads(float *x, int64_t n_head) {
    return (struct heads){x, SEQ * n_head * DIM, n_head * DIM, DIM};
}

static struct attention_args inputs(int64_t window) {
    fill(q, Q, 1), fill(k, K, 2), fill(v, K, 3), fill(d_o, Q, 4);
    memset(o, 0, sizeof o);
    return (struct attention_args){.dtype = DTYPE_F32,
                                   .kv_dtype = DTYPE_F32,
                                   .n_batch = 1,
                                   .n_query = SEQ,
                                   .n_key = SEQ,
                                   .n_head = HEADS,
                                   .n_kv_head = KV,
                                   .head_dim = DIM,
                                   .window = window,
                                   .scale = 0.3,
                                   .q = heads(q, HEADS),
                                   .k = heads(k, KV),
                                   .v = heads(v, KV),
                                   .o = heads(o, HEADS),
                                   .lse = lse};
}

/* A NaN in K or V at `bad` shows in exactly the rows that see it, and only in its group. */
static void check_nan(int64_t window, int64_t bad, bool in_k) {
    struct attention_args a = inputs(window);
    (in_k ? k : v)[(bad * KV + 1) * DIM + 5] = NAN;
    OK(be->attention(be, &a));
    for (int64_t t = 0; t < SEQ; t++)
        for (int64_t h = 0; h < HEADS; h++) {
            int n_nan = 0;
            for (int64_t i = 0; i < DIM; i++)
                n_nan += isnan(o[(t * HEADS + h) * DIM + i]) != 0;
            bool sees = h >= HEADS / KV && t >= bad && (window == 0 || t < bad + window);
            if (n_nan != (!sees ? 0 : in_k ? DIM : 1))
                fail_msg("window %d, NaN in %s %d: %d NaN in row %d of head %d", (int)window,
                         in_k ? "key" : "value", (int)bad, n_nan, (int)t, (int)h);
        }
}

static void test_nan(void **state) {
    (void)state;
    static const int64_t windows[] = {0, 1, 7, 110}, bad[] = {0, 3, 95, 96, 100, SEQ - 1};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
        for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
            check_nan(windows[w], bad[b], true);
            check_nan(windows[w], bad[b], false);
        }
    struct attention_args a = inputs(0);
    q[(100 * HEADS + 3) * DIM] = NAN;
    OK(be->attention(be, &a));
    for (int64_t i = 0; i < SEQ * HEADS; i++)
        assert_int_equal(isnan(o[i * DIM]) != 0, i == 100 * HEADS + 3);
}

static void test_nan_backward(void **state) {
    (void)state;
    struct attention_args a = inputs(0);
    OK(be->attention(be, &a));
    d_o[(100 * HEADS + 3) * DIM] = NAN;
    struct attention_bwd_args b = {a, heads(d_o, HEADS), heads(d_q, HEADS), heads(d_k, KV),
                                   heads(d_v, KV)};
    OK(be->attention_bwd(be, &b));
    assert_true(isnan(d_q[(100 * HEADS + 3) * DIM]));
    for (int64_t t = 0; t <= 100; t++) {
        assert_true(isnan(d_k[(t * KV + 1) * DIM]) && isnan(d_v[(t * KV + 1) * DIM]));
        assert_false(isnan(d_k[t * KV * DIM]) || isnan(d_v[t * KV * DIM]));
    }
}

/* One query at a time, as decoding does: with few threads no key is split, and then even the bits
 * agree with the block's. */
static void test_rows_alone(void **state) {
    (void)state;
    static float alone[Q];
    int threads = parallel_threads();
    parallel_set_threads(1);
    struct attention_args a = inputs(0);
    OK(be->attention(be, &a));
    for (int64_t t = 0; t < SEQ; t++) {
        struct attention_args one = a;
        one.n_query = 1, one.n_key = t + 1, one.q_first = t, one.lse = NULL;
        one.q.data = q + t * HEADS * DIM, one.o.data = alone + t * HEADS * DIM;
        OK(be->attention(be, &one));
    }
    parallel_set_threads(threads);
    assert_memory_equal(o, alone, sizeof o);
}

static void test_repeats(void **state) {
    (void)state;
    static float first[Q + 2 * K + Q];
    int threads = parallel_threads();
    for (int n = 1; n <= 5; n++) {
        parallel_set_threads(n);
        struct attention_args a = inputs(50);
        struct attention_bwd_args b = {a, heads(d_o, HEADS), heads(d_q, HEADS), heads(d_k, KV),
                                       heads(d_v, KV)};
        int64_t count = 0;
        for (int time = 0; time < 4; time++) {
            OK(be->attention(be, &a));
            OK(be->attention_bwd(be, &b));
            if (time == 0) {
                memcpy(first, o, sizeof o), memcpy(first + Q, d_k, sizeof d_k);
                memcpy(first + Q + K, d_v, sizeof d_v), memcpy(first + Q + 2 * K, d_q, sizeof d_q);
                count = memory_alloc_count();
            }
            assert_memory_equal(first, o, sizeof o);
            assert_memory_equal(first + Q, d_k, sizeof d_k);
            assert_memory_equal(first + Q + K, d_v, sizeof d_v);
            assert_memory_equal(first + Q + 2 * K, d_q, sizeof d_q);
        }
        assert_int_equal(memory_alloc_count(), count);
    }
    parallel_set_threads(threads);
}

static int open_backend(void **state) {
    (void)state;
    return backend_open("cpu", &be) != STATUS_OK;
}

static int close_backend(void **state) {
    (void)state;
    backend_close(be);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_nan_backward),
        cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_repeats),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
