/* Window arithmetic with exact counts, standard errors by hand, sampling. No model needed. */
#include "eval/perplexity.h"
#include "eval/sample.h"
#include "eval/speed.h"

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

enum { MAX_TOKEN = 64 };

/* How often each token is predicted, over all windows, and by how much context at least. */
static void count_predictions(const struct window_plan *p, int *times, int64_t *context) {
    int32_t ids[MAX_TOKEN], inputs[MAX_TOKEN], targets[MAX_TOKEN];
    int64_t counted = 0;
    for (int32_t i = 0; i < MAX_TOKEN; i++) {
        ids[i] = 100 + i;
        times[i] = 0;
    }
    for (int64_t w = 0; w < p->n_window; w++) {
        window_plan_fill(p, w, ids, inputs, targets);
        for (int64_t i = 0; i < p->n_seq; i++) {
            if (targets[i] < 0)
                continue;
            int64_t t = targets[i] - 100;
            assert_in_range(t, 1, p->n_token - 1);
            if (i > 0 || p->bos < 0) /* the input is the token in front of the target */
                assert_int_equal(inputs[i], targets[i] - 1);
            times[t]++;
            context[t] = i + 1;
            counted++;
        }
    }
    assert_int_equal(counted, p->n_counted);
}

static void strided_counts_every_token_once(void **state) {
    (void)state;
    for (int64_t n = 2; n <= MAX_TOKEN; n++)
        for (int64_t window = 2; window <= 17; window++)
            for (int64_t stride = 1; stride < window; stride++) {
                struct window_plan p;
                int times[MAX_TOKEN];
                int64_t context[MAX_TOKEN] = {0};
                OK(window_plan_make(PROTOCOL_STRIDED, n, window, stride, -1, &p));
                count_predictions(&p, times, context);
                assert_int_equal(p.n_counted, n - 1);
                for (int64_t t = 1; t < n; t++) {
                    assert_int_equal(times[t], 1);
                    if (t >= window)
                        assert_true(context[t] >= window - stride);
                    else
                        assert_int_equal(context[t], t);
                }
            }
}

static void counts_are_exact(void **state) {
    (void)state;
    static const struct {
        enum protocol protocol;
        int64_t n_token, window, stride, n_window, n_counted;
    } cases[] = {
        /* GPT-2 on WikiText-2 in the HF guide: 287644 tokens, window 1024 */
        {PROTOCOL_STRIDED, 287644, 1024, 512, 561, 287643},
        /* no overlap: the first token of each window has no predecessor in it */
        {PROTOCOL_STRIDED, 287644, 1024, 1024, 281, 287644 - 281},
        {PROTOCOL_STRIDED, 100, 1024, 0, 1, 99},
        {PROTOCOL_STRIDED, 10, 4, 0, 4, 9}, /* stride 0: half a window */
        /* Llama-2 on WikiText-2 with seqlen 2048: 341469 tokens, 166 samples */
        {PROTOCOL_GPTQ, 341469, 2048, 0, 166, 166 * 2047},
        {PROTOCOL_GPTQ, 2048, 2048, 0, 1, 2047},
        /* llama.cpp: 655 chunks of 512 of the same text, 255 counted in each */
        {PROTOCOL_LLAMA_CPP, 335688, 512, 0, 655, 655 * 255},
        {PROTOCOL_LLAMA_CPP, 7, 3, 0, 2, 2},
        {PROTOCOL_LLAMA_CPP, 7, 5, 0, 1, 2},
        {PROTOCOL_ROWS, 16384, 256, 0, 64, 64 * 255},
        {PROTOCOL_ROWS, 16383, 256, 0, 63, 63 * 255},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct window_plan p;
        OK(window_plan_make(cases[i].protocol, cases[i].n_token, cases[i].window, cases[i].stride,
                            -1, &p));
        if (p.n_window != cases[i].n_window || p.n_counted != cases[i].n_counted)
            fail_msg("case %zu: %lld windows, %lld counted", i, (long long)p.n_window,
                     (long long)p.n_counted);
    }
}

static void llama_cpp_replaces_the_first_token(void **state) {
    (void)state;
    struct window_plan p;
    int32_t ids[8] = {10, 11, 12, 13, 14, 15, 16, 17}, inputs[4], targets[4];
    OK(window_plan_make(PROTOCOL_LLAMA_CPP, 8, 4, 0, 1, &p));
    window_plan_fill(&p, 1, ids, inputs, targets);
    int32_t want_inputs[4] = {1, 15, 16, 17}, want_targets[4] = {-1, -1, 17, -1};
    assert_memory_equal(inputs, want_inputs, sizeof inputs);
    assert_memory_equal(targets, want_targets, sizeof targets);
}

static void last_strided_window_is_padded(void **state) {
    (void)state;
    struct window_plan p;
    int32_t ids[7] = {10, 11, 12, 13, 14, 15, 16}, inputs[4], targets[4];
    OK(window_plan_make(PROTOCOL_STRIDED, 7, 4, 2, -1, &p));
    assert_int_equal(p.n_window, 3);
    window_plan_fill(&p, 2, ids, inputs, targets);
    int32_t want_inputs[4] = {14, 15, 16, 0}, want_targets[4] = {-1, 16, -1, -1};
    assert_memory_equal(inputs, want_inputs, sizeof inputs);
    assert_memory_equal(targets, want_targets, sizeof targets);
}

static void bad_plans_are_refused(void **state) {
    (void)state;
    struct window_plan p;
    assert_int_equal(window_plan_make(PROTOCOL_STRIDED, 9, 1, 1, -1, &p), STATUS_USAGE);
    assert_int_equal(window_plan_make(PROTOCOL_LLAMA_CPP, 9, 2, 0, -1, &p), STATUS_USAGE);
    assert_int_equal(window_plan_make(PROTOCOL_STRIDED, 9, 4, 5, -1, &p), STATUS_USAGE);
    assert_int_equal(window_plan_make(PROTOCOL_STRIDED, 1, 4, 2, -1, &p), STATUS_FAILED);
    assert_int_equal(window_plan_make(PROTOCOL_GPTQ, 9, 10, 0, -1, &p), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "9 tokens"));
    enum protocol protocol;
    assert_true(protocol_parse("llama.cpp", &protocol));
    assert_int_equal(protocol, PROTOCOL_LLAMA_CPP);
    assert_false(protocol_parse("lm-eval", &protocol));
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-12 * fabs(want)))
        fail_msg("got %.17g, expected %.17g", got, want);
}

static void standard_errors(void **state) {
    (void)state;
    /* tokens 1 2 | 3 6 | 5: mean 17/5, squares 75 */
    struct window_sum w[3] = {{2, 3, 5}, {2, 9, 45}, {1, 5, 25}};
    struct estimate e = estimate_from_windows(w, 3);
    near(e.mean, 3.4);
    near(e.se_iid, sqrt((75 - 5 * 3.4 * 3.4) / 4 / 5));
    double spread = 3.8 * 3.8 + 2.2 * 2.2 + 1.6 * 1.6;
    near(e.se, sqrt(spread * 3 / 2) / 5);
    /* one token per window: both are the textbook formula */
    struct window_sum one[4] = {{1, 1, 1}, {1, 2, 4}, {1, 4, 16}, {1, 9, 81}};
    e = estimate_from_windows(one, 4);
    near(e.se, e.se_iid);
    near(e.se, sqrt(38.0 / 3 / 4));
    e = estimate_from_windows(w, 1);
    assert_true(isnan(e.se) && !isnan(e.se_iid));
    w[1].sum = w[1].sum_squares = NAN;
    e = estimate_from_windows(w, 3);
    assert_true(isnan(e.mean) && isnan(e.se) && isnan(e.se_iid));
}

static void sampling(void **state) {
    (void)state;
    float logits[5] = {0, 2, 1, 2, -INFINITY}, scratch[5];
    struct rng rng = rng_seed(7);
    assert_int_equal(sample_argmax(logits, 5), 1);
    for (int i = 0; i < 10; i++)
        assert_int_equal(sample_logits(logits, 5, 0, 0, &rng, scratch), 1);
    int seen[5] = {0}, n = 200000;
    double total = 0, weight[5];
    for (int i = 0; i < 5; i++)
        total += weight[i] = exp((double)logits[i] / 2);
    for (int i = 0; i < n; i++)
        seen[sample_logits(logits, 5, 2, 0, &rng, scratch)]++;
    for (int i = 0; i < 5; i++) {
        double p = weight[i] / total, sigma = sqrt(p * (1 - p) / n);
        if (!(fabs((double)seen[i] / n - p) <= 5 * sigma))
            fail_msg("token %d: share %.5f, expected %.5f", i, (double)seen[i] / n, p);
    }
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 1000; i++)
        seen[sample_logits(logits, 5, 1, 2, &rng, scratch)]++;
    assert_int_equal(seen[1] + seen[3], 1000); /* top 2 */
    assert_true(seen[1] > 400 && seen[3] > 400);
    logits[2] = NAN;
    assert_int_equal(sample_logits(logits, 5, 1, 0, &rng, scratch), -1);
    assert_int_equal(sample_logits(logits, 5, 0, 0, &rng, scratch), -1);
}

static void unfinished_characters_wait(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        int64_t ready;
    } cases[] = {
        {"abc", 3},          {"ab\xc3", 2},           {"\xc3\xa9", 2},         {"x\xe2\x82", 1},
        {"\xe2\x82\xac", 3}, {"y\xf0\x9f\x98", 1},    {"\xf0\x9f\x98\x80", 4}, {"\xf0", 0},
        {"a\x80", 2},        {"\x80\x80\x80\x80", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (utf8_ready(cases[i].bytes, (int64_t)strlen(cases[i].bytes)) != cases[i].ready)
            fail_msg("case %zu", i);
}

static void spreads(void **state) {
    (void)state;
    double odd[3] = {3, 1, 2}, even[4] = {4, 1, 3, 2};
    struct spread s = spread_of(odd, 3);
    assert_true(s.median == 2 && s.min == 1 && s.max == 3);
    s = spread_of(even, 4);
    assert_true(s.median == 2.5 && s.min == 1 && s.max == 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strided_counts_every_token_once),
        cmocka_unit_test(counts_are_exact),
        cmocka_unit_test(llama_cpp_replaces_the_first_token),
        cmocka_unit_test(last_strided_window_is_padded),
        cmocka_unit_test(bad_plans_are_refused),
        cmocka_unit_test(standard_errors),
        cmocka_unit_test(sampling),
        cmocka_unit_test(unfinished_characters_wait),
        cmocka_unit_test(spreads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
