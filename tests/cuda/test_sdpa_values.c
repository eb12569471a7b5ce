/* What sdpa_cudnn.c computes, op by op on the host (cudnn_on_host.c), against the reference: the
 * graphs mean attention and its gradient, operands and slices lie where they should. And what it
 * decides: which calls it takes, that plans are made once, that everything is given back. */
#include "cudnn_on_host.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/sdpa_cudnn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

/* ---- what sdpa_cudnn.c and the reference stand on ---- */

static struct cuda_state cuda;
static struct backend be, ref;
static size_t device_memory;
static int64_t n_growth;

enum status cuda_fail(const char *what, cudaError_t error) {
    return status_fail(STATUS_FAILED, "cuda: %s: %d", what, (int)error);
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = *total = device_memory;
    return cudaSuccess;
}
enum status cuda_scratch(struct backend *b, enum cuda_scratch_use use, int64_t bytes, void *out) {
    struct cuda_state *s = cuda_state_of(b);
    if (bytes > s->scratch_bytes[use]) {
        free(s->scratch[use]);
        s->scratch[use] = malloc((size_t)bytes);
        s->scratch_bytes[use] = bytes;
        n_growth++;
    }
    memset(s->scratch[use], 0xff, (size_t)bytes);
    *(void **)out = s->scratch[use];
    return STATUS_OK;
}
enum status cpu_scratch(struct backend *b, enum cpu_scratch_use use, int64_t bytes, void *out) {
    static double room[1 << 16];
    (void)b, (void)use;
    assert_true(bytes <= (int64_t)sizeof room);
    *(void **)out = room;
    return STATUS_OK;
}

static void close_all(void) {
    if (cuda.sdpa)
        cuda.sdpa_close(cuda.sdpa);
    for (int i = 0; i < CUDA_SCRATCH_COUNT; i++)
        free(cuda.scratch[i]);
    assert_int_equal(cudnn_on_host.n_live, 0);
}

static int setup(void **state) {
    (void)state;
    cudnn_on_host = (struct cudnn_on_host){.workspace = 1000};
    cuda = (struct cuda_state){.sm = 90};
    device_memory = (size_t)1 << 36;
    n_growth = 0;
    be = (struct backend){.state = &cuda};
    ref_fill_attention(&ref);
    return 0;
}
static int teardown(void **state) {
    (void)state;
    close_all();
    return 0;
}

/* ---- a call with its memory ---- */

enum { ROOM = 1 << 18 };
_Alignas(64) static uint16_t qkv[ROOM], o[ROOM], d_o[ROOM], d_qkv[ROOM];
static float lse[ROOM];

static void fill(uint16_t *x, uint64_t seed) {
    for (int64_t i = 0; i < ROOM; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = f32_to_bf16((float)(seed >> 40) / (1 << 23) - 1);
    }
}

/* q, k and v side by side in a row, as the model's packed projection leaves them. */
static struct attention_bwd_args call(int64_t n_batch, int64_t n_head, int64_t n_kv_head,
                                      int64_t n_seq, int64_t head_dim) {
    int64_t row = (n_head + 2 * n_kv_head) * head_dim, n = n_head * head_dim,
            kv = n_kv_head * head_dim;
    assert_true(n_batch * n_seq * row <= ROOM);
    struct heads packed = {qkv, n_seq * row, row, head_dim}, alone = {o, n_seq * n, n, head_dim};
    struct attention_bwd_args a = {.fwd = {.dtype = DTYPE_BF16,
                                           .kv_dtype = DTYPE_BF16,
                                           .n_batch = n_batch,
                                           .n_query = n_seq,
                                           .n_key = n_seq,
                                           .n_head = n_head,
                                           .n_kv_head = n_kv_head,
                                           .head_dim = head_dim,
                                           .scale = 1.5 / sqrt((double)head_dim),
                                           .q = packed,
                                           .k = packed,
                                           .v = packed,
                                           .o = alone,
                                           .lse = lse},
                                   .d_o = alone,
                                   .d_q = packed,
                                   .d_k = packed,
                                   .d_v = packed};
    a.fwd.k.data = qkv + n;
    a.fwd.v.data = qkv + n + kv;
    a.d_o.data = d_o;
    a.d_q.data = d_qkv;
    a.d_k.data = d_qkv + n;
    a.d_v.data = d_qkv + n + kv;
    fill(qkv, 1), fill(d_o, 2);
    memset(o, 0xff, sizeof o), memset(d_qkv, 0xff, sizeof d_qkv), memset(lse, 0xff, sizeof lse);
    return a;
}

/* Both sides compute in double and round once, so they may differ by one rounding: by more than
 * that only in how the sums were ordered. */
static void same_bf16(const uint16_t *got, const uint16_t *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++) {
        float g = bf16_to_f32(got[i]), w = bf16_to_f32(want[i]);
        if (!(fabsf(g - w) <= fabsf(w) / 128 + 1e-6f) && !(isnan(g) && isnan(w)))
            fail_msg("%s[%d] is %g, expected %g", what, (int)i, (double)g, (double)w);
    }
}

static void same_f32(const float *got, const float *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-6f * (1 + fabsf(want[i]))))
            fail_msg("%s[%d] is %g, expected %g", what, (int)i, (double)got[i], (double)want[i]);
}

static void check_forward(int64_t n_batch, int64_t n_head, int64_t n_kv_head, int64_t n_seq,
                          int64_t head_dim) {
    static uint16_t want_o[ROOM];
    static float want_lse[ROOM];
    struct attention_bwd_args a = call(n_batch, n_head, n_kv_head, n_seq, head_dim);
    OK(ref.attention(&ref, &a.fwd));
    memcpy(want_o, o, sizeof o), memcpy(want_lse, lse, sizeof lse);
    for (int keep = 0; keep < 2; keep++) {
        a = call(n_batch, n_head, n_kv_head, n_seq, head_dim);
        if (!keep)
            a.fwd.lse = NULL;
        assert_true(sdpa_cudnn_can(&be, &a.fwd, false));
        OK(sdpa_cudnn_forward(&be, &a.fwd));
        same_bf16(o, want_o, n_batch * n_seq * n_head * head_dim, "o");
        if (keep)
            same_f32(lse, want_lse, n_batch * n_head * n_seq, "lse");
    }
}

static void compare_backward(const struct attention_bwd_args *call) {
    static uint16_t want[ROOM];
    struct attention_bwd_args a = *call;
    OK(ref.attention(&ref, &a.fwd));
    OK(ref.attention_bwd(&ref, &a));
    memcpy(want, d_qkv, sizeof want);
    memset(d_qkv, 0xff, sizeof d_qkv);
    assert_true(sdpa_cudnn_can(&be, &a.fwd, true));
    OK(sdpa_cudnn_backward(&be, &a));
    same_bf16(d_qkv, want, ROOM, "d_qkv"); /* and nothing written past its end */
}

static void check_backward(int64_t n_batch, int64_t n_head, int64_t n_kv_head, int64_t n_seq,
                           int64_t head_dim) {
    struct attention_bwd_args a = call(n_batch, n_head, n_kv_head, n_seq, head_dim);
    compare_backward(&a);
}

static void test_forward(void **state) {
    (void)state;
    check_forward(2, 4, 4, 20, 16);
    check_forward(2, 4, 2, 33, 8);
    check_forward(1, 6, 1, 128, 24);
}

static void test_backward(void **state) {
    (void)state;
    check_backward(2, 4, 4, 128, 8);
    check_backward(2, 4, 2, 128, 16);
    check_backward(1, 6, 1, 256, 8);
}

/* Every score near -120, so that lse < -88 and exp(0 - lse) is no float. */
static void test_very_negative_scores(void **state) {
    (void)state;
    struct attention_bwd_args a = call(1, 4, 2, 128, 8);
    for (int64_t t = 0; t < 128; t++)
        for (int64_t h = 0; h < 6; h++) /* first dimension of each q and k head */
            qkv[t * a.fwd.q.row + h * 8] = f32_to_bf16(h < 4 ? 1 : (float)(-120 / a.fwd.scale));
    compare_backward(&a);
    for (int64_t i = 0; i < 4 * 128; i++)
        assert_true(lse[i] < -88);
}

/* ---- slices ---- */

/* Bytes of one query head of backward, as a share of the device. */
static void limit_heads(int64_t n, int64_t n_seq, int64_t head_dim) {
    device_memory = (size_t)(n * n_seq * (n_seq + 2 * head_dim) * 2 * 32);
}

static void test_slices_of_the_batch(void **state) {
    (void)state;
    limit_heads(2 * 4, 128, 8); /* two sequences of three would fit, but do not divide them */
    check_backward(3, 4, 2, 128, 8);
    assert_int_equal(cudnn_on_host.n_run, 3);
}

static void test_slices_of_the_heads(void **state) {
    (void)state;
    limit_heads(3, 128, 8); /* a KV head with its two query heads */
    check_backward(2, 8, 4, 128, 8);
    assert_int_equal(cudnn_on_host.n_run, 8);
    assert_int_equal(cudnn_on_host.n_plan, 1);
}

static void test_too_long_for_the_workspace(void **state) {
    (void)state;
    limit_heads(1, 128, 8);
    struct attention_bwd_args a = call(1, 4, 2, 128, 8);
    assert_false(sdpa_cudnn_can(&be, &a.fwd, true));
    assert_true(sdpa_cudnn_can(&be, &a.fwd, false)); /* forward stores no scores */
}

/* ---- decisions ---- */

static void test_which_lengths(void **state) {
    (void)state;
    /* n_seq % 128 == 64 is where cuDNN's backward is known to give NaN. */
    const struct {
        int64_t n_seq;
        bool forward, backward;
    } rows[] = {{1, false, false},   {64, true, false},  {128, true, true},   {192, true, false},
                {1000, true, false}, {1024, true, true}, {1088, true, false}, {4096, true, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct attention_bwd_args a = call(1, 4, 2, 8, 8);
        a.fwd.n_query = a.fwd.n_key = rows[i].n_seq;
        assert_int_equal(sdpa_cudnn_can(&be, &a.fwd, false), rows[i].forward);
        assert_int_equal(sdpa_cudnn_can(&be, &a.fwd, true), rows[i].backward);
    }
    assert_int_equal(cudnn_on_host.n_run, 0);
}

static void test_which_calls(void **state) {
    (void)state;
    struct attention_bwd_args good = call(2, 4, 2, 128, 16), a = good;
    assert_true(sdpa_cudnn_can(&be, &a.fwd, true));
#define REFUSED(change)                                                                            \
    do {                                                                                           \
        a = good;                                                                                  \
        change;                                                                                    \
        assert_false(sdpa_cudnn_can(&be, &a.fwd, false));                                          \
        assert_int_not_equal(sdpa_cudnn_forward(&be, &a.fwd), STATUS_OK);                          \
    } while (0)
    REFUSED(a.fwd.dtype = DTYPE_F32);
    REFUSED(a.fwd.kv_dtype = DTYPE_F32);
    REFUSED(a.fwd.window = 64);
    REFUSED(a.fwd.q_first = 128; a.fwd.n_key = 256);
    REFUSED(a.fwd.n_query = 1);
    REFUSED(a.fwd.head_dim = 264);
    REFUSED(a.fwd.k.row += 1);
    REFUSED(a.fwd.v.head = 12);
    REFUSED(a.fwd.q.data = qkv + 4);
    REFUSED(cudnn_on_host.no_engine = true; a.fwd.n_batch = 1);
    cudnn_on_host.no_engine = false;
    REFUSED(cudnn_on_host.non_deterministic = true; a.fwd.n_head = 8);
    cudnn_on_host.non_deterministic = false;
    a = good;
    a.fwd.window = 128; /* covers everything */
    assert_true(sdpa_cudnn_can(&be, &a.fwd, true));
    a.d_k.row += 1;
    assert_int_not_equal(sdpa_cudnn_backward(&be, &a), STATUS_OK);
    cuda.sm = 100;
    assert_false(sdpa_cudnn_can(&be, &good.fwd, true));
    assert_true(sdpa_cudnn_can(&be, &good.fwd, false));
    assert_int_equal(cudnn_on_host.n_run, 0);
}

static void test_library_missing(void **state) {
    (void)state;
    struct attention_bwd_args a = call(1, 4, 2, 128, 8);
    cudnn_on_host.missing = true;
    assert_false(sdpa_cudnn_can(&be, &a.fwd, false));
    assert_non_null(strstr(status_message(), "not on the host"));
}

/* ---- plans ---- */

static void test_warm_calls_make_nothing(void **state) {
    (void)state;
    struct attention_bwd_args a = call(1, 2, 1, 128, 8);
    OK(sdpa_cudnn_forward(&be, &a.fwd));
    OK(sdpa_cudnn_backward(&be, &a));
    int64_t n_plan = cudnn_on_host.n_plan, n_live = cudnn_on_host.n_live, grown = n_growth;
    for (int i = 0; i < 2; i++) {
        OK(sdpa_cudnn_forward(&be, &a.fwd));
        OK(sdpa_cudnn_backward(&be, &a));
    }
    assert_int_equal(cudnn_on_host.n_plan, n_plan);
    assert_int_equal(cudnn_on_host.n_live, n_live);
    assert_int_equal(n_growth, grown);
}

static void test_plans_are_bounded(void **state) {
    (void)state;
    struct attention_bwd_args a = call(1, 2, 1, 2, 8);
    int64_t n = 0;
    while (n < 1000 && sdpa_cudnn_can(&be, &a.fwd, false))
        n++, a.fwd.n_query++, a.fwd.n_key++;
    assert_int_equal(n, 64);
    assert_int_equal(cudnn_on_host.n_plan, 64);
    a.fwd.n_query = a.fwd.n_key = 2; /* those there are still serve */
    assert_true(sdpa_cudnn_can(&be, &a.fwd, false));
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_forward),
        TEST(test_backward),
        TEST(test_very_negative_scores),
        TEST(test_slices_of_the_batch),
        TEST(test_slices_of_the_heads),
        TEST(test_too_long_for_the_workspace),
        TEST(test_which_lengths),
        TEST(test_which_calls),
        TEST(test_library_missing),
        TEST(test_warm_calls_make_nothing),
        TEST(test_plans_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
