/* The configuration's table, its cross-checks, the schedule, and what a resumed run may change. */
#include "train/train_config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static enum status parse(const char *text, const struct string_list *sets, struct arena *arena,
                         struct train_config *out) {
    struct json *j;
    TRY(json_parse(text, (int64_t)strlen(text), "run.json", &j));
    enum status status = train_config_parse(j, "run.json", sets, arena, out);
    json_free(j);
    return status;
}

#define GOOD                                                                                       \
    "\"objective\":\"distill\",\"teacher\":\"t\",\"student\":\"s\",\"out\":\"o\","                 \
    "\"data\":{\"train\":[\"a.u16\",\"b.u16\"]}"

static void a_config_is_read(void **state) {
    (void)state;
    struct arena arena = {0};
    struct train_config c;
    const char *sets[] = {"optimizer.lr=0.5", "trainable=attention,*norm*", "schedule.kind=linear"};
    struct string_list list = {sets, 3};
    assert_int_equal(parse("{\"comment\":[\"free\"]," GOOD
                           ",\"optimizer\":{\"lr\":1e-3,\"clip\":2},"
                           "\"steps\":7,\"schedule\":{\"warmup\":0},\"dtype\":\"bf16\"}",
                           &list, &arena, &c),
                     STATUS_OK);
    assert_string_equal(c.train.items[1], "b.u16");
    assert_true(c.lr == 0.5 && c.clip == 2 && c.steps == 7 && c.beta2 == 0.95);
    assert_int_equal(c.trainable.n, 2);
    assert_string_equal(c.schedule, "linear");
    assert_int_equal(train_config_dtype(&c), DTYPE_BF16);
    arena_free(&arena);
}

static void the_layerwise_objective_trains_attention(void **state) {
    (void)state;
    struct arena arena = {0};
    struct train_config c;
    const char *sets[] = {"objective=attention", "trainable=*k_proj*"};
    struct string_list list = {sets, 1};
    assert_int_equal(parse("{" GOOD "}", &list, &arena, &c), STATUS_OK);
    assert_int_equal(c.trainable.n, 1);
    assert_string_equal(c.trainable.items[0], "attention");
    list.n = 2;
    assert_int_equal(parse("{" GOOD "}", &list, &arena, &c), STATUS_OK);
    assert_string_equal(c.trainable.items[0], "*k_proj*");
    assert_int_equal(parse("{" GOOD "}", NULL, &arena, &c), STATUS_OK);
    assert_string_equal(c.trainable.items[0], "all");
    arena_free(&arena);
}

static void mistakes_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"{" GOOD ",\"optimiser\":{\"lr\":1}}", "optimiser"},
        {"{" GOOD ",\"optimizer\":{\"lrr\":1}}", "optimizer.lrr"},
        {"{\"objective\":\"rl\",\"out\":\"o\",\"data\":{\"train\":\"a\"}}", "objective"},
        {"{" GOOD ",\"steps\":0}", "steps"},
        {"{" GOOD ",\"steps\":1.5}", "steps"},
        {"{" GOOD ",\"steps\":10,\"schedule\":{\"warmup\":11}}", "schedule.warmup"},
        {"{" GOOD ",\"trainable\":[]}", "trainable"},
        {"{\"objective\":\"ce\",\"student\":\"s\",\"data\":{\"train\":\"a\"}}", "'out'"},
        {"{\"objective\":\"ce\",\"out\":\"o\",\"data\":{\"train\":\"a\"}}", "'student'"},
        {"{\"student\":\"s\",\"out\":\"o\",\"data\":{\"train\":\"a\"}}", "'teacher'"},
        {"{\"objective\":\"attention\",\"student\":\"s\",\"out\":\"o\",\"data\":{\"train\":\"a\"}}",
         "'teacher'"},
        {"{\"objective\":\"attention\",\"student\":\"s\",\"teacher\":\"t\",\"out\":\"o\","
         "\"data\":{\"train\":\"a\"},\"trainable\":[]}",
         "'trainable'"},
        {"{\"objective\":\"pretrain\",\"out\":\"o\",\"data\":{\"train\":\"a\"}}", "'model_config'"},
        {"{\"objective\":\"ce\",\"student\":\"s\",\"out\":\"o\"}", "'data.train'"},
        {"{" GOOD ",\"optimizer\":{\"stochastic_rounding\":true}}",
         "optimizer.stochastic_rounding is of bf16 weights"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena arena = {0};
        struct train_config c;
        if (parse(cases[i].text, NULL, &arena, &c) != STATUS_USAGE)
            fail_msg("accepted: %s", cases[i].text);
        if (!strstr(status_message(), cases[i].named) || !strstr(status_message(), "run.json"))
            fail_msg("'%s' does not name %s and the file", status_message(), cases[i].named);
        arena_free(&arena);
    }
}

static void schedule_has_the_right_values(void **state) {
    (void)state;
    struct train_config c = train_config_default();
    c.lr = 2;
    c.warmup = 4;
    c.steps = 12;
    c.final = 0.1;
    const struct {
        const char *kind;
        int64_t step;
        double lr;
    } cases[] = {
        {"cosine", 1, 0.5},   {"cosine", 4, 2},
        {"cosine", 8, 1.1},   {"cosine", 12, 0.2},
        {"linear", 2, 1},     {"linear", 8, 1.1},
        {"linear", 10, 0.65}, {"linear", 12, 0.2},
        {"constant", 3, 1.5}, {"constant", 5, 2},
        {"constant", 12, 2},  {"cosine", 6, 2 * (0.1 + 0.9 * (0.5 + 0.25 * 1.4142135623730951))},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c.schedule = cases[i].kind;
        double lr = train_config_lr(&c, cases[i].step);
        if (!(fabs(lr - cases[i].lr) <= 1e-15))
            fail_msg("%s step %lld: %.17g, expected %.17g", c.schedule, (long long)cases[i].step,
                     lr, cases[i].lr);
    }
    c.warmup = c.steps; /* a run that only warms up */
    assert_true(train_config_lr(&c, c.steps) == 2);
    c.warmup = 0;
    assert_true(train_config_lr(&c, 1) > 1.9);
}

static void a_resumed_run_is_the_same(void **state) {
    (void)state;
    struct arena arena = {0};
    struct train_config c, changed;
    char why[256];
    assert_int_equal(parse("{" GOOD "}", NULL, &arena, &c), STATUS_OK);
    struct json *stored = train_config_to_json(&c);
    assert_true(train_config_same_run(stored, &c, why, sizeof why));
    const char *other[] = {"c.u16"};
    changed = c;
    changed.threads = 3;
    changed.save_every = 1;
    changed.log_every = 5;
    changed.train = (struct string_list){other, 1}; /* its hash is compared, not its name */
    assert_true(train_config_same_run(stored, &changed, why, sizeof why));
    changed.lr = 3e-4;
    assert_false(train_config_same_run(stored, &changed, why, sizeof why));
    assert_non_null(strstr(why, "optimizer.lr: 0.0001 -> 0.0003"));
    changed = c;
    changed.steps = 401;
    assert_false(train_config_same_run(stored, &changed, why, sizeof why));
    json_free(stored);
    c.schedule = changed.schedule = "constant";
    stored = train_config_to_json(&c);
    assert_true(train_config_same_run(stored, &changed, why, sizeof why));
    json_free(stored);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_is_read),
        cmocka_unit_test(the_layerwise_objective_trains_attention),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(schedule_has_the_right_values),
        cmocka_unit_test(a_resumed_run_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
