/* core/: sizes, float formats, JSON edits, options, files and staging. */
#include "core/file.h"
#include "core/json.h"
#include "core/options.h"
#include "core/rng.h"
#include "core/tensor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void sizes_are_checked(void **state) {
    (void)state;
    int64_t n;
    assert_true(size_mul(1 << 20, 1 << 20, &n));
    assert_int_equal(n, (int64_t)1 << 40);
    assert_false(size_mul((int64_t)1 << 40, (int64_t)1 << 40, &n));
    assert_false(size_mul(-1, 2, &n));
    assert_false(size_add(INT64_MAX, 1, &n));
    void *p = NULL;
    assert_int_equal(memory_alloc((int64_t)1 << 40, (int64_t)1 << 40, "a test", &p), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "a test"));
}

/* Every half value goes to f32 and back unchanged, and rounding is to nearest even. */
static void f16_and_bf16_round_correctly(void **state) {
    (void)state;
    for (uint32_t v = 0; v < 65536; v++) {
        float f = f16_to_f32((uint16_t)v), b = bf16_to_f32((uint16_t)v);
        if (isnan(f))
            assert_true(isnan(f16_to_f32(f32_to_f16(f))));
        else
            assert_int_equal(f32_to_f16(f), v);
        if (isnan(b))
            assert_true(isnan(bf16_to_f32(f32_to_bf16(b))));
        else
            assert_int_equal(f32_to_bf16(b), v);
        /* Between neighbours: the midpoint goes to the even one, a little past it to the odd. */
        if (v < 0x7bff) {
            float next = f16_to_f32((uint16_t)(v + 1)), mid = f + (next - f) / 2;
            assert_int_equal(f32_to_f16(mid), v + (v & 1));
            assert_int_equal(f32_to_f16(nextafterf(mid, INFINITY)), v + 1);
            assert_int_equal(f32_to_f16(nextafterf(mid, 0)), v);
        }
    }
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(f32_to_f16(-1e-10f), 0x8000);
    assert_int_equal(f32_to_bf16(1.00390625f), 0x3f80); /* halfway, even below */
    assert_int_equal(f32_to_bf16(1.01171875f), 0x3f82); /* halfway, even above */
}

static void set(struct text *t, const char *before, const char *key, const char *value,
                const char *after) {
    text_free(t);
    assert_int_equal(text_puts(t, before), STATUS_OK);
    assert_int_equal(json_text_set(t, key, value), STATUS_OK);
    assert_string_equal(t->data, after);
}

static void json_text_keeps_other_bytes(void **state) {
    (void)state;
    struct text t = {0};
    set(&t, "{\"a\": 1e-05,\n \"k\" : 32, \"z\":[1,{\"k\":2}]}", "k", "8",
        "{\"a\": 1e-05,\n \"k\" : 8, \"z\":[1,{\"k\":2}]}");
    set(&t, "{\n  \"a\": 10000.0,\n  \"b\": \"x}\\\"\"\n}\n", "head_dim", "64",
        "{\n  \"a\": 10000.0,\n  \"b\": \"x}\\\"\",\n  \"head_dim\": 64\n}\n");
    set(&t, "{}", "n", "1", "{\"n\": 1}");
    set(&t, "{\"o\": {\"n\": [\"]\"]}, \"n\": null}", "n", "\"v\"",
        "{\"o\": {\"n\": [\"]\"]}, \"n\": \"v\"}");
    text_free(&t);
}

static void json_errors_name_file_and_key(void **state) {
    (void)state;
    struct json *j;
    int64_t n = 0;
    const char *bad = "{\"a\": 1.5,\n \"b\": tru}";
    assert_int_equal(json_parse(bad, (int64_t)strlen(bad), "f.json", &j), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "f.json"));
    assert_non_null(strstr(status_message(), "line 2"));
    const char *twins = "{\"o\": {\"k\": 1, \"z\": 0, \"k\": 2}}";
    assert_int_equal(json_parse(twins, (int64_t)strlen(twins), "f.json", &j), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "\"k\" is there twice"));
    assert_int_equal(json_parse("{\"a\0b\": 1}", 10, "f.json", &j), STATUS_FAILED);
    const char *tail = "{} x";
    assert_int_equal(json_parse(tail, 4, "f.json", &j), STATUS_FAILED);
    const char *good = "{\"a\": 1.5, \"s\": \"t\", \"i\": 7}";
    assert_int_equal(json_parse(good, (int64_t)strlen(good), "f.json", &j), STATUS_OK);
    assert_int_equal(json_need_int(j, "f.json", "a", &n), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "\"a\""));
    assert_int_equal(json_need_int(j, "f.json", "s", &n), STATUS_FAILED);
    assert_int_equal(json_need_int(j, "f.json", "none", &n), STATUS_FAILED);
    assert_int_equal(json_need_int(j, "f.json", "i", &n), STATUS_OK);
    assert_int_equal(n, 7);
    json_free(j);
}

static void options_know_their_keys(void **state) {
    (void)state;
    struct arena arena = {0};
    int64_t steps = 10;
    double lr = 0.5;
    bool force = false;
    const char *kind = "cosine";
    struct string_list files = {0}, rest;
    struct option options[] = {
        {.key = "steps", .type = OPTION_INT, .value = &steps, .help = "", .min = 1, .max = 100},
        {.key = "opt.lr", .type = OPTION_DOUBLE, .value = &lr, .help = ""},
        {.key = "force", .type = OPTION_BOOL, .value = &force, .help = ""},
        {.key = "kind", .type = OPTION_STRING, .value = &kind, .help = "", .choices = "cosine|lin"},
        {.key = "files", .type = OPTION_LIST, .value = &files, .help = ""},
    };
    enum { N = sizeof options / sizeof *options };
    char *argv[] = {"x", "in", "--steps=20", "--force", "--files", "a,b", "--", "--out"};
    assert_int_equal(options_parse_args(options, N, 8, argv, &arena, &rest), STATUS_OK);
    assert_int_equal(steps, 20);
    assert_true(force && options[0].set && !options[1].set);
    assert_int_equal(rest.n, 2);
    assert_string_equal(rest.items[1], "--out");
    assert_int_equal(files.n, 2);
    assert_string_equal(files.items[1], "b");

    char *typo[] = {"x", "--stps", "3"}, *huge[] = {"x", "--steps", "101"},
         *cut[] = {"x", "--steps"}, *none[] = {"x", "--files", ""};
    assert_int_equal(options_parse_args(options, N, 3, typo, &arena, &rest), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "did you mean 'steps'"));
    assert_int_equal(options_parse_args(options, N, 3, huge, &arena, &rest), STATUS_USAGE);
    assert_int_equal(options_parse_args(options, N, 2, cut, &arena, &rest), STATUS_USAGE);
    assert_int_equal(options_parse_args(options, N, 3, none, &arena, &rest), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "files"));

    struct json *j;
    const char *text = "{\"opt\": {\"lr\": 2.5}, \"kind\": \"lin\", \"mine\": {\"x\": 1}}";
    const char *const ignored[] = {"mine", NULL};
    assert_int_equal(json_parse(text, (int64_t)strlen(text), "c.json", &j), STATUS_OK);
    assert_int_equal(options_parse_json(options, N, j, "c.json", ignored, &arena), STATUS_OK);
    assert_true(lr == 2.5);
    assert_string_equal(kind, "lin");
    assert_int_equal(options_parse_json(options, N, j, "c.json", NULL, &arena), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "mine"));
    json_free(j);
    assert_int_equal(options_set(options, N, "opt.lr=0.25", &arena), STATUS_OK);
    assert_true(lr == 0.25);
    assert_int_equal(options_set(options, N, "opt.lr=nan", &arena), STATUS_USAGE);
    assert_int_equal(options_set(options, N, "kind=other", &arena), STATUS_USAGE);
    j = options_to_json(options, N);
    assert_true(json_number(json_get(json_get(j, "opt"), "lr")) == 0.25);
    json_free(j);
    arena_free(&arena);
}

static void parents_of_paths(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"a", "."},     {"a/", "."},    {"a/b", "a"},
                                           {"a/b//", "a"}, {"a//b", "a"},  {"/a", "/"},
                                           {"/", "/"},     {"/a/b/", "/a"}};
    struct arena arena = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *parent;
        assert_int_equal(path_parent(&arena, cases[i][0], &parent), STATUS_OK);
        assert_string_equal(parent, cases[i][1]);
    }
    arena_free(&arena);
}

static void staging_is_all_or_nothing(void **state) {
    (void)state;
    struct arena arena = {0};
    struct staging s;
    char root[] = "/tmp/regroup-core-XXXXXX", *out, *file;
    assert_non_null(mkdtemp(root));
    assert_int_equal(path_join(&arena, root, "sub/out", &out), STATUS_OK);
    assert_int_equal(staging_open(out, false, &s), STATUS_OK);
    assert_false(path_exists(out));
    assert_int_equal(path_join(&arena, s.path, "regroup.json", &file), STATUS_OK);
    assert_int_equal(file_write(file, "{}", 2), STATUS_OK);
    assert_int_equal(staging_commit(&s), STATUS_OK);
    assert_int_equal(path_join(&arena, out, "regroup.json", &file), STATUS_OK);
    assert_true(path_exists(file));

    assert_int_equal(staging_open(out, false, &s), STATUS_FAILED); /* exists */
    assert_int_equal(staging_open(out, true, &s), STATUS_OK);
    staging_abort(&s);
    assert_true(path_exists(file)); /* the old one is untouched */
    assert_int_equal(staging_open(out, true, &s), STATUS_OK);
    assert_int_equal(staging_commit(&s), STATUS_OK);
    assert_false(path_exists(file)); /* replaced by the new, empty one */

    char *foreign, *leftover; /* a folder that is not ours is never replaced */
    assert_int_equal(path_join(&arena, root, "sub/foreign", &foreign), STATUS_OK);
    assert_int_equal(path_mkdirs(foreign), STATUS_OK);
    assert_int_equal(path_join(&arena, foreign, "letter.txt", &file), STATUS_OK);
    assert_int_equal(file_write(file, "dear", 4), STATUS_OK);
    assert_int_equal(staging_open(foreign, true, &s), STATUS_FAILED);
    assert_true(path_exists(file));

    /* What a killed process left is swept when the same output is staged again. */
    assert_int_equal(arena_printf(&arena, &leftover, "%s.partial-999999999", out), STATUS_OK);
    assert_int_equal(path_mkdirs(leftover), STATUS_OK);
    assert_int_equal(staging_open(out, true, &s), STATUS_OK);
    assert_false(path_exists(leftover));
    staging_abort(&s);
    assert_int_equal(arena_printf(&arena, &leftover, "%s/f.json.partial-999999999", root),
                     STATUS_OK);
    assert_int_equal(file_write(leftover, "half", 4), STATUS_OK);
    assert_int_equal(path_join(&arena, root, "f.json", &file), STATUS_OK);
    assert_int_equal(file_write(file, "{}", 2), STATUS_OK);
    assert_false(path_exists(leftover));
    assert_int_equal(dir_remove(root), STATUS_OK);
    arena_free(&arena);
}

static void rng_is_the_published_generator(void **state) {
    (void)state;
    /* xoshiro256++ from the state {1, 2, 3, 4}: the first outputs of the reference code. */
    struct rng r = {{1, 2, 3, 4}};
    assert_true(rng_u64(&r) == 41943041u);
    assert_true(rng_u64(&r) == 58720359u);
    assert_true(rng_u64(&r) == 3588806011781223u);
    double sum = 0, squares = 0;
    r = rng_seed(7);
    for (int i = 0; i < 100000; i++) {
        double v = rng_normal(&r);
        sum += v;
        squares += v * v;
    }
    assert_true(fabs(sum / 1e5) < 0.02 && fabs(squares / 1e5 - 1) < 0.02);
    int64_t items[50], seen = 0;
    for (int64_t i = 0; i < 50; i++)
        items[i] = i;
    rng_shuffle(&r, items, 50);
    for (int i = 0; i < 50; i++)
        seen |= (int64_t)1 << items[i];
    assert_true(seen == ((int64_t)1 << 50) - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(f16_and_bf16_round_correctly),
        cmocka_unit_test(json_text_keeps_other_bytes),
        cmocka_unit_test(json_errors_name_file_and_key),
        cmocka_unit_test(options_know_their_keys),
        cmocka_unit_test(parents_of_paths),
        cmocka_unit_test(staging_is_all_or_nothing),
        cmocka_unit_test(rng_is_the_published_generator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
