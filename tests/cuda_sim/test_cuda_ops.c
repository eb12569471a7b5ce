/* Every declared op on the cuda backend, simulated or real: value against cpu-ref in F64 with the
 * yardstick's rule, same bits whatever the order of threads, no allocation once warm, NaN not
 * hidden. With arguments: only ops whose name begins with one of them. */
#include "core/memory.h"
#include "core/rng.h"
#include "op_checks.h"
#include "tests/cuda_sim/cuda_test.h"
#ifdef REGROUP_CUDA_SIM
#include "cuda_sim.h"
#endif

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct backend *oracle, *yardstick, *cuda;
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};
static char **wanted; /* NULL-terminated */

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

/* On the real device there is nothing to draw, and its allocations cannot be counted. */
static void draw_order(uint64_t seed) {
#ifdef REGROUP_CUDA_SIM
    cuda_sim_seed(seed);
#else
    (void)seed;
#endif
}
static int64_t allocations(void) {
#ifdef REGROUP_CUDA_SIM
    return memory_alloc_count() + cuda_sim_malloc_count();
#else
    return memory_alloc_count();
#endif
}

/* The next declared case that is tested here, from *k on. */
static bool next_case(int64_t *k, struct op_case *c) {
    while (op_case_get((*k)++, c)) {
        bool want = !*wanted;
        for (char **w = wanted; *w; w++)
            want |= !strncmp(c->op, *w, strlen(*w));
        if (want && !c->bench)
            return true;
    }
    return false;
}

static void values_match_the_oracle(void **state) {
    (void)state;
    int bad = 0, compared = 0;
    struct op_case c;
    for (int64_t k = 0; next_case(&k, &c);)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++, compared++) {
            struct op_values in, truth, unit, got, again;
            struct op_values *all[] = {&in, &truth, &unit, &got, &again};
            struct op_instance x;
            for (int i = 0; i < 5; i++)
                OK(op_values_open(&c, all[i]));
            OK(op_inputs(oracle, &c, dtypes[d], &in));
            op_values_copy(&c, &truth, &in);
            op_values_copy(&c, &unit, &in);
            OK(op_call(oracle, &c, DTYPE_F64, c.run, &truth));
            OK(op_call(yardstick, &c, dtypes[d], c.run, &unit));

            OK(op_instance_open(cuda, &c, dtypes[d], &x));
            draw_order(1);
            OK(op_instance_write(&x, &in));
            OK(c.run(cuda, &c, dtypes[d], x.data));
            OK(op_instance_read(&x, &got));
            bad += op_compare(&c, dtypes[d], "cuda", &got, &unit, &truth);

            draw_order(2);
            OK(op_instance_write(&x, &in));
            int64_t before = allocations();
            OK(c.run(cuda, &c, dtypes[d], x.data));
            int64_t made = allocations() - before;
            OK(op_instance_read(&x, &again));
            int differing = op_differing(&c, &got, &again);
            if (made || differing)
                print_error("%s %s %s: the second run made %lld allocations, %d results differ\n",
                            c.op, c.shape, dtype_name(dtypes[d]), (long long)made, differing);
            bad += made || differing;
            op_instance_close(&x);
            for (int i = 0; i < 5; i++)
                op_values_close(all[i]);
        }
    assert_true(compared > (*wanted ? 0 : 150));
    assert_int_equal(bad, 0);
}

/* One NaN in each input in turn: where the reference's result is NaN, so is ours. */
static void nan_is_not_hidden(void **state) {
    (void)state;
    int bad = 0;
    int64_t seen = 0;
    struct rng rng = rng_seed(3);
    struct op_case c;
    for (int64_t k = 0; next_case(&k, &c);)
        for (int p = 0; p < c.n_buffer; p++) {
            if (!op_buffer_takes_nan(&c.buffer[p]))
                continue;
            struct op_values in, want, got;
            enum dtype dtype = dtypes[k % 2];
            OK(op_values_open(&c, &in));
            OK(op_values_open(&c, &want));
            OK(op_values_open(&c, &got));
            OK(op_inputs(oracle, &c, dtype, &in));
            in.v[p][rng_below(&rng, c.buffer[p].count)] = (double)NAN;
            op_values_copy(&c, &want, &in);
            op_values_copy(&c, &got, &in);
            OK(op_call(oracle, &c, dtype, c.run, &want));
            OK(op_call(cuda, &c, dtype, c.run, &got));
            bad += op_hidden_nans(&c, dtype, "cuda", &c.buffer[p], &want, &got, &seen);
            op_values_close(&in);
            op_values_close(&want);
            op_values_close(&got);
        }
    assert_true(seen > (*wanted ? 0 : 1000));
    assert_int_equal(bad, 0);
}

int main(int argc, char **argv) {
    (void)argc;
    wanted = argv + 1;
    int closed = cuda_test_open(&cuda);
    if (closed)
        return closed;
    if (backend_open("cpu-ref", &oracle) != STATUS_OK ||
        op_yardstick_tensor_open(&yardstick) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        return 1;
    }
    print_message("%s\n", cuda->detail);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_match_the_oracle),
        cmocka_unit_test(nan_is_not_hidden),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend_close(cuda);
    backend_close(yardstick);
    backend_close(oracle);
    return failed;
}
