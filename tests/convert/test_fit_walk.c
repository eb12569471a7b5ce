/* Fit and refit through the layer walk on small models with every bias: heads that are copies come
 * back, refits help heads that are not, groups are found, streams in a file change nothing. */
#include "convert/convert.h"
#include "core/file.h"
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

enum { SEQ = 32, WINDOWS = 64, N_VOCAB = 64, N_HEAD = 4, DIM = 8, WIDTH = 32 };

static char root[] = "/tmp/regroup-walk-XXXXXX", tokens[64];
static const char *calib[] = {tokens};
static int32_t ids[SEQ * WINDOWS];

static const char *at(const char *name) {
    static char path[8][160];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

static struct convert_options options(const char *from, const char *to, int64_t n_kv,
                                      enum merge_method method, enum refit refit) {
    return (struct convert_options){.from = at(from),
                                    .to = at(to),
                                    .n_kv_head = n_kv,
                                    .method = method,
                                    .dtype = DTYPE_COUNT,
                                    .calibrate = calib,
                                    .n_calibrate = method == MERGE_FIT,
                                    .calib_window = SEQ,
                                    .refit = refit,
                                    .backend = "cpu"};
}

/* The plan after the run; close it. */
static struct convert_plan *converted(struct convert_options o) {
    struct convert_plan *p;
    OK(convert_plan_open(&o, &p));
    OK(convert_run(p, true));
    return p;
}

static void convert(struct convert_options o) {
    convert_plan_close(converted(o));
}

static void make_model(const char *name, int64_t n_kv) {
    struct model_config c = hash_model_config(n_kv, true, true);
    if (path_exists(at(name)))
        OK(dir_remove(at(name)));
    OK(hash_model_write(at(name), &c, 21, DTYPE_F32));
}

/* Mean squared difference of two models' logits behind several windows. */
static double distance(const char *a, const char *b) {
    const char *names[] = {a, b};
    float logits[2][WINDOWS / 8][N_VOCAB];
    struct backend *be;
    struct model *m;
    double sum = 0, nll;
    OK(backend_open("cpu", &be));
    for (int i = 0; i < 2; i++) {
        OK(model_open(at(names[i]), be, DTYPE_F32, &m));
        for (int w = 0; w < WINDOWS / 8; w++)
            OK(nll_of_rows(m, ids + w * 8 * SEQ, 1, SEQ, &nll, logits[i][w]));
        model_close(m);
    }
    backend_close(be);
    for (int w = 0; w < WINDOWS / 8; w++)
        for (int v = 0; v < N_VOCAB; v++) {
            double e = (double)logits[0][w][v] - (double)logits[1][w][v];
            sum += e * e / (WINDOWS / 8 * N_VOCAB);
        }
    return sum;
}

/* Rows (or columns) of KV head order[i] and its queries to place i, in every layer. */
static void write_permuted(const char *from, const char *to, const int64_t order[N_HEAD]) {
    static float values[N_VOCAB * 48], moved[N_VOCAB * 48];
    struct checkpoint *c;
    struct checkpoint_writer *w;
    struct tensor_spec specs[64];
    struct text config = {0};
    OK(checkpoint_open(at(from), &c));
    int64_t n = checkpoint_count(c);
    for (int64_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = checkpoint_at(c, i);
        specs[i] = (struct tensor_spec){.name = t->name, .dtype = t->dtype, .rank = t->rank};
        memcpy(specs[i].shape, t->shape, sizeof t->shape);
    }
    OK(path_mkdirs(at(to)));
    OK(checkpoint_writer_open(at(to), "model", specs, n, 0, &w));
    for (int64_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = checkpoint_at(c, i);
        bool rows =
            strstr(t->name, "q_proj") || strstr(t->name, "k_proj") || strstr(t->name, "v_proj");
        bool columns = strstr(t->name, "o_proj.weight") != NULL;
        assert_true(t->n_byte <= (int64_t)sizeof values);
        OK(checkpoint_read(t, 0, t->n_byte, values));
        memcpy(moved, values, sizeof moved);
        int64_t col = t->rank == 2 ? t->shape[1] : 1, block = DIM * (rows ? col : 1);
        for (int64_t r = 0; r < (rows ? 1 : columns ? WIDTH : 0); r++)
            for (int64_t h = 0; h < N_HEAD; h++)
                memcpy(moved + r * col + h * block, values + r * col + order[h] * block,
                       (size_t)block * sizeof *moved);
        OK(checkpoint_writer_put(w, i, 0, t->n_byte, moved));
    }
    OK(checkpoint_writer_close(w));
    checkpoint_close(c);
    char path[200];
    snprintf(path, sizeof path, "%s/config.json", at(from));
    OK(file_read(path, 0, &config));
    snprintf(path, sizeof path, "%s/config.json", at(to));
    OK(file_write(path, config.data, config.n));
    text_free(&config);
}

static void copies_come_back_with_their_biases(void **state) {
    (void)state;
    make_model("two", 2);
    convert(options("two", "full", 4, MERGE_REPEAT, REFIT_NONE));
    for (int r = REFIT_NONE; r < REFIT_COUNT; r++) {
        convert(options("full", "back", 2, MERGE_FIT, (enum refit)r));
        double off = distance("two", "back");
        if (!(off <= 1e-8))
            fail_msg("refit %s: off by %g", refit_name((enum refit)r), off);
    }
}

/* In the first layer, that is: in the second of so random a model the guard has its say. */
static void every_refit_helps(void **state) {
    (void)state;
    make_model("m", 4);
    convert(options("m", "mean", 2, MERGE_MEAN, REFIT_NONE));
    double mean = distance("m", "mean"), last = 1;
    for (int r = REFIT_O; r < REFIT_COUNT; r++) {
        struct convert_plan *p = converted(options("m", "less", 2, MERGE_FIT, (enum refit)r));
        const struct layer_fit *f = p->layers;
        double now = distance("m", "less");
        if (!f->refitted || !(f->after < f->before) || !(f->after < last) || !(now < mean / 2))
            fail_msg("refit %s: held-out error %g, fitted %g, the refit before %g; logits %g, of "
                     "mean %g",
                     refit_name((enum refit)r), f->after, f->before, last, now, mean);
        assert_true(p->layers[1].refitted == (p->layers[1].after < p->layers[1].before));
        last = f->after;
        convert_plan_close(p);
    }
}

static void groups_are_found(void **state) {
    (void)state;
    static const int64_t shuffle[] = {0, 2, 1, 3}; /* of heads 0 0 1 1: 0 1 0 1 */
    make_model("two", 2);
    convert(options("two", "full", 4, MERGE_REPEAT, REFIT_NONE));
    write_permuted("full", "shuffled", shuffle);
    assert_true(distance("full", "shuffled") <= 1e-10);
    for (int r = REFIT_NONE; r <= REFIT_O; r++) {
        struct convert_options o = options("shuffled", "found", 2, MERGE_FIT, (enum refit)r);
        convert(o);
        assert_true(distance("two", "found") > 1e-4); /* neighbours are not alike */
        o.grouping = GROUPING_FIT;
        struct convert_plan *p = converted(o);
        for (int l = 0; l < 2; l++)
            assert_memory_equal(p->layers[l].order, shuffle, sizeof shuffle);
        convert_plan_close(p);
        assert_true(distance("two", "found") <= 1e-8);
    }
}

static void same_bytes(const char *a, const char *b) {
    struct text x = {0}, y = {0};
    OK(file_read(at(a), 0, &x));
    OK(file_read(at(b), 0, &y));
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.data, y.data, (size_t)x.n);
    text_free(&x);
    text_free(&y);
}

static void streams_in_a_file_change_nothing(void **state) {
    (void)state;
    make_model("m", 4);
    struct convert_options o = options("m", "memory", 2, MERGE_FIT, REFIT_QKVO);
    o.grouping = GROUPING_FIT;
    convert(o);
    o.to = at("file");
    o.stream_memory = 1;
    convert(o);
    same_bytes("memory/model.safetensors", "file/model.safetensors");
    char **names;
    int64_t n;
    struct arena arena = {0};
    o = options("m", "not/yet/there/", 0, MERGE_FIT, REFIT_O); /* chosen before there is a folder */
    o.kv_budget = 0.5;
    o.stream_memory = 1;
    struct convert_plan *p;
    OK(convert_plan_open(&o, &p));
    OK(convert_choose(p));
    assert_false(path_exists(at("not")));
    OK(convert_run(p, false));
    convert_plan_close(p);
    OK(dir_list(&arena, root, &names, &n));
    for (int64_t i = 0; i < n; i++)
        assert_null(strstr(names[i], ".regroup"));
    arena_free(&arena);
}

int main(void) {
    if (!mkdtemp(root))
        return 1;
    snprintf(tokens, sizeof tokens, "%s/ids.u16", root);
    uint16_t words[SEQ * WINDOWS];
    for (int i = 0; i < SEQ * WINDOWS; i++) {
        ids[i] = hash_model_token(3, i, N_VOCAB);
        words[i] = (uint16_t)ids[i];
    }
    if (file_write(tokens, (const char *)words, sizeof words) != STATUS_OK)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_come_back_with_their_biases),
        cmocka_unit_test(every_refit_helps),
        cmocka_unit_test(groups_are_found),
        cmocka_unit_test(streams_in_a_file_change_nothing),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return dir_remove(root) == STATUS_OK ? failed : 1;
}
