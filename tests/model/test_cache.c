/* Decoding through the cache equals the forward without one, in any split into steps; the cache's
 * allocation is the formula; steady steps allocate nothing. */
#include "core/rng.h"
#include "model/model.h"

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

enum { BATCH = 2, SEQ = 41, VOCAB = 50, WIDTH = 64 };

static struct model_config config_of(int32_t n_kv, int64_t window) {
    struct model_config c = {.family = "llama",
                             .n_vocab = VOCAB,
                             .n_layer = 2,
                             .width = WIDTH,
                             .n_head = 4,
                             .head_dim = 16,
                             .n_ff = 96,
                             .max_position = 64,
                             .norm_eps = 1e-5,
                             .rope_theta = 10000,
                             .sliding_window = window,
                             .bos_id = -1,
                             .eos_id = -1,
                             .dtype = DTYPE_F32};
    c.n_kv_head[0] = n_kv;
    c.n_kv_head[1] = n_kv;
    return c;
}

static struct model *random_model(struct backend *be, const struct model_config *c,
                                  enum dtype dtype) {
    struct model *m;
    OK(model_new(c, be, dtype, 5, &m));
    float *w;
    struct rng r = rng_seed(9);
    OK(memory_alloc(m->n_param, 4, "test", &w));
    for (int64_t i = 0; i < m->n_param; i++)
        w[i] = (float)(0.2 * rng_normal(&r));
    dtype_convert(w, DTYPE_F32, m->data, dtype, m->n_param);
    memory_free(w);
    return m;
}

static void compare(const char *backend, enum dtype dtype, int32_t n_kv, int64_t window,
                    double tolerance) {
    struct backend *be;
    OK(backend_open(backend, &be));
    struct model_config c = config_of(n_kv, window);
    struct model *m = random_model(be, &c, dtype);
    struct acts *a;
    struct kv_cache *cache;
    static int32_t ids[BATCH * SEQ], part[BATCH * SEQ];
    static float whole[BATCH][SEQ][VOCAB], logits[BATCH * SEQ][VOCAB];
    for (int i = 0; i < BATCH * SEQ; i++)
        ids[i] = (i * 31 + 7) % VOCAB;
    OK(acts_open(m, ACTS_INFER, BATCH, SEQ, &a));
    OK(model_forward(m, a, NULL, ids, BATCH, SEQ));
    OK(model_logits(m, a, 0, BATCH * SEQ, tensor_2d(DTYPE_F32, whole, BATCH * SEQ, VOCAB)));
    OK(kv_cache_open(m, BATCH, SEQ, dtype, &cache));
    assert_int_equal(cache->n_byte, kv_cache_bytes(&c, BATCH, SEQ, dtype));
    assert_int_equal(cache->n_byte, BATCH * SEQ * model_kv_bytes_per_token(&c, dtype));
    assert_int_equal(cache->n_byte, 2 * 2 * n_kv * 16 * BATCH * SEQ * dtype_size(dtype));
    static const int steps[] = {13, 1, 1, 7, 1, 16, 1, 1};
    int at = 0;
    int64_t allocations = 0;
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        int n = steps[s];
        for (int b = 0; b < BATCH; b++)
            memcpy(part + b * n, ids + b * SEQ + at, (size_t)n * sizeof *part);
        if (s == 7)
            allocations = memory_alloc_count();
        OK(model_forward(m, a, cache, part, BATCH, n));
        OK(model_logits(m, a, 0, BATCH * n, tensor_2d(DTYPE_F32, logits, BATCH * n, VOCAB)));
        if (s == 7)
            assert_int_equal(memory_alloc_count(), allocations);
        for (int b = 0; b < BATCH; b++)
            for (int t = 0; t < n; t++)
                for (int v = 0; v < VOCAB; v++) {
                    double x = logits[b * n + t][v], y = whole[b][at + t][v];
                    if (!(fabs(x - y) <= tolerance))
                        fail_msg("%s %s kv %d: position %d token %d: cached %g, uncached %g",
                                 backend, dtype_name(dtype), n_kv, at + t, v, x, y);
                }
        at += n;
    }
    assert_int_equal(at, SEQ);
    assert_int_equal(cache->length, SEQ);
    assert_int_equal(model_forward(m, a, cache, part, BATCH, 1), STATUS_FAILED); /* it is full */
    kv_cache_close(cache);
    acts_close(a);
    model_close(m);
    backend_close(be);
}

static void cached_equals_uncached(void **state) {
    (void)state;
    static const int32_t n_kv[] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        compare("cpu-ref", DTYPE_F32, n_kv[i], 0, 1e-4);
        compare("cpu", DTYPE_F32, n_kv[i], 0, 1e-4);
        compare("cpu", DTYPE_F32, n_kv[i], 9, 1e-4);
        compare("cpu", DTYPE_BF16, n_kv[i], 0, 0.25); /* logits of order 10: a few bf16 steps */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cached_equals_uncached)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
