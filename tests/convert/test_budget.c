/* KV heads divided over layers: the knapsack against brute force, and models whose layers differ in
 * what they can spare, from choice to converted folder. */
#include "convert/budget.h"
#include "core/file.h"
#include "core/log.h"
#include "core/rng.h"
#include "tests/support/hash_model.h"
#include "tests/support/nll.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

enum { LAYERS = 5, COUNTS = 4, SEQ = 32, ROWS = 8, N_ID = 2048 };

static struct arena arena;
static char root[] = "/tmp/regroup-budget-XXXXXX";

static const char *at(const char *name) {
    char *path;
    OK(path_join(&arena, root, name, &path));
    return path;
}

struct instance {
    struct budget_candidate candidates[LAYERS][COUNTS];
    struct budget_layer layers[LAYERS];
};

/* Layers of 8 or 4 heads; losses 0..9, or 0 for all, so that many choices are equal. */
static void random_instance(struct rng *rng, struct instance *in) {
    int64_t range = rng_below(rng, 4) ? 10 : 1;
    for (int l = 0; l < LAYERS; l++) {
        int64_t most = rng_below(rng, 3) ? 8 : 4;
        in->layers[l] = (struct budget_layer){.candidates = in->candidates[l]};
        for (int64_t n = most; n >= 1; n /= 2)
            in->candidates[l][in->layers[l].n++] =
                (struct budget_candidate){n, n == most ? 0 : (double)rng_below(rng, range) / 4};
    }
}

/* Least loss, then least sum of squares, over all choices within `most`; false: there is none. */
static bool brute_force(const struct instance *in, int64_t most, double *loss, int64_t *squares) {
    bool found = false;
    for (int code = 0; code < COUNTS * COUNTS * COUNTS * COUNTS * COUNTS; code++) {
        int64_t heads = 0, sum = 0;
        double all = 0;
        bool valid = true;
        for (int l = 0, c = code; l < LAYERS; l++, c /= COUNTS) {
            int i = c % COUNTS;
            valid = valid && i < in->layers[l].n;
            if (!valid)
                break;
            int64_t n = in->candidates[l][i].n_kv;
            heads += n;
            sum += n * n;
            all += in->candidates[l][i].loss;
        }
        if (!valid || heads > most)
            continue;
        if (!found || all < *loss - 1e-9 || (all < *loss + 1e-9 && sum < *squares)) {
            *loss = all;
            *squares = sum;
            found = true;
        }
    }
    return found;
}

static void knapsack_equals_brute_force(void **state) {
    (void)state;
    struct rng rng = rng_seed(1);
    for (int trial = 0; trial < 300; trial++) {
        struct instance in;
        random_instance(&rng, &in);
        int64_t most = rng_below(&rng, 45), squares = 0, sum = 0, heads = 0;
        double loss = 0;
        if (!brute_force(&in, most, &loss, &squares)) {
            assert_int_equal(budget_choose(in.layers, LAYERS, most), STATUS_FAILED);
            continue;
        }
        OK(budget_choose(in.layers, LAYERS, most));
        for (int l = 0; l < LAYERS; l++) {
            int64_t n = in.candidates[l][in.layers[l].chosen].n_kv;
            heads += n;
            sum += n * n;
        }
        assert_true(heads <= most);
        assert_true(fabs(budget_loss(in.layers, LAYERS) - loss) < 1e-9);
        assert_int_equal(sum, squares);
        int64_t uniform = budget_uniform(in.layers, LAYERS, most);
        assert_true(uniform >= 1 && uniform * LAYERS <= most);
        assert_true(loss <= budget_loss_uniform(in.layers, LAYERS, uniform) + 1e-9);
    }
}

/* A model whose heads are all alike: what differs is rounding, and weighs nothing. */
static void rounding_is_no_loss(void **state) {
    (void)state;
    struct budget_candidate a[] = {{4, 0}, {2, 1e-14}, {1, 3e-15}},
                            b[] = {{4, 0}, {2, 5e-30}, {1, 7e-14}};
    struct budget_layer layers[] = {{a, 3, 0}, {b, 3, 0}};
    OK(budget_choose(layers, 2, 8));
    assert_int_equal(a[layers[0].chosen].n_kv, 1);
    assert_int_equal(b[layers[1].chosen].n_kv, 1);
}

static void a_loss_that_is_no_number_is_refused(void **state) {
    (void)state;
    struct rng rng = rng_seed(2);
    struct instance in;
    random_instance(&rng, &in);
    in.candidates[2][1].loss = NAN;
    assert_int_equal(budget_choose(in.layers, LAYERS, 20), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "layer 2"));
}

static int32_t ids[N_ID];
static const char *token_file[1];

static double nll(const char *name) {
    struct backend *be;
    struct model *m;
    double mean;
    OK(backend_open("cpu-ref", &be));
    OK(model_open(at(name), be, DTYPE_F32, &m));
    OK(nll_of_rows(m, ids, ROWS, SEQ, &mean, NULL));
    model_close(m);
    backend_close(be);
    return mean;
}

/* Three layers: all heads of the first and the last are copies of one, the second's differ. */
static void write_models(void) {
    struct model_config c = hash_model_config(4, false, true);
    c.n_layer = 3;
    c.n_kv_head[0] = c.n_kv_head[2] = 1;
    c.n_kv_head[1] = 4;
    OK(hash_model_write(at("mixed"), &c, 5, DTYPE_F32));
    struct convert_options o = {.from = at("mixed"),
                                .to = at("full"),
                                .n_kv_head = 4,
                                .method = MERGE_REPEAT,
                                .dtype = DTYPE_COUNT};
    struct convert_plan *p;
    OK(convert_plan_open(&o, &p));
    OK(convert_run(p, true));
    convert_plan_close(p);
}

static struct convert_options half(enum merge_method method, bool calibrated, enum refit refit) {
    return (struct convert_options){.from = at("full"),
                                    .to = at("out"),
                                    .kv_budget = 0.5,
                                    .method = method,
                                    .dtype = DTYPE_COUNT,
                                    .calibrate = token_file,
                                    .n_calibrate = calibrated,
                                    .calib_window = SEQ,
                                    .refit = refit,
                                    .backend = "cpu-ref"};
}

static enum status run(struct convert_options o) {
    struct convert_plan *p;
    TRY(convert_plan_open(&o, &p));
    enum status status = convert_run(p, true);
    convert_plan_close(p);
    return status;
}

static void check_heads(const char *name, int a, int b, int c) {
    struct model_config config;
    OK(model_config_load(at(name), &config));
    assert_int_equal(config.n_kv_head[0], a);
    assert_int_equal(config.n_kv_head[1], b);
    assert_int_equal(config.n_kv_head[2], c);
}

static bool file_says(const char *name, const char *what) {
    struct text text = {0};
    OK(file_read(at(name), 0, &text));
    bool found = strstr(text.data, what) != NULL;
    text_free(&text);
    return found;
}

static void heads_go_where_they_differ(void **state) {
    (void)state;
    double before = nll("full");
    assert_true(fabs(nll("mixed") - before) < 1e-6);
    const struct convert_options ways[] = {
        half(MERGE_FIT, false, REFIT_NONE), half(MERGE_FIT, true, REFIT_NONE),
        half(MERGE_FIT, true, REFIT_O),     half(MERGE_MEAN, false, REFIT_NONE),
        half(MERGE_MEAN, true, REFIT_NONE),
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        OK(run(ways[i]));
        check_heads("out", 1, 4, 1);
        assert_true(fabs(nll("out") - before) < 1e-5);
        assert_true(file_says("out/config.json", "\"RegroupLlamaForCausalLM\""));
        assert_true(file_says("out/regroup.json", "\"kv_budget\""));
        assert_true(file_says("out/regroup.json", "\"loads_in\": [\"regroup\"]"));
    }
}

static void json_says_what_each_layer_got(void **state) {
    (void)state;
    struct convert_options o = half(MERGE_MEAN, false, REFIT_NONE);
    struct convert_plan *p;
    struct text text = {0};
    OK(convert_plan_open(&o, &p));
    OK(convert_choose(p));
    struct json *j = convert_to_json(p);
    OK(json_print(j, false, &text));
    assert_non_null(strstr(text.data, "\"n_kv_head\":{\"from\":4,\"to\":[1,4,1]}"));
    json_free(j);
    text_free(&text);
    convert_plan_close(p);
}

/* 100% changes nothing; a share that is uniform in the end loads everywhere. */
static void the_whole_budget_is_the_whole_model(void **state) {
    (void)state;
    struct convert_options o = half(MERGE_FIT, false, REFIT_NONE);
    o.kv_budget = 1;
    OK(run(o));
    check_heads("out", 1, 4, 1); /* what is lost without loss need not be kept */
    o.kv_budget = 0.25;
    o.target = TARGET_VLLM;
    OK(run(o));
    check_heads("out", 1, 1, 1);
    assert_true(file_says("out/config.json", "\"LlamaForCausalLM\""));
    assert_true(file_says("out/regroup.json", "\"llama.cpp\""));
}

static void mixed_layers_convert_further(void **state) {
    (void)state;
    static const struct {
        enum merge_method method;
        bool calibrated;
        enum refit refit;
    } ways[] = {{MERGE_MEAN, false, REFIT_NONE},
                {MERGE_FIT, false, REFIT_NONE},
                {MERGE_FIT, true, REFIT_O},
                {MERGE_FIT, true, REFIT_QKVO}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct convert_options o = half(ways[i].method, ways[i].calibrated, ways[i].refit);
        o.from = at("mixed");
        o.kv_budget = 0;
        o.n_kv_head = 1;
        OK(run(o));
        check_heads("out", 1, 1, 1);
        assert_true(file_says("out/config.json", "\"LlamaForCausalLM\""));
        assert_true(isfinite(nll("out")));
        o.n_kv_head = 0;
        o.kv_budget = 4.0 / 6;
        OK(run(o));
        check_heads("out", 1, 2, 1);
    }
}

static void refuse(struct convert_options o, const char *why) {
    if (run(o) == STATUS_OK)
        fail_msg("not refused: %s", why);
    if (!strstr(status_message(), why))
        fail_msg("'%s' does not say '%s'", status_message(), why);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    for (int t = TARGET_TRANSFORMERS; t < TARGET_COUNT; t++) {
        struct convert_options o = half(MERGE_FIT, false, REFIT_NONE);
        o.target = (enum convert_target)t;
        o.to = at("refused");
        refuse(o, convert_target_name(o.target));
        refuse(o, "the nearest uniform one is --kv-heads 2 (predicted loss");
        assert_false(path_exists(at("refused")));
    }
    struct convert_options o = half(MERGE_FIT, false, REFIT_NONE);
    o.kv_budget = 0.2;
    refuse(o, "20% of the KV cache is 2 of 12 heads, but each of 3 layers needs one: give "
              "--kv-budget at least 25%");
    refuse(half(MERGE_REPEAT, false, REFIT_NONE), "--method repeat");
    refuse(half(MERGE_RANDOM, false, REFIT_NONE), "--method random");
}

int main(void) {
    uint16_t tokens[N_ID];
    log_set_quiet(true);
    if (!mkdtemp(root))
        return 1;
    for (int64_t i = 0; i < N_ID; i++) {
        ids[i] = hash_model_token(9, i, 64);
        tokens[i] = (uint16_t)ids[i];
    }
    token_file[0] = at("ids.u16");
    if (file_write(token_file[0], tokens, sizeof tokens) != STATUS_OK)
        return 1;
    write_models();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knapsack_equals_brute_force),
        cmocka_unit_test(rounding_is_no_loss),
        cmocka_unit_test(a_loss_that_is_no_number_is_refused),
        cmocka_unit_test(heads_go_where_they_differ),
        cmocka_unit_test(json_says_what_each_layer_got),
        cmocka_unit_test(the_whole_budget_is_the_whole_model),
        cmocka_unit_test(mixed_layers_convert_further),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    arena_free(&arena);
    return dir_remove(root) == STATUS_OK ? failed : 1;
}
