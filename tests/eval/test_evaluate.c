/* Perplexity, KL and agreement against plain double loops over uncached logits; evaluation of
 * folders; generation. Tiny models whose weights come from a hash. */
#include "core/file.h"
#include "eval/evaluate.h"
#include "eval/sample.h"
#include "tests/support/hash_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

enum { VOCAB = 64, N_TOKEN = 150, WINDOW = 24, STRIDE = 10 };
static char folder[] = "/tmp/regroup-eval-XXXXXX";

static const char *at(const char *name) {
    static char path[4][4096];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* 64 ids: 1 and 2 are <s> and </s>, 3 a newline, i the character '0' + i otherwise. */
static void write_tokenizer(const char *dir) {
    struct text t = {0};
    char path[4096];
    OK(text_puts(&t, "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":1,\"</s>\":2,\"\\n\":3"));
    for (int i = 0; i < VOCAB; i++)
        if (i < 1 || i > 3)
            OK(text_printf(&t, ",\"%s%c\":%d", '0' + i == '\\' ? "\\" : "", '0' + i, i));
    OK(text_puts(&t, "},\"merges\":[]},\"added_tokens\":[]}"));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    OK(file_write(path, t.data, t.n));
    text_free(&t);
    static const char config[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
                                 "\"add_bos_token\":true}";
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    OK(file_write(path, config, sizeof config - 1));
}

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return 1;
    struct model_config wide = hash_model_config(4, false, true);
    struct model_config narrow = hash_model_config(2, false, true);
    OK(hash_model_write(at("wide"), &wide, 1, DTYPE_F32));
    OK(hash_model_write(at("narrow"), &narrow, 2, DTYPE_F32));
    write_tokenizer(at("wide"));
    write_tokenizer(at("narrow"));
    uint8_t u16[2 * N_TOKEN] = {0};
    for (int i = 0; i < N_TOKEN; i++)
        u16[2 * i] = (uint8_t)hash_model_token(5, i, VOCAB);
    OK(file_write(at("data.u16"), u16, sizeof u16));
    return 0;
}

static int teardown(void **state) {
    (void)state;
    return dir_remove(folder) != STATUS_OK;
}

/* log-probabilities [n, VOCAB] of every position, without a cache. Host memory backends. */
static void log_probabilities(const struct model *m, const int32_t *ids, int64_t n, double *out) {
    struct acts *a;
    OK(acts_open(m, ACTS_INFER, 1, n, &a));
    OK(model_forward(m, a, NULL, ids, 1, n));
    double logits[N_TOKEN * VOCAB];
    enum dtype dtype = m->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    OK(model_logits(m, a, 0, n, tensor_2d(dtype, logits, n, VOCAB)));
    OK(m->be->sync(m->be, STREAM_COMPUTE));
    for (int64_t t = 0; t < n; t++) {
        double sum = 0;
        for (int v = 0; v < VOCAB; v++) {
            double l = dtype == DTYPE_F64 ? logits[t * VOCAB + v]
                                          : (double)((const float *)logits)[t * VOCAB + v];
            out[t * VOCAB + v] = l;
            sum += exp(l);
        }
        for (int v = 0; v < VOCAB; v++)
            out[t * VOCAB + v] -= log(sum);
    }
    acts_close(a);
}

struct sums {
    double nll, kl, agree;
    int64_t n;
};

static int argmax(const double *x) {
    int best = 0;
    for (int v = 1; v < VOCAB; v++)
        best = x[v] > x[best] ? v : best;
    return best;
}

/* Positions t with from <= t < n predict ids[t]. */
static void add_window(const struct model *m, const struct model *teacher, const int32_t *ids,
                       int64_t n, int64_t from, struct sums *s) {
    static double p[N_TOKEN * VOCAB], q[N_TOKEN * VOCAB];
    log_probabilities(m, ids, n, q);
    log_probabilities(teacher, ids, n, p);
    for (int64_t t = size_max(from, 1); t < n; t++) {
        const double *pt = p + (t - 1) * VOCAB, *qt = q + (t - 1) * VOCAB;
        s->nll -= qt[ids[t]];
        for (int v = 0; v < VOCAB; v++)
            s->kl += exp(pt[v]) * (pt[v] - qt[v]);
        s->agree += argmax(pt) == argmax(qt);
        s->n++;
    }
}

/* The protocols as their sources write them, not as eval/protocol.c does. */
static struct sums expected(enum protocol protocol, const struct model *m,
                            const struct model *teacher, const int32_t *ids) {
    struct sums s = {0};
    int32_t window[WINDOW];
    if (protocol == PROTOCOL_STRIDED) {
        for (int64_t begin = 0, previous_end = 0; begin < N_TOKEN; begin += STRIDE) {
            int64_t end = size_min(begin + WINDOW, N_TOKEN);
            add_window(m, teacher, ids + begin, end - begin, end - begin - (end - previous_end),
                       &s);
            previous_end = end;
            if (end == N_TOKEN)
                break;
        }
        return s;
    }
    for (int64_t chunk = 0; chunk < N_TOKEN / WINDOW; chunk++) {
        memcpy(window, ids + chunk * WINDOW, sizeof window);
        if (protocol == PROTOCOL_LLAMA_CPP)
            window[0] = 1;
        add_window(m, teacher, window, WINDOW, protocol == PROTOCOL_LLAMA_CPP ? WINDOW / 2 + 1 : 1,
                   &s);
    }
    return s;
}

static void near(const char *what, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        fail_msg("%s: got %.17g, expected %.17g", what, got, want);
}

static void numbers_equal_plain_loops(void **state) {
    static const struct {
        const char *backend;
        enum dtype dtype;
        double tolerance;
    } ways[] = {
        {"cpu-ref", DTYPE_F64, 1e-12}, {"cpu-ref", DTYPE_F32, 2e-6}, {"cpu", DTYPE_F32, 2e-6}};
    (void)state;
    int32_t ids[N_TOKEN];
    for (int i = 0; i < N_TOKEN; i++)
        ids[i] = hash_model_token(5, i, VOCAB);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct backend *be;
        struct model *m, *teacher;
        OK(backend_open(ways[w].backend, &be));
        OK(model_open(at("narrow"), be, ways[w].dtype, &m));
        OK(model_open(at("wide"), be, ways[w].dtype, &teacher));
        for (int p = PROTOCOL_STRIDED; p <= PROTOCOL_ROWS; p++) {
            struct window_plan plan;
            struct perplexity got;
            struct sums want = expected((enum protocol)p, m, teacher, ids);
            double n = (double)want.n, tolerance = ways[w].tolerance;
            OK(window_plan_make((enum protocol)p, N_TOKEN, WINDOW, STRIDE,
                                p == PROTOCOL_LLAMA_CPP ? 1 : -1, &plan));
            OK(perplexity_measure(m, teacher, ids, &plan, 4, &got)); /* 4 does not divide */
            assert_int_equal(got.n_token, want.n);
            near("nll", got.nll.mean, want.nll / n, tolerance);
            near("perplexity", got.value, exp(want.nll / n), tolerance);
            near("kl", got.kl.mean, want.kl / n, tolerance);
            near("agreement", got.agree.mean, want.agree / n, 1e-12);
            assert_true(got.kl.mean > 0.1 && got.agree.mean < 1 && got.nll.se > 0);
        }
        model_close(m);
        model_close(teacher);
        backend_close(be);
    }
}

static void a_model_is_its_own_teacher(void **state) {
    static const char *const backends[] = {"cpu-ref", "cpu"};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};
    (void)state;
    for (int b = 0; b < 2; b++)
        for (int d = 0; d < 2; d++) {
            struct backend *be;
            struct evaluator e;
            struct evaluation r;
            struct eval_options o = eval_defaults();
            o.tokens = at("data.u16");
            o.teacher = at("narrow");
            o.protocol = PROTOCOL_ROWS;
            o.window = WINDOW;
            o.dtype = dtypes[d];
            OK(backend_open(backends[b], &be));
            OK(evaluator_open(&o, be, &e));
            OK(evaluate_model(&e, at("narrow"), &r));
            assert_true(r.perplexity.kl.mean == 0 && r.perplexity.kl.se == 0);
            assert_true(r.perplexity.agree.mean == 1);
            evaluator_close(&e);
            backend_close(be);
        }
}

static void folders_are_evaluated(void **state) {
    (void)state;
    struct backend *be;
    struct evaluator e;
    struct evaluation r[2];
    struct eval_options o = eval_defaults();
    o.tokens = at("data.u16");
    o.teacher = at("wide");
    o.window = WINDOW;
    o.max_tokens = 100;
    o.contexts[o.n_context++] = 8;
    o.contexts[o.n_context++] = 20;
    o.n_decode = 4;
    o.n_repeat = 2;
    o.speed_batch = 3;
    OK(backend_open("cpu", &be));
    OK(evaluator_open(&o, be, &e));
    OK(evaluate_model(&e, at("wide"), &r[0]));
    OK(evaluate_model(&e, at("narrow"), &r[1]));
    assert_int_equal(r[0].perplexity.n_token, 99);
    assert_int_equal(r[0].cache_formula, 2 * 2 * 4 * 8 * 4);
    assert_int_equal(r[1].cache_formula, 2 * 2 * 2 * 8 * 4);
    for (int i = 0; i < 2; i++) {
        assert_true(r[i].cache_allocated == (double)r[i].cache_formula);
        assert_int_equal(r[i].n_speed, 2);
        for (int k = 0; k < 2; k++) {
            const struct speed *s = &r[i].speed[k];
            assert_true(s->cache_bytes_per_token == (double)r[i].cache_formula);
            assert_int_equal(s->cache_bytes, r[i].cache_formula * 3 * (s->options.context + 4));
            assert_true(s->prefill.min > 0 && s->prefill.min <= s->prefill.median);
            assert_true(s->decode.min > 0 && s->decode.median <= s->decode.max);
        }
    }
    struct json *j = evaluation_json(&e, r, 2);
    const struct json *second = json_next(json_first(json_get(j, "models")));
    assert_string_equal(json_string(json_get(second, "attention")), "GQA");
    assert_int_equal(json_int(json_get(second, "kv_heads")), 2);
    assert_true(json_number(json_get(json_get(second, "perplexity"), "nll")) ==
                r[1].perplexity.nll.mean);
    assert_int_equal(json_len(json_get(second, "speed")), 2);
    assert_int_equal(json_int(json_get(json_get(j, "data"), "tokens_counted")), 99);
    json_free(j);
    struct text table = {0};
    OK(evaluation_table(&e, r, 2, &table));
    int lines = 0, columns = 0, width = -1;
    for (int64_t i = 0; i < table.n; i++) { /* all lines are equally wide */
        columns += ((unsigned char)table.data[i] & 0xc0) != 0x80;
        if (table.data[i] != '\n')
            continue;
        assert_true(width < 0 || columns == width);
        width = columns;
        columns = 0;
        lines++;
    }
    assert_int_equal(lines, 3);
    text_free(&table);
    evaluator_close(&e);
    backend_close(be);
}

static void text_is_joined_as_the_protocol_says(void **state) {
    static const char text[] = "ab\n\ncd\n";
    static const struct {
        enum protocol protocol;
        const char *joined; /* ^ stands for BOS */
        int32_t bos;
    } cases[] = {
        {PROTOCOL_STRIDED, "ab\n\ncd\n", -1},
        {PROTOCOL_GPTQ, "^ab\n\n\n\n\ncd\n", -1},
        {PROTOCOL_LLAMA_CPP, "^ab\n\ncd\n", 1},
    };
    (void)state;
    struct tokenizer *tokenizer;
    OK(tokenizer_open(at("wide"), &tokenizer));
    OK(file_write(at("t.txt"), text, sizeof text - 1));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct token_data d;
        int32_t bos;
        OK(protocol_read_text(cases[i].protocol, at("t.txt"), tokenizer, VOCAB, &d, &bos));
        assert_int_equal(bos, cases[i].bos);
        assert_int_equal(d.n, strlen(cases[i].joined));
        for (int64_t k = 0; k < d.n; k++) {
            char c = cases[i].joined[k];
            assert_int_equal(d.ids[k], c == '^' ? 1 : c == '\n' ? 3 : c - '0');
        }
        token_data_close(&d);
    }
    static const char lines[] = "{\"text\":\"ab\"}\n{\"text\":\"cd\\n\"}\n";
    struct token_data d;
    int32_t bos;
    OK(file_write(at("t.jsonl"), lines, sizeof lines - 1));
    OK(protocol_read_text(PROTOCOL_GPTQ, at("t.jsonl"), tokenizer, VOCAB, &d, &bos));
    assert_int_equal(d.n, 1 + 2 + 2 + 3); /* BOS ab, an empty line, cd and its newline */
    token_data_close(&d);
    assert_int_equal(protocol_read_text(PROTOCOL_GPTQ, at("t.txt"), tokenizer, '5' - '0', &d, &bos),
                     STATUS_FAILED);
    assert_non_null(strstr(status_message(), "vocabulary ends at 4"));
    assert_int_equal(protocol_read_text(PROTOCOL_ROWS, at("t.txt"), tokenizer, VOCAB, &d, &bos),
                     STATUS_USAGE);
    tokenizer_close(tokenizer);
}

static enum status collect(void *user, const char *bytes, int64_t n) {
    return text_add(user, bytes, n);
}

static void generated(const struct model *m, const struct tokenizer *tokenizer, double temperature,
                      uint64_t seed, struct text *out) {
    struct generate_options o = {
        .prompt = "abcabc", .n_new = 40, .temperature = temperature, .seed = seed};
    struct generate_result r;
    OK(generate(m, tokenizer, &o, collect, out, &r));
    assert_int_equal(r.n_prompt, 7);
    assert_true(r.ended || r.n_new == 40);
    assert_int_equal(r.n_step, r.ended ? r.n_new : r.n_new - 1);
}

static void generation(void **state) {
    (void)state;
    struct backend *be;
    struct model *m;
    struct tokenizer *tokenizer;
    struct text a = {0}, b = {0}, c = {0}, greedy = {0}, want = {0};
    OK(backend_open("cpu", &be));
    OK(model_open(at("wide"), be, DTYPE_F32, &m));
    OK(tokenizer_open(at("wide"), &tokenizer));
    generated(m, tokenizer, 1, 3, &a);
    generated(m, tokenizer, 1, 3, &b);
    generated(m, tokenizer, 1, 4, &c);
    assert_string_equal(a.data, b.data);
    assert_string_not_equal(a.data, c.data);

    generated(m, tokenizer, 0, 3, &greedy);
    int32_t ids[64] = {1};
    static double p[N_TOKEN * VOCAB];
    int64_t n = 7;
    for (int i = 0; i < 6; i++)
        ids[1 + i] = "abcabc"[i] - '0';
    while (n < 47) { /* the likeliest token of an uncached forward, again and again */
        log_probabilities(m, ids, n, p);
        ids[n] = argmax(p + (n - 1) * VOCAB);
        if (ids[n] == 2)
            break;
        OK(tokenizer_decode(tokenizer, ids[n - 1], ids[n], &want));
        n++;
    }
    assert_true(want.n > 0);
    assert_string_equal(greedy.data, want.data);

    struct generate_options o = {.prompt = "", .n_new = 500};
    struct generate_result r;
    a.n = 0;
    OK(generate(m, tokenizer, &o, collect, &a, &r)); /* from BOS; stops where positions end */
    assert_int_equal(r.n_prompt, 1);
    assert_true(r.ended || r.n_new == 63);
    text_free(&a);
    text_free(&b);
    text_free(&c);
    text_free(&greedy);
    text_free(&want);
    tokenizer_close(tokenizer);
    model_close(m);
    backend_close(be);
}

static void decoding_allocates_nothing(void **state) {
    (void)state;
    struct backend *be;
    struct model *m;
    struct decoder d;
    int32_t ids[2 * 9], next[2];
    OK(backend_open("cpu", &be));
    OK(model_open(at("wide"), be, DTYPE_F32, &m));
    OK(decoder_open(m, 2, 20, 4, &d));
    for (int i = 0; i < 18; i++)
        ids[i] = hash_model_token(8, i, VOCAB);
    OK(decoder_feed(&d, ids, 9)); /* in pieces of 4, 4, 1 */
    OK(decoder_argmax(&d, next));
    static double p[N_TOKEN * VOCAB];
    for (int s = 0; s < 2; s++) {
        log_probabilities(m, ids + 9 * s, 9, p);
        assert_int_equal(next[s], argmax(p + 8 * VOCAB));
    }
    OK(decoder_feed(&d, next, 1));
    OK(decoder_argmax(&d, next));
    int64_t before = memory_alloc_count();
    for (int i = 0; i < 8; i++) {
        OK(decoder_feed(&d, next, 1));
        OK(decoder_argmax(&d, next));
    }
    assert_int_equal(memory_alloc_count(), before);
    decoder_close(&d);
    model_close(m);
    backend_close(be);
}

static void refused(const struct eval_options *o, const char *dir, const char *message) {
    struct backend *be;
    struct evaluator e = {0};
    struct evaluation r;
    OK(backend_open("cpu", &be));
    enum status status = evaluator_open(o, be, &e);
    if (status == STATUS_OK)
        status = evaluate_model(&e, dir, &r);
    assert_int_not_equal(status, STATUS_OK);
    if (!strstr(status_message(), message))
        fail_msg("'%s' does not say '%s'", status_message(), message);
    evaluator_close(&e);
    backend_close(be);
}

static void what_does_not_compare_is_refused(void **state) {
    (void)state;
    struct model_config other = hash_model_config(4, false, true);
    other.n_vocab = 80;
    OK(hash_model_write(at("other"), &other, 3, DTYPE_F32));
    struct eval_options o = eval_defaults();
    o.tokens = at("data.u16");
    o.window = WINDOW;
    o.teacher = at("other");
    refused(&o, at("wide"), "the teacher's vocabulary has 80 tokens and the model's 64");
    o.teacher = NULL;
    o.window = 65; /* more than the 64 positions */
    refused(&o, at("wide"), "positions");
    o.text = o.tokens;
    refused(&o, at("wide"), "not both");
    o.text = o.tokens = NULL;
    o.teacher = at("wide");
    refused(&o, at("wide"), "--text or --tokens");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_equal_plain_loops),
        cmocka_unit_test(a_model_is_its_own_teacher),
        cmocka_unit_test(folders_are_evaluated),
        cmocka_unit_test(text_is_joined_as_the_protocol_says),
        cmocka_unit_test(generation),
        cmocka_unit_test(decoding_allocates_nothing),
        cmocka_unit_test(what_does_not_compare_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
