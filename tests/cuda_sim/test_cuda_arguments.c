/* What the op declarations cannot say of the cuda backend: ids and targets outside the vocabulary
 * show as NaN, views that begin off a 16-byte boundary give the same bits as those on one and leave
 * their neighbours alone, and a gradient that is not finite moves nothing. */
#include "tests/cuda_sim/cuda_test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct backend *be;
#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

static void *device(const void *host, int64_t bytes) {
    void *p;
    OK(be->alloc(be, bytes, "test", &p));
    OK(be->upload(be, STREAM_COMPUTE, p, host, bytes));
    OK(be->sync(be, STREAM_COMPUTE));
    return p;
}
static void fetch(void *host, const void *p, int64_t bytes) {
    OK(be->download(be, STREAM_COMPUTE, host, p, bytes));
    OK(be->sync(be, STREAM_COMPUTE));
}
static void ramp(float *x, int64_t n, float scale) {
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * (float)(i % 37 - 18);
}

enum { VOCAB = 3, WIDTH = 4, ROWS = 4 };

static void ids_outside_give_nan(void **state) {
    (void)state;
    const int32_t host_ids[ROWS] = {2, 3, -1, 0};
    float table[VOCAB * WIDTH], out[ROWS * WIDTH], got[ROWS * WIDTH];
    ramp(table, VOCAB * WIDTH, 0.5f);
    ramp(out, ROWS * WIDTH, 1);
    void *ids = device(host_ids, sizeof host_ids), *t = device(table, sizeof table);
    void *o = device(out, sizeof out);
    struct embed_args a = {ids, tensor_2d(DTYPE_F32, t, VOCAB, WIDTH),
                           tensor_2d(DTYPE_F32, o, ROWS, WIDTH)};
    OK(be->embed(be, &a));
    fetch(got, o, sizeof got);
    for (int c = 0; c < WIDTH; c++) {
        assert_true(got[c] == table[2 * WIDTH + c]);
        assert_true(isnan(got[WIDTH + c]) && isnan(got[2 * WIDTH + c]));
        assert_true(got[3 * WIDTH + c] == table[c]);
    }
    OK(be->upload(be, STREAM_COMPUTE, o, out, sizeof out));
    OK(be->embed_bwd(be, &a));
    fetch(got, t, sizeof table);
    for (int c = 0; c < WIDTH; c++) {
        assert_true(got[c] == table[c] + out[3 * WIDTH + c]);
        assert_true(got[WIDTH + c] == table[WIDTH + c]);
        assert_true(got[2 * WIDTH + c] == table[2 * WIDTH + c] + out[c]);
    }
    be->free(be, ids);
    be->free(be, t);
    be->free(be, o);
}

static void targets_outside_give_nan(void **state) {
    (void)state;
    const int32_t host_targets[ROWS] = {1, VOCAB, -2, -1};
    float hidden[ROWS * WIDTH], head[VOCAB * WIDTH], nll[ROWS], d_hidden[ROWS * WIDTH];
    ramp(hidden, ROWS * WIDTH, 0.1f);
    ramp(head, VOCAB * WIDTH, 0.2f);
    void *targets = device(host_targets, sizeof host_targets);
    void *h = device(hidden, sizeof hidden), *w = device(head, sizeof head);
    void *n = device(nll, sizeof nll), *d = device(hidden, sizeof hidden);
    struct head_loss_args a = {.hidden = tensor_2d(DTYPE_F32, h, ROWS, WIDTH),
                               .head = tensor_2d(DTYPE_F32, w, VOCAB, WIDTH),
                               .targets = targets,
                               .ce_weight = 1,
                               .temperature = 1,
                               .grad_scale = 1,
                               .nll = tensor_1d(DTYPE_F32, n, ROWS),
                               .d_hidden = tensor_2d(DTYPE_F32, d, ROWS, WIDTH)};
    OK(be->head_loss(be, &a));
    fetch(nll, n, sizeof nll);
    fetch(d_hidden, d, sizeof d_hidden);
    assert_true(nll[0] > 0 && isfinite(nll[0]));
    assert_true(isnan(nll[1]) && isnan(nll[2]) && nll[3] == 0);
    for (int c = 0; c < WIDTH; c++) {
        assert_true(isfinite(d_hidden[c]));
        assert_true(isnan(d_hidden[WIDTH + c]) && isnan(d_hidden[2 * WIDTH + c]));
        assert_true(d_hidden[3 * WIDTH + c] == 0);
    }
    void *all[] = {targets, h, w, n, d};
    for (int i = 0; i < 5; i++)
        be->free(be, all[i]);
}

/* Each op over N elements from `offset` on in buffers of SPACE; everything they hold afterwards. */
enum { N = 2 * 1000, SPACE = N + 8, STEP_BUFFERS = 6 };
struct results {
    uint16_t sum[SPACE], cast[SPACE], norm[SPACE], heads[SPACE], param[SPACE];
    float master[SPACE], m[SPACE], v[SPACE];
};
static void run_at(int64_t offset, struct results *r) {
    static float host[SPACE];
    static uint16_t small[SPACE];
    ramp(host + offset, N, 0.01f);
    for (int64_t i = 0; i < SPACE; i++)
        small[i] = i < offset || i >= offset + N ? 7 : f32_to_bf16(host[i]);
    struct tensor f[5], b[7]; /* F32 and BF16 buffers, and views of them */
    for (int i = 0; i < 5; i++) {
        f[i] = tensor_1d(DTYPE_F32, device(host, sizeof host), SPACE);
        if (i == 3) /* v is not negative */
            OK(be->zero(be, f[i].data, sizeof host));
    }
    for (int i = 0; i < 7; i++)
        b[i] = tensor_1d(DTYPE_BF16, device(small, sizeof small), SPACE);
#define AT(x) tensor_rows(x, offset, N)
#define ROWS_OF(x) tensor_reshape(AT(x), 2, N / 2)
    OK(be->add(be, &(struct add_args){AT(b[0]), AT(b[1]), AT(b[2])}));
    OK(be->cast(be, &(struct cast_args){AT(f[0]), AT(b[3])}));
    OK(be->norm(be, &(struct norm_args){
                        .x = ROWS_OF(b[0]), .out = ROWS_OF(b[4]), .eps = 1e-5, .center = true}));
    struct heads from = {tensor_at(&b[0], offset), N, N / 2, 100};
    struct heads to = {tensor_at(&b[5], offset), N, 100, 200};
    OK(be->copy_heads(be,
                      &(struct copy_heads_args){DTYPE_BF16, DTYPE_BF16, 1, 2, 10, 100, from, to}));
    OK(be->adamw(be, &(struct adamw_args){.param = AT(b[6]),
                                          .master = AT(f[1]),
                                          .m = AT(f[2]),
                                          .v = AT(f[3]),
                                          .grad = AT(f[4]),
                                          .lr = 0.01,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .grad_scale = 1,
                                          .step = 1}));
    fetch(r->sum, b[2].data, sizeof r->sum);
    fetch(r->cast, b[3].data, sizeof r->cast);
    fetch(r->norm, b[4].data, sizeof r->norm);
    fetch(r->heads, b[5].data, sizeof r->heads);
    fetch(r->param, b[6].data, sizeof r->param);
    fetch(r->master, f[1].data, sizeof r->master);
    fetch(r->m, f[2].data, sizeof r->m);
    fetch(r->v, f[3].data, sizeof r->v);
    for (int i = 0; i < 5; i++)
        be->free(be, f[i].data);
    for (int i = 0; i < 7; i++)
        be->free(be, b[i].data);
}

static void views_off_a_boundary_give_the_same(void **state) {
    (void)state;
    static struct results on, off;
    run_at(0, &on);
    for (int64_t offset = 1; offset < 8; offset += 2) {
        run_at(offset, &off);
#define SAME(x) assert_memory_equal(on.x, off.x + offset, N * sizeof *on.x)
        SAME(sum), SAME(cast), SAME(heads), SAME(param), SAME(master), SAME(m), SAME(v);
        for (int64_t i = 0; i < N; i++) /* its sums are taken in another order */
            assert_true(fabsf(bf16_to_f32(on.norm[i]) - bf16_to_f32(off.norm[i + offset])) <=
                        0x1p-7f * fabsf(bf16_to_f32(on.norm[i])));
        const uint16_t *outputs[] = {off.sum, off.cast, off.norm, off.heads, off.param};
        for (int k = 0; k < 5; k++)
            assert_true(outputs[k][offset - 1] == 7 && outputs[k][offset + N] == 7);
    }
}

static void a_gradient_that_is_not_finite_moves_nothing(void **state) {
    (void)state;
    enum { PARAMS = 9 };
    float host[PARAMS], got[PARAMS];
    const double squares[][2] = {{1, INFINITY}, {(double)NAN, 1}, {1, 4}};
    for (int i = 0; i < PARAMS; i++)
        host[i] = 0.1f * (float)(i + 1);
    for (int k = 0; k < 3; k++) {
        struct tensor x[4];
        for (int i = 0; i < 4; i++)
            x[i] = tensor_1d(DTYPE_F32, device(host, sizeof host), PARAMS);
        struct tensor square = tensor_1d(DTYPE_F64, device(squares[k], sizeof squares[k]), 2);
        OK(be->adamw(be, &(struct adamw_args){.param = x[0],
                                              .master = x[0],
                                              .m = x[1],
                                              .v = x[2],
                                              .grad = x[3],
                                              .lr = 0.1,
                                              .beta1 = 0.9,
                                              .beta2 = 0.95,
                                              .eps = 1e-8,
                                              .grad_scale = 1,
                                              .step = 1,
                                              .clip = 1,
                                              .grad_square = square}));
        for (int i = 0; i < 3; i++) {
            fetch(got, x[i].data, sizeof got);
            assert_int_equal(!memcmp(got, host, sizeof got), k < 2);
        }
        for (int i = 0; i < 4; i++)
            be->free(be, x[i].data);
        be->free(be, square.data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_outside_give_nan),
        cmocka_unit_test(targets_outside_give_nan),
        cmocka_unit_test(views_off_a_boundary_give_the_same),
        cmocka_unit_test(a_gradient_that_is_not_finite_moves_nothing),
    };
    int closed = cuda_test_open(&be);
    if (closed)
        return closed;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    backend_close(be);
    return failed;
}
