/* What adamw's value test cannot see, on every backend that opens here: a gradient that is not
 * finite changes nothing, clipping is scaling, and stochastic rounding gives the documented bits
 * everywhere, whose mean is the master weight. */
#include "core/memory.h"
#include "core/rng.h"
#include "kernels/backend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

enum { N = 4099, K = 3 };

struct buffers {
    uint16_t param[N];
    float master[N], m[N], v[N], grad[N];
    double squares[K];
};

/* One call with everything in memory of the backend. */
static void call(struct backend *be, struct adamw_args a, struct buffers *b) {
    struct {
        void *host;
        int64_t bytes;
        struct tensor *view;
        enum dtype dtype;
    } all[] = {{b->param, sizeof b->param, &a.param, DTYPE_BF16},
               {b->master, sizeof b->master, &a.master, DTYPE_F32},
               {b->m, sizeof b->m, &a.m, DTYPE_F32},
               {b->v, sizeof b->v, &a.v, DTYPE_F32},
               {b->grad, sizeof b->grad, &a.grad, DTYPE_F32},
               {b->squares, sizeof b->squares, &a.grad_square, DTYPE_F64}};
    void *device[6];
    for (int i = 0; i < 6; i++) {
        OK(be->alloc(be, all[i].bytes, "test", &device[i]));
        OK(be->upload(be, STREAM_COMPUTE, device[i], all[i].host, all[i].bytes));
        *all[i].view = tensor_1d(all[i].dtype, device[i], all[i].bytes / dtype_size(all[i].dtype));
    }
    OK(be->adamw(be, &a));
    for (int i = 0; i < 6; i++)
        OK(be->download(be, STREAM_COMPUTE, all[i].host, device[i], all[i].bytes));
    OK(be->sync(be, STREAM_COMPUTE));
    for (int i = 0; i < 6; i++)
        be->free(be, device[i]);
}

static void fill(struct buffers *b) {
    struct rng rng = rng_seed(5);
    for (int64_t i = 0; i < N; i++) {
        b->param[i] = 0x1234;
        b->master[i] = (float)rng_normal(&rng);
        b->m[i] = (float)rng_normal(&rng);
        b->v[i] = (float)rng_uniform(&rng);
        b->grad[i] = (float)rng_normal(&rng);
    }
    for (int k = 0; k < K; k++)
        b->squares[k] = 9;
}

static const struct adamw_args step = {.lr = 0.01,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .weight_decay = 0.1,
                                       .grad_scale = 0.5,
                                       .step = 2};

static void nothing_moves_when_not_finite(struct backend *be) {
    static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    static struct buffers before, after;
    for (int k = 0; k < K; k++) { /* of the latest step, or of one before it */
        fill(&before);
        before.squares[k] = bad[k];
        after = before;
        call(be, step, &after);
        assert_memory_equal(&before, &after, sizeof before);
    }
    fill(&before);
    after = before;
    call(be, step, &after);
    assert_memory_not_equal(before.master, after.master, sizeof before.master);
}

static void clipping_scales(struct backend *be) {
    static struct buffers clipped, scaled;
    struct adamw_args clip = step, scale = step;
    clip.clip = 1.5;
    for (int k = 0; k < 2; k++) {
        fill(&clipped);
        clipped.squares[0] = 1e6; /* of an earlier step: only the last one counts */
        clipped.squares[K - 1] = k ? 1 : 16;
        scaled = clipped;
        scale.grad_scale = k ? 0.5 : 0.5 * (1.5 / (4 + 1e-6));
        call(be, clip, &clipped);
        call(be, scale, &scaled);
        assert_memory_equal(&clipped, &scaled, sizeof clipped);
    }
}

/* The formula of kernels/backend.h, written out again. */
static uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}
static uint16_t rounded(float master, uint64_t seed, int64_t i) {
    uint32_t bits, r = mix(mix((uint32_t)i ^ (uint32_t)seed) ^ (uint32_t)(seed >> 32)) >> 16;
    memcpy(&bits, &master, sizeof bits);
    return (uint16_t)((bits + r) >> 16);
}

static void rounding_is_the_documented_one(struct backend *be) {
    static struct buffers b;
    struct adamw_args a = step;
    a.lr = 0; /* the masters stay, so that only the rounding shows */
    a.rounding_seed = 0x9e3779b97f4a7c15u;
    fill(&b);
    b.master[0] = (float)NAN;
    b.master[1] = 0x1.fffffep127f; /* to infinity, or not */
    b.master[2] = -0x1.fffffep127f;
    b.master[3] = 0x1p-140f;
    call(be, a, &b);
    int64_t moved = 0;
    assert_true(isnan(bf16_to_f32(b.param[0]))); /* which NaN is the device's choice */
    for (int64_t i = 1; i < N; i++) {
        if (b.param[i] != rounded(b.master[i], a.rounding_seed, i))
            fail_msg("%s: element %lld, %a -> %04x, expected %04x", be->name, (long long)i,
                     (double)b.master[i], b.param[i], rounded(b.master[i], a.rounding_seed, i));
        moved += b.param[i] != f32_to_bf16(b.master[i]);
    }
    assert_true(moved > N / 5 && moved < N / 3); /* a quarter is not rounded to the nearer one */
}

/* Every fraction of the way between two neighbours is met that often, whatever the seed. */
static void rounding_is_unbiased(struct backend *be) {
    static struct buffers b;
    struct adamw_args a = step;
    a.lr = 0;
    for (int f = 0; f < 8; f++) {
        double up = 0, expected = (f + 0.5) / 8, n = 0;
        for (uint64_t seed = 1; seed <= 5; seed++, n += N) {
            fill(&b);
            for (int64_t i = 0; i < N; i++)
                b.master[i] = (float)((i & 1 ? -1 : 1) * (1 + expected * 0x1p-7));
            a.rounding_seed = seed << 20 | seed;
            call(be, a, &b);
            for (int64_t i = 0; i < N; i++)
                up += (b.param[i] & 0x7fff) - 0x3f80;
        }
        double deviation = sqrt(n * expected * (1 - expected));
        if (!(fabs(up - n * expected) <= 4 * deviation))
            fail_msg("%s: fraction %g was rounded away from zero %g of %g times", be->name,
                     expected, up, n);
    }
}

static void every_backend(void **state) {
    static const struct {
        const char *name, *isa;
    } backends[] = {
        {"cpu-ref", "ref"}, {"cpu", "ref"}, {"cpu", "avx2"}, {"cpu", "avx512"}, {"cuda", "ref"}};
    void (*const *check)(struct backend *) = *state;
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        struct backend *be;
        setenv("REGROUP_ISA", backends[i].isa, 1);
        if (backend_open(backends[i].name, &be) != STATUS_OK) {
            print_message("%s: %s\n", backends[i].name, status_message());
            assert_string_equal(backends[i].name, "cuda"); /* not built in, or no device */
            continue;
        }
        (*check)(be);
        backend_close(be);
    }
    unsetenv("REGROUP_ISA");
}

int main(void) {
    static void (*checks[])(struct backend *) = {nothing_moves_when_not_finite, clipping_scales,
                                                 rounding_is_the_documented_one,
                                                 rounding_is_unbiased};
    const struct CMUnitTest tests[] = {
        {"nothing moves when not finite", every_backend, NULL, NULL, &checks[0]},
        {"clipping scales", every_backend, NULL, NULL, &checks[1]},
        {"rounding is the documented one", every_backend, NULL, NULL, &checks[2]},
        {"rounding is unbiased", every_backend, NULL, NULL, &checks[3]},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
