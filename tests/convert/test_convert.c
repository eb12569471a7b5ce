/* Conversion against exact oracles: identity, repeat then mean, and an independent mean in fp64;
 * every dtype, biases, per-tensor warnings, and everything else in the folder untouched. */
#include "convert/convert.h"
#include "core/file.h"
#include "tests/support/hash_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/regroup-convert-XXXXXX");
    return mkdtemp(dir) ? 0 : 1;
}

static int drop_dir(void **state) {
    (void)state;
    return dir_remove(dir) == STATUS_OK ? 0 : 1;
}

static const char *at(const char *name) {
    static char path[8][160];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static enum status convert(const char *from, const char *to, int64_t n_kv, enum merge_method method,
                           enum dtype dtype) {
    struct convert_options o = {.from = at(from),
                                .to = at(to),
                                .n_kv_head = n_kv,
                                .method = method,
                                .dtype = dtype,
                                .seed = 7};
    struct convert_plan *p;
    TRY(convert_plan_open(&o, &p));
    enum status status = convert_run(p, true);
    convert_plan_close(p);
    return status;
}

static void convert_ok(const char *from, const char *to, int64_t n_kv, enum merge_method method,
                       enum dtype dtype) {
    if (convert(from, to, n_kv, method, dtype) != STATUS_OK)
        fail_msg("%s", status_message());
}

static void make_model(const char *name, int64_t n_kv, bool bias, enum dtype dtype) {
    struct model_config c = hash_model_config(n_kv, bias, true);
    if (path_exists(at(name)))
        assert_int_equal(dir_remove(at(name)), STATUS_OK);
    assert_int_equal(hash_model_write(at(name), &c, 11, dtype), STATUS_OK);
}

static struct checkpoint *open_model(const char *name) {
    struct checkpoint *c;
    if (checkpoint_open(at(name), &c) != STATUS_OK)
        fail_msg("%s", status_message());
    return c;
}

/* All of a tensor's values. */
static int64_t load(const struct checkpoint_tensor *t, double *out) {
    static unsigned char raw[1 << 16];
    int64_t n = t->n_byte / dtype_size(t->dtype);
    assert_true(t->n_byte <= (int64_t)sizeof raw);
    assert_int_equal(checkpoint_read(t, 0, t->n_byte, raw), STATUS_OK);
    assert_true(dtype_convert(raw, t->dtype, out, DTYPE_F64, n));
    return n;
}

static bool same_bytes(const struct checkpoint_tensor *a, const struct checkpoint_tensor *b) {
    static unsigned char x[1 << 16], y[1 << 16];
    if (a->n_byte != b->n_byte || a->dtype != b->dtype || a->rank != b->rank ||
        memcmp(a->shape, b->shape, sizeof a->shape) != 0)
        return false;
    assert_int_equal(checkpoint_read(a, 0, a->n_byte, x), STATUS_OK);
    assert_int_equal(checkpoint_read(b, 0, b->n_byte, y), STATUS_OK);
    return !memcmp(x, y, (size_t)a->n_byte);
}

/* How many tensors of `a` differ in `b` (both must have the same names). */
static int64_t count_changed(const char *a, const char *b, bool only_kv) {
    struct checkpoint *x = open_model(a), *y = open_model(b);
    int64_t changed = 0;
    assert_int_equal(checkpoint_count(x), checkpoint_count(y));
    for (int64_t i = 0; i < checkpoint_count(x); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(x, i);
        bool kv = strstr(t->name, "k_proj") || strstr(t->name, "v_proj");
        const struct checkpoint_tensor *u = checkpoint_find(y, t->name);
        assert_non_null(u);
        changed += !same_bytes(t, u);
        if (only_kv && !kv)
            assert_true(same_bytes(t, u));
    }
    checkpoint_close(x);
    checkpoint_close(y);
    return changed;
}

static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

static void keeps_bytes_when_the_count_stays(void **state) {
    (void)state;
    make_model("m", 2, true, DTYPE_BF16);
    for (int m = MERGE_MEAN; m < MERGE_COUNT; m++) {
        convert_ok("m", "same", 2, (enum merge_method)m, DTYPE_COUNT);
        int64_t changed = count_changed("m", "same", true);
        assert_int_equal(changed, m == MERGE_RANDOM ? 8 : 0); /* k, v, their biases, 2 layers */
    }
}

static void repeats_then_averages_back(void **state) {
    (void)state;
    for (int t = 0; t < 3; t++)
        for (int64_t n = 1; n <= 2; n++) {
            make_model("m", n, true, types[t]);
            convert_ok("m", "more", 4, MERGE_REPEAT, DTYPE_COUNT);
            convert_ok("more", "back", n, MERGE_MEAN, DTYPE_COUNT);
            assert_int_equal(count_changed("m", "back", false), 0);
            convert_ok("more", "back", n, MERGE_FIRST, DTYPE_COUNT);
            assert_int_equal(count_changed("m", "back", false), 0);
        }
}

/* Output head g, element e, against the input heads, computed here in fp64. */
static void check_heads(const char *from, const char *to, enum merge_method method, int64_t n_in,
                        int64_t n_out, enum dtype dtype) {
    static double x[4096], y[4096];
    struct checkpoint *a = open_model(from), *b = open_model(to);
    int64_t seen = 0;
    for (int64_t i = 0; i < checkpoint_count(a); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(a, i);
        const struct checkpoint_tensor *u = checkpoint_find(b, t->name);
        if (!strstr(t->name, "k_proj") && !strstr(t->name, "v_proj"))
            continue;
        assert_non_null(u);
        assert_int_equal(u->dtype, dtype);
        assert_int_equal(u->shape[0], n_out * 8);
        int64_t n = load(u, y), block = n / n_out, group = n_in / n_out;
        assert_int_equal(load(t, x), block * n_in);
        for (int64_t g = 0; g < n_out; g++)
            for (int64_t e = 0; e < block; e++) {
                double want = 0;
                for (int64_t k = 0; k < group; k++)
                    want += x[(g * group + k) * block + e] / (double)group;
                if (method == MERGE_FIRST)
                    want = x[g * group * block + e];
                float f = (float)want;
                double right = dtype == DTYPE_F32   ? (double)f
                               : dtype == DTYPE_F16 ? (double)f16_to_f32(f32_to_f16(f))
                                                    : (double)bf16_to_f32(f32_to_bf16(f));
                assert_true(y[g * block + e] == right);
            }
        seen++;
    }
    assert_int_equal(seen, 8);
    checkpoint_close(a);
    checkpoint_close(b);
}

static void merges_heads_of_a_group(void **state) {
    (void)state;
    for (int from = 0; from < 3; from++) {
        make_model("m", 4, true, types[from]);
        for (int to = 0; to < 3; to++)
            for (int64_t n = 1; n <= 2; n++)
                for (int m = MERGE_MEAN; m <= MERGE_FIRST; m++) {
                    convert_ok("m", "less", n, (enum merge_method)m, types[to]);
                    check_heads("m", "less", (enum merge_method)m, 4, n, types[to]);
                }
        /* GQA to MQA in two steps equals one: the groups nest and the weights are exact. */
        convert_ok("m", "two", 2, MERGE_FIRST, DTYPE_COUNT);
        convert_ok("two", "one", 1, MERGE_FIRST, DTYPE_COUNT);
        convert_ok("m", "less", 1, MERGE_FIRST, DTYPE_COUNT);
        assert_int_equal(count_changed("less", "one", false), 0);
    }
}

static void draws_with_the_tensors_spread(void **state) {
    (void)state;
    static double x[4096], y[4096];
    make_model("m", 4, false, DTYPE_F32);
    convert_ok("m", "r1", 2, MERGE_RANDOM, DTYPE_COUNT);
    convert_ok("m", "r2", 2, MERGE_RANDOM, DTYPE_COUNT);
    assert_int_equal(count_changed("r1", "r2", false), 0); /* same seed */
    struct checkpoint *a = open_model("m"), *b = open_model("r1");
    const char *k = "model.layers.0.self_attn.k_proj.weight";
    int64_t n = load(checkpoint_find(a, k), x), m = load(checkpoint_find(b, k), y);
    double sx = 0, sy = 0, my = 0;
    for (int64_t i = 0; i < n; i++)
        sx += x[i] * x[i] / (double)n;
    for (int64_t i = 0; i < m; i++) {
        sy += y[i] * y[i] / (double)m;
        my += y[i] / (double)m;
    }
    assert_true(fabs(sqrt(sy / sx) - 1) <= 0.15 && fabs(my) <= 4 * sqrt(sx / (double)m));
    const char *v = "model.layers.0.self_attn.v_proj.weight";
    assert_false(same_bytes(checkpoint_find(b, k), checkpoint_find(b, v)));
    checkpoint_close(a);
    checkpoint_close(b);
}

static void refuses_head_counts(void **state) {
    (void)state;
    static const struct {
        int64_t n_in, n_out;
        enum merge_method method;
        const char *named;
    } cases[] = {
        {4, 3, MERGE_MEAN, "3 KV heads do not divide its 4 query heads"},
        {4, 8, MERGE_REPEAT, "8 KV heads do not divide"},
        {1, 2, MERGE_MEAN, "--method repeat can"},
        {2, 1, MERGE_REPEAT, "only makes more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_model("m", cases[i].n_in, false, DTYPE_F32);
        assert_int_equal(convert("m", "bad", cases[i].n_out, cases[i].method, DTYPE_COUNT),
                         STATUS_FAILED);
        if (!strstr(status_message(), cases[i].named))
            fail_msg("'%s' does not say '%s'", status_message(), cases[i].named);
        assert_false(path_exists(at("bad")));
    }
}

/* A folder whose layers have 1 and 4 heads: two in each is more for one and fewer for the other. */
static void refuses_two_ways_at_once(void **state) {
    (void)state;
    struct model_config c = hash_model_config(4, false, true);
    c.n_kv_head[0] = 1;
    assert_int_equal(hash_model_write(at("layers"), &c, 5, DTYPE_F32), STATUS_OK);
    for (enum merge_method method = MERGE_MEAN; method <= MERGE_REPEAT; method++) {
        assert_int_equal(convert("layers", "bad", 2, method, DTYPE_COUNT), STATUS_FAILED);
        assert_non_null(
            strstr(status_message(), "first convert with --kv-heads 4 --method repeat"));
    }
    assert_int_equal(convert("layers", "all", 4, MERGE_REPEAT, DTYPE_COUNT), STATUS_OK);
    assert_int_equal(convert("all", "two", 2, MERGE_MEAN, DTYPE_COUNT), STATUS_OK);
}

/* Tensors for a folder that the hash model does not give: the model's own plus one. */
static void add_tensor(const char *from, const char *to, const char *name, enum dtype dtype,
                       int64_t rows, int64_t cols, const void *bytes, const char *drop) {
    struct checkpoint *c = open_model(from);
    struct tensor_spec specs[64];
    const struct checkpoint_tensor *kept[64];
    struct checkpoint_writer *w;
    int64_t n = 0;
    struct text config = {0};
    for (int64_t i = 0; i < checkpoint_count(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(c, i);
        if (drop && !strcmp(drop, t->name))
            continue;
        kept[n] = t;
        specs[n] = (struct tensor_spec){.name = t->name, .dtype = t->dtype, .rank = t->rank};
        memcpy(specs[n++].shape, t->shape, sizeof t->shape);
    }
    specs[n] = (struct tensor_spec){
        .name = name, .dtype = dtype, .rank = cols ? 2 : 1, .shape = {rows, cols}};
    if (path_exists(at(to)))
        assert_int_equal(dir_remove(at(to)), STATUS_OK);
    assert_int_equal(path_mkdirs(at(to)), STATUS_OK);
    assert_int_equal(checkpoint_writer_open(at(to), "model", specs, n + 1, 0, &w), STATUS_OK);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(checkpoint_writer_copy(w, i, kept[i]), STATUS_OK);
    int64_t n_byte = rows * (cols ? cols : 1) * dtype_size(dtype);
    assert_int_equal(checkpoint_writer_put(w, n, 0, n_byte, bytes), STATUS_OK);
    assert_int_equal(checkpoint_writer_close(w), STATUS_OK);
    checkpoint_close(c);
    char source[200];
    snprintf(source, sizeof source, "%s/config.json", at(from));
    assert_int_equal(file_read(source, 0, &config), STATUS_OK);
    snprintf(source, sizeof source, "%s/config.json", at(to));
    assert_int_equal(file_write(source, config.data, config.n), STATUS_OK);
    text_free(&config);
}

static void reports_what_is_not_finite(void **state) {
    (void)state;
    static float k[32 * 32], gate[48 * 32];
    const char *k_name = "model.layers.1.self_attn.k_proj.weight";
    const char *gate_name = "model.layers.0.mlp.gate_proj.weight";
    make_model("m", 4, false, DTYPE_F32);
    k[5] = NAN, k[700] = INFINITY, k[1023] = -INFINITY;
    add_tensor("m", "nan", k_name, DTYPE_F32, 32, 32, k, k_name);
    gate[3] = 70000.0f, gate[4] = 65504.0f, gate[5] = -1e9f;
    add_tensor("nan", "both", gate_name, DTYPE_F32, 48, 32, gate, gate_name);
    struct convert_options o = {.from = at("both"),
                                .to = at("out"),
                                .n_kv_head = 2,
                                .method = MERGE_MEAN,
                                .dtype = DTYPE_F16};
    struct convert_plan *p;
    assert_int_equal(convert_plan_open(&o, &p), STATUS_OK);
    assert_int_equal(convert_run(p, true), STATUS_OK);
    for (int64_t i = 0; i < p->n_item; i++) {
        const struct convert_item *item = &p->items[i];
        bool is_k = !strcmp(item->to.name, k_name), is_gate = !strcmp(item->to.name, gate_name);
        assert_int_equal(item->found.n_nan, is_k ? 1 : 0);
        assert_int_equal(item->found.n_inf, is_k ? 2 : 0);
        assert_int_equal(item->n_overflow, is_gate ? 2 : 0);
    }
    convert_plan_close(p);
}

static void holds_tensors_to_the_configuration(void **state) {
    (void)state;
    struct model_folder *f;
    static float zero[64 * 64];
    const char *k = "model.layers.1.self_attn.k_proj.weight";
    make_model("m", 4, false, DTYPE_F32);
    static const struct {
        const char *name, *drop, *named[3];
        int64_t rows, cols;
    } cases[] = {
        {"model.layers.1.self_attn.k_proj.weight",
         "model.layers.1.self_attn.k_proj.weight",
         {"model.layers.1.self_attn.k_proj.weight", "[32, 32]", "[16, 32]"},
         16,
         32},
        {"x", "model.norm.weight", {"model.norm.weight is missing", "", ""}, 1, 0},
        {"model.layers.2.self_attn.k_proj.weight",
         NULL,
         {"layer 2", "num_hidden_layers 2", ""},
         32,
         32},
        {"model.layers.0.self_attn.k_proj.bias", NULL, {"attention_bias", "", ""}, 32, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        add_tensor("m", "odd", cases[i].name, DTYPE_F32, cases[i].rows, cases[i].cols, zero,
                   cases[i].drop);
        assert_int_equal(model_folder_open(at("odd"), &f), STATUS_FAILED);
        for (int n = 0; n < 3; n++)
            if (!strstr(status_message(), cases[i].named[n]))
                fail_msg("'%s' does not say '%s'", status_message(), cases[i].named[n]);
    }
    add_tensor("m", "odd", k, DTYPE_F8_E4M3, 32, 32, zero, k); /* not a type to compute in */
    assert_int_equal(model_folder_open(at("odd"), &f), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "F8_E4M3"));
}

static void passes_strangers_and_stray_heads_through(void **state) {
    (void)state;
    static const float inv[4] = {1, 2, 3, 4};
    static float head[64 * 32];
    const char *stranger = "model.layers.0.self_attn.rotary_emb.inv_freq";
    make_model("m", 4, false, DTYPE_F32);
    add_tensor("m", "odd", stranger, DTYPE_F32, 4, 0, inv, NULL);
    add_tensor("odd", "odder", "lm_head.weight", DTYPE_F32, 64, 32, head, NULL);
    struct convert_options o = {.from = at("odder"),
                                .to = at("out"),
                                .n_kv_head = 1,
                                .method = MERGE_MEAN,
                                .dtype = DTYPE_BF16};
    struct convert_plan *p;
    assert_int_equal(convert_plan_open(&o, &p), STATUS_OK);
    assert_int_equal(p->folder->n_unknown, 1);
    assert_non_null(p->folder->stray_head);
    assert_int_equal(convert_run(p, true), STATUS_OK);
    assert_true(p->head_differs);
    convert_plan_close(p);
    struct checkpoint *a = open_model("odder"), *b = open_model("out");
    assert_true(same_bytes(checkpoint_find(a, stranger), checkpoint_find(b, stranger)));
    assert_int_equal(checkpoint_find(b, "lm_head.weight")->dtype, DTYPE_BF16);
    checkpoint_close(a);
    checkpoint_close(b);
}

static void refuses_norms_of_heads(void **state) {
    (void)state;
    static const float gain[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const char *norm = "model.layers.1.self_attn.k_norm.weight";
    make_model("m", 2, false, DTYPE_F32);
    add_tensor("m", "normed", norm, DTYPE_F32, 8, 0, gain, NULL);
    convert_ok("normed", "out", 4, MERGE_REPEAT, DTYPE_COUNT);
    for (int m = MERGE_MEAN; m < MERGE_COUNT; m++) {
        if (m == MERGE_REPEAT)
            continue;
        assert_int_equal(convert("normed", "bad", 1, (enum merge_method)m, DTYPE_COUNT),
                         STATUS_FAILED);
        assert_non_null(strstr(status_message(), norm));
        assert_false(path_exists(at("bad")));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_bytes_when_the_count_stays),
        cmocka_unit_test(repeats_then_averages_back),
        cmocka_unit_test(merges_heads_of_a_group),
        cmocka_unit_test(draws_with_the_tensors_spread),
        cmocka_unit_test(refuses_head_counts),
        cmocka_unit_test(refuses_two_ways_at_once),
        cmocka_unit_test(reports_what_is_not_finite),
        cmocka_unit_test(holds_tensors_to_the_configuration),
        cmocka_unit_test(passes_strangers_and_stray_heads_through),
        cmocka_unit_test(refuses_norms_of_heads),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
