/* What the op table's shapes do not show of attention on the cuda backend: scores so low that
 * exp() of them is zero (lse < -88), where a NaN may spread and where not, and that a query decoded
 * alone gets what it got in its block. */
#include "core/rng.h"
#include "op_cases.h"
#include "tests/cuda_sim/cuda_test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SEQ = 192, HEADS = 4, KV = 2, DIM = 64, ROW = (HEADS + 2 * KV) * DIM, OUT = HEADS * DIM };

static struct backend *cuda, *oracle, *yardstick;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

/* q, k, v of a token side by side, as the model has them. */
struct problem {
    uint16_t qkv[SEQ * ROW], o[SEQ * OUT], d_o[SEQ * OUT], d_qkv[SEQ * ROW];
    float lse[HEADS * SEQ];
};
static struct problem start, got, want, unit; /* unit: what rounding alone may do */

static void fill(double q_low, double q_high, double k_low, double k_high) {
    struct rng rng = rng_seed(5);
    for (int64_t i = 0; i < SEQ * ROW; i++) {
        int64_t c = i % ROW;
        double low = c < OUT ? q_low : c < OUT + KV * DIM ? k_low : -1;
        double high = c < OUT ? q_high : c < OUT + KV * DIM ? k_high : 1;
        start.qkv[i] = f32_to_bf16((float)(low + (high - low) * rng_uniform(&rng)));
    }
    for (int64_t i = 0; i < SEQ * OUT; i++)
        start.d_o[i] = f32_to_bf16((float)rng_uniform(&rng) - 0.5F);
}

/* Forward and backward of `start` on `be`. */
static void solve(struct backend *be, int64_t window, struct problem *out) {
    char *p;
    OK(be->alloc(be, (int64_t)sizeof start, "attention's test", (void **)&p));
    OK(be->upload(be, STREAM_COMPUTE, p, &start, (int64_t)sizeof start));
    char *o = p + offsetof(struct problem, o), *d = p + offsetof(struct problem, d_qkv);
    enum { K_AT = 2 * OUT, V_AT = 2 * (OUT + KV * DIM) }; /* bytes */
    struct attention_args a = {.dtype = DTYPE_BF16, .kv_dtype = DTYPE_BF16, .n_batch = 1};
    a.n_query = a.n_key = SEQ, a.n_head = HEADS, a.n_kv_head = KV, a.head_dim = DIM;
    a.window = window, a.scale = 0.25, a.lse = p + offsetof(struct problem, lse);
    a.q = (struct heads){p, SEQ * ROW, ROW, DIM};
    a.k = (struct heads){p + K_AT, SEQ * ROW, ROW, DIM};
    a.v = (struct heads){p + V_AT, SEQ * ROW, ROW, DIM};
    a.o = (struct heads){o, SEQ * OUT, OUT, DIM};
    struct attention_bwd_args b = {.fwd = a, .d_o = a.o, .d_q = a.q, .d_k = a.q, .d_v = a.q};
    b.d_o.data = p + offsetof(struct problem, d_o);
    b.d_q.data = d, b.d_k.data = d + K_AT, b.d_v.data = d + V_AT;
    OK(be->attention(be, &a));
    OK(be->attention_bwd(be, &b));
    OK(be->download(be, STREAM_COMPUTE, out, p, (int64_t)sizeof *out));
    OK(be->sync(be, STREAM_COMPUTE));
    be->free(be, p);
}

static double error_of(const uint16_t *x, const uint16_t *truth, int64_t n, double *size) {
    double most = 0;
    *size = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)bf16_to_f32(x[i]) - (double)bf16_to_f32(truth[i]));
        most = e <= most ? most : e; /* a NaN stays */
        *size = fmax(*size, fabs((double)bf16_to_f32(truth[i])));
    }
    return most;
}

/* Twice what rounding alone did, and one unit in the last place. */
static void close_to(const char *what, const uint16_t *x, const uint16_t *u, const uint16_t *truth,
                     int64_t n) {
    double size, e = error_of(x, truth, n, &size), most = 2 * error_of(u, truth, n, &size);
    if (!(e <= most + 0x1p-8 * size))
        fail_msg("%s: error %g, allowed %g, largest value %g", what, e, most, size);
}

static void low_scores(void **state) {
    (void)state;
    /* 34: of 128 keys and tiles of 64 rows, the last tile that sees some has one row that does. */
    static const int64_t windows[] = {0, 34};
    fill(2, 4, -4, -2);
    for (int w = 0; w < 2; w++) {
        solve(oracle, windows[w], &want);
        solve(yardstick, windows[w], &unit);
        solve(cuda, windows[w], &got);
        for (int64_t i = 0; i < HEADS * SEQ; i++) {
            assert_true(want.lse[i] < -88);
            assert_true(fabs((double)(got.lse[i] - want.lse[i])) <= 1e-6 * fabs(want.lse[i]));
        }
        close_to("o", got.o, unit.o, want.o, SEQ * OUT);
        close_to("d_qkv", got.d_qkv, unit.d_qkv, want.d_qkv, SEQ * ROW);
    }
}

static bool is_nan(uint16_t v) {
    return isnan(bf16_to_f32(v));
}

/* A NaN in a key shows in the rows that see it, in every column, and nowhere else; one in a query
 * in its own row; one in d_o in the gradients of its row and of the keys that it sees. A NaN in a
 * value may reach the rows of its tile that do not see it (0 NaN is NaN), not another group. */
static void nan_spreads_as_far_as_sight(void **state) {
    (void)state;
    enum { BAD = 100, WINDOW = 50, Q_HEAD = 3, KV_HEAD = 1 };
    fill(-1, 1, -1, 1);
    const uint16_t nan = f32_to_bf16(NAN);
    uint16_t *at = &start.qkv[BAD * ROW + OUT + KV_HEAD * DIM + 5], kept = *at;
    *at = nan;
    solve(cuda, WINDOW, &got);
    *at = kept;
    for (int64_t i = 0; i < SEQ * OUT; i++) {
        int64_t t = i / OUT, head = i % OUT / DIM;
        bool sees = head / (HEADS / KV) == KV_HEAD && t >= BAD && t < BAD + WINDOW;
        assert_int_equal(is_nan(got.o[i]), sees);
    }
    at = &start.qkv[BAD * ROW + Q_HEAD * DIM], kept = *at;
    *at = nan;
    solve(cuda, WINDOW, &got);
    *at = kept;
    for (int64_t i = 0; i < SEQ * OUT; i++)
        assert_int_equal(is_nan(got.o[i]), i / OUT == BAD && i % OUT / DIM == Q_HEAD);

    at = &start.qkv[BAD * ROW + OUT + (KV + KV_HEAD) * DIM + 5], kept = *at;
    *at = nan;
    solve(cuda, WINDOW, &got);
    *at = kept;
    for (int64_t i = 0; i < SEQ * OUT; i++) {
        int64_t t = i / OUT, head = i % OUT / DIM;
        if (head / (HEADS / KV) != KV_HEAD)
            assert_false(is_nan(got.o[i]));
        else if (i % DIM == 5 && t >= BAD && t < BAD + WINDOW)
            assert_true(is_nan(got.o[i]));
    }
    start.d_o[BAD * OUT + Q_HEAD * DIM] = nan;
    solve(cuda, WINDOW, &got);
    for (int64_t t = BAD - WINDOW + 1; t <= BAD; t++)
        for (int64_t g = 0; g < KV; g++) {
            const uint16_t *d_k = &got.d_qkv[t * ROW + OUT + g * DIM], *d_v = d_k + KV * DIM;
            assert_int_equal(is_nan(d_k[0]), g == KV_HEAD);
            assert_int_equal(is_nan(d_v[0]), g == KV_HEAD);
        }
    for (int64_t h = 0; h < HEADS; h++)
        assert_int_equal(is_nan(got.d_qkv[BAD * ROW + h * DIM]), h == Q_HEAD);
}

/* The cache as decoding has it: [KV head][position][column]. */
static void alone_as_in_its_block(void **state) {
    (void)state;
    static uint16_t host[2 * KV * SEQ * DIM + 2 * OUT];
    enum { K_AT = 2 * OUT, V_AT = K_AT + KV * SEQ * DIM };
    static const int64_t positions[] = {0, 15, 16, 63, 64, 130, SEQ - 1};
    fill(-1, 1, -1, 1);
    solve(cuda, 0, &got);
    solve(oracle, 0, &want);
    solve(yardstick, 0, &unit);
    for (size_t n = 0; n < sizeof positions / sizeof *positions; n++) {
        int64_t t = positions[n];
        for (int64_t i = 0; i < OUT; i++)
            host[i] = start.qkv[t * ROW + i];
        for (int64_t i = 0; i < KV * SEQ * DIM; i++) {
            int64_t from = i / DIM % SEQ * ROW + OUT + i / (SEQ * DIM) * DIM + i % DIM;
            host[K_AT + i] = start.qkv[from];
            host[V_AT + i] = start.qkv[from + KV * DIM];
        }
        uint16_t *p;
        OK(cuda->alloc(cuda, (int64_t)sizeof host, "attention's test", (void **)&p));
        OK(cuda->upload(cuda, STREAM_COMPUTE, p, host, (int64_t)sizeof host));
        struct attention_args a = {.dtype = DTYPE_BF16, .kv_dtype = DTYPE_BF16, .n_batch = 1};
        a.n_query = 1, a.n_key = t + 1, a.q_first = t, a.n_head = HEADS, a.n_kv_head = KV;
        a.head_dim = DIM, a.scale = 0.25;
        a.q = (struct heads){p, OUT, OUT, DIM};
        a.o = (struct heads){p + OUT, OUT, OUT, DIM};
        a.k = (struct heads){p + K_AT, KV * SEQ * DIM, DIM, SEQ * DIM};
        a.v = (struct heads){p + V_AT, KV * SEQ * DIM, DIM, SEQ * DIM};
        OK(cuda->attention(cuda, &a));
        OK(cuda->download(cuda, STREAM_COMPUTE, host, p, (int64_t)sizeof host));
        OK(cuda->sync(cuda, STREAM_COMPUTE));
        cuda->free(cuda, p);
        close_to("alone", host + OUT, unit.o + t * OUT, want.o + t * OUT, OUT);
        close_to("in its block", got.o + t * OUT, unit.o + t * OUT, want.o + t * OUT, OUT);
    }
}

int main(void) {
    int closed = cuda_test_open(&cuda);
    if (closed)
        return closed;
    if (backend_open("cpu-ref", &oracle) != STATUS_OK ||
        op_yardstick_tensor_open(&yardstick) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(low_scores),
        cmocka_unit_test(nan_spreads_as_far_as_sight),
        cmocka_unit_test(alone_as_in_its_block),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend_close(cuda);
    backend_close(yardstick);
    backend_close(oracle);
    return failed;
}
