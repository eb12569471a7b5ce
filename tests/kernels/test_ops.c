/* Every declared op: value against cpu-ref in F64 on every backend, instruction set and dtype;
 * gradient of cpu-ref against finite differences; same inputs, same bits; no allocation once
 * warm; NaN in, NaN out. */
#include "core/memory.h"
#include "core/rng.h"
#include "op_checks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const isas[] = {"ref", "avx2", "avx512"};
enum { N_ISA = sizeof isas / sizeof *isas };
static struct backend *oracle, *yardstick, *cpu[N_ISA]; /* cpu[i]: at most that instruction set */
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

static int open_backends(void **state) {
    (void)state;
    OK(backend_open("cpu-ref", &oracle));
    OK(op_yardstick_open(&yardstick));
    for (int i = 0; i < N_ISA; i++) {
        setenv("REGROUP_ISA", isas[i], 1);
        OK(backend_open("cpu", &cpu[i]));
        print_message("%s: %s\n", isas[i], cpu[i]->detail);
    }
    unsetenv("REGROUP_ISA");
    return 0;
}

static int close_backends(void **state) {
    (void)state;
    backend_close(oracle);
    backend_close(yardstick);
    for (int i = 0; i < N_ISA; i++)
        backend_close(cpu[i]);
    return 0;
}

static void values_match_the_oracle(void **state) {
    (void)state;
    int bad = 0, compared = 0;
    struct op_case c;
    for (int64_t k = 0; op_case_get(k, &c); k++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes && !c.bench; d++) {
            struct op_values in, truth, unit, got;
            OK(op_values_open(&c, &in));
            OK(op_values_open(&c, &truth));
            OK(op_values_open(&c, &unit));
            OK(op_values_open(&c, &got));
            OK(op_inputs(oracle, &c, dtypes[d], &in));
            op_values_copy(&c, &truth, &in);
            op_values_copy(&c, &unit, &in);
            OK(op_call(oracle, &c, DTYPE_F64, c.run, &truth));
            OK(op_call(yardstick, &c, dtypes[d], c.run, &unit));
            for (int i = 0; i < N_ISA; i++, compared++) {
                op_values_copy(&c, &got, &in);
                OK(op_call(cpu[i], &c, dtypes[d], c.run, &got));
                bad += op_compare(&c, dtypes[d], isas[i], &got, &unit, &truth);
            }
            op_values_close(&in);
            op_values_close(&truth);
            op_values_close(&unit);
            op_values_close(&got);
        }
    assert_true(compared > 300);
    assert_int_equal(bad, 0);
}

/* cpu in F64 is the reference itself. */
static void double_precision_is_exact(void **state) {
    (void)state;
    struct op_case c;
    for (int64_t k = 0; op_case_get(k, &c); k++) {
        if (c.bench)
            continue;
        struct op_values a, b;
        OK(op_values_open(&c, &a));
        OK(op_values_open(&c, &b));
        OK(op_inputs(oracle, &c, DTYPE_F64, &a));
        op_values_copy(&c, &b, &a);
        OK(op_call(oracle, &c, DTYPE_F64, c.run, &a));
        OK(op_call(cpu[N_ISA - 1], &c, DTYPE_F64, c.run, &b));
        assert_int_equal(op_differing(&c, &a, &b), 0);
        op_values_close(&a);
        op_values_close(&b);
    }
}

static double loss(const struct op_case *c, struct op_instance *x, const struct op_values *in,
                   struct op_values *out) {
    double sum = 0;
    OK(op_instance_write(x, in));
    OK(c->forward(x->be, c, DTYPE_F64, x->data));
    OK(op_instance_read(x, out));
    for (int i = 0; i < c->n_buffer; i++) {
        int64_t of = op_buffer_find(c, c->buffer[i].seed_of);
        for (int64_t j = 0; of >= 0 && j < c->buffer[i].count; j++)
            sum += in->v[i][j] * out->v[of][j];
    }
    return sum;
}

/* Fourth-order central differences at some elements of every differentiated buffer. */
static int check_gradient(const struct op_case *c) {
    const double h = 1e-3;
    struct op_values in, out, scrap;
    struct op_instance x;
    struct rng rng = rng_seed(11);
    int bad = 0, checked = 0, samples = c->flop > 1e7 ? 3 : 12;
    OK(op_values_open(c, &in));
    OK(op_values_open(c, &out));
    OK(op_values_open(c, &scrap));
    OK(op_instance_open(oracle, c, DTYPE_F64, &x));
    OK(op_inputs(oracle, c, DTYPE_F64, &in));
    op_values_copy(c, &out, &in);
    OK(op_call(oracle, c, DTYPE_F64, c->run, &out));
    for (int i = 0; i < c->n_buffer; i++) {
        const struct op_buffer *b = &c->buffer[i];
        int64_t of = op_buffer_find(c, b->grad_of);
        double size = 0;
        for (int64_t j = 0; of >= 0 && j < b->count; j++)
            size = fmax(size, fabs(out.v[i][j]));
        for (int n = 0; of >= 0 && n < samples; n++, checked++) {
            int64_t j = rng_below(&rng, b->count);
            double at = in.v[of][j], side[4];
            for (int s = 0; s < 4; s++) {
                in.v[of][j] = at + h * (double[]){-2, -1, 1, 2}[s];
                side[s] = loss(c, &x, &in, &scrap);
            }
            in.v[of][j] = at;
            double want = (8 * (side[2] - side[1]) - (side[3] - side[0])) / (12 * h);
            double got = out.v[i][j] - (b->role == ROLE_INOUT ? in.v[i][j] : 0);
            if (!(fabs(got - want) <= 1e-7 * (1 + size))) {
                print_error("%s %s, %s[%lld]: %.12g, by differences %.12g\n", c->op, c->shape,
                            b->name, (long long)j, got, want);
                bad++;
            }
        }
    }
    assert_true(checked > 0);
    op_instance_close(&x);
    op_values_close(&in);
    op_values_close(&out);
    op_values_close(&scrap);
    return bad;
}

static void gradients_match_finite_differences(void **state) {
    (void)state;
    int bad = 0, cases = 0;
    struct op_case c;
    for (int64_t k = 0; op_case_get(k, &c); k++)
        if (c.forward && !c.bench) {
            bad += check_gradient(&c);
            cases++;
        }
    assert_true(cases > 15);
    assert_int_equal(bad, 0);
}

static void same_bits_and_no_allocation(void **state) {
    (void)state;
    struct op_case c;
    for (int64_t k = 0; op_case_get(k, &c); k++)
        for (int n = 0; n < 2 * N_ISA && !c.bench; n++) {
            enum dtype dtype = dtypes[n % 2];
            struct backend *be = cpu[n / 2];
            struct op_values in, first, second;
            struct op_instance x;
            OK(op_values_open(&c, &in));
            OK(op_values_open(&c, &first));
            OK(op_values_open(&c, &second));
            OK(op_instance_open(be, &c, dtype, &x));
            OK(op_inputs(oracle, &c, dtype, &in));
            OK(op_instance_write(&x, &in));
            OK(c.run(be, &c, dtype, x.data));
            OK(op_instance_read(&x, &first));
            OK(op_instance_write(&x, &in));
            int64_t before = memory_alloc_count();
            OK(c.run(be, &c, dtype, x.data));
            assert_int_equal(memory_alloc_count(), before);
            OK(op_instance_read(&x, &second));
            assert_int_equal(op_differing(&c, &first, &second), 0);
            op_instance_close(&x);
            op_values_close(&in);
            op_values_close(&first);
            op_values_close(&second);
        }
}

/* One NaN in each input in turn: where the reference's result is NaN, so is ours. */
static void nan_is_not_hidden(void **state) {
    (void)state;
    int bad = 0;
    int64_t seen = 0;
    struct rng rng = rng_seed(3);
    struct op_case c;
    for (int64_t k = 0; op_case_get(k, &c); k++)
        for (int p = 0; p < c.n_buffer && !c.bench; p++) {
            const struct op_buffer *poisoned = &c.buffer[p];
            if (!op_buffer_takes_nan(poisoned))
                continue;
            struct op_values in, want, got;
            enum dtype dtype = dtypes[k % 2];
            OK(op_values_open(&c, &in));
            OK(op_values_open(&c, &want));
            OK(op_values_open(&c, &got));
            OK(op_inputs(oracle, &c, dtype, &in));
            in.v[p][rng_below(&rng, poisoned->count)] = (double)NAN;
            op_values_copy(&c, &want, &in);
            OK(op_call(oracle, &c, dtype, c.run, &want));
            for (int n = 1; n < N_ISA; n++) {
                op_values_copy(&c, &got, &in);
                OK(op_call(cpu[n], &c, dtype, c.run, &got));
                bad += op_hidden_nans(&c, dtype, isas[n], poisoned, &want, &got, &seen);
            }
            op_values_close(&in);
            op_values_close(&want);
            op_values_close(&got);
        }
    assert_true(seen > 1000);
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_match_the_oracle),
        cmocka_unit_test(double_precision_is_exact),
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(same_bits_and_no_allocation),
        cmocka_unit_test(nan_is_not_hidden),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
