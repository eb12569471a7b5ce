/* Text and token files in, and the properties of batches: each window once an epoch, resuming from
 * `position`, order by (seed, epoch). */
#include "core/file.h"
#include "data/tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include <cmocka.h>

static char folder[] = "/tmp/regroup-tokens-XXXXXX";
static char path[256];

static void ok(enum status status) {
    if (status != STATUS_OK)
        fail_msg("%s", status_message());
}

static const char *put(const char *name, const void *bytes, int64_t n) {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    ok(file_write(path, bytes, n));
    return path;
}

static const char *put_gzip(const char *name, const char *text, int64_t drop) {
    struct text bytes = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    gzFile f = gzopen(path, "wb");
    assert_int_equal(gzwrite(f, text, (unsigned)strlen(text)), (int)strlen(text));
    assert_int_equal(gzclose(f), Z_OK);
    ok(file_read(path, 0, &bytes));
    put(name, bytes.data, bytes.n - drop);
    text_free(&bytes);
    return path;
}

/* All documents of a file, each in brackets. */
static enum status read_all(const char *file, struct text *out) {
    struct text_reader *r;
    const char *text;
    int64_t n;
    TRY(text_reader_open(file, &r));
    enum status status = text_reader_next(r, &text, &n);
    while (status == STATUS_OK && n >= 0) {
        ok(text_puts(out, "["));
        ok(text_add(out, text, n));
        ok(text_puts(out, "]"));
        status = text_reader_next(r, &text, &n);
    }
    text_reader_close(r);
    return status;
}

static void reads(const char *file, const char *expected) {
    struct text out = {0};
    ok(read_all(file, &out));
    assert_string_equal(out.data, expected);
    text_free(&out);
}

static void refuses(const char *file, const char *why) {
    struct text out = {0};
    assert_int_equal(read_all(file, &out), STATUS_FAILED);
    if (!strstr(status_message(), why) || !strstr(status_message(), path_base(file)) ||
        strchr(status_message(), '\n'))
        fail_msg("message \"%s\" without \"%s\"", status_message(), why);
    text_free(&out);
}

#define STRING(s) s, (int64_t)sizeof(s) - 1

static void documents_of_each_kind(void **state) {
    (void)state;
    reads(put("a.txt", STRING("one\n\ntwo")), "[one\n\ntwo]");
    reads(put_gzip("a.txt.gz", "one\n\ntwo\n", 0), "[one\n\ntwo\n]");
    const char lines[] = "{\"text\":\"one\\n\\u00e9\"}\r\n\n  \n{\"id\":1,\"text\":\"\"}\n"
                         "{\"text\":\"\\\\u0000\"}";
    reads(put("a.jsonl", STRING(lines)), "[one\né][][\\u0000]");
    reads(put_gzip("a.jsonl.gz", lines, 0), "[one\né][][\\u0000]");
    struct text big = {0}, expected = {0}; /* lines across the reader's chunks */
    for (int k = 0; k < 4000; k++) {
        ok(text_printf(&big, "{\"text\": \"%0*d\"}\n", 1 + k % 97, k));
        ok(text_printf(&expected, "[%0*d]", 1 + k % 97, k));
    }
    reads(put("big.jsonl", big.data, big.n), expected.data);
    text_free(&big);
    text_free(&expected);
}

static void bad_text_is_refused(void **state) {
    (void)state;
    refuses(put("e.txt", "", 0), "empty");
    refuses(put("e.jsonl", STRING(" \n\n")), "empty");
    refuses(put("e.txt.gz", "", 0), "not gzip data");
    refuses(put("p.txt.gz", STRING("plain")), "not gzip data");
    refuses(put_gzip("g.txt", "packed", 0), "not named .gz");
    refuses(put("u.txt", STRING("one\nt\xffo")), "byte 5 (line 2)");
    refuses(put("u.jsonl", STRING("{\"text\":\"a\"}\n{\"text\":\"\xff\"}")),
            "line 2: invalid UTF-8 at its byte 9");
    refuses(put("j.jsonl", STRING("{\"text\":\"a\"}\n{\"text\":\n")), "j.jsonl line 2: not valid");
    refuses(put("o.jsonl", STRING("[1]\n")), "o.jsonl line 1: expected a JSON object");
    refuses(put("m.jsonl", STRING("{\"Text\":\"a\"}")), "text");
    refuses(put("t.jsonl", STRING("{\"text\":5}")), "text");
    refuses(put("z.jsonl", STRING("{\"text\":\"\\\\\\u0000\"}")), "\\u0000");
    refuses(put_gzip("c.txt.gz", "cut short, cut short", 5), "ends early");
    refuses(put_gzip("c.jsonl.gz", "{\"text\":\"cut\"}\n", 9), "ends early");
    refuses(folder, "folder");
    snprintf(path, sizeof path, "%s/absent.txt", folder);
    refuses(path, "cannot open");
}

static struct tokenizer *toy(const char *config) {
    struct tokenizer *t;
    const char json[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<s>\":0,\"</s>\":1,\"a\":2,"
                        "\"b\":3,\"ab\":4},\"merges\":[\"a b\"]},\"added_tokens\":[]}";
    put("tokenizer_config.json", config, (int64_t)strlen(config));
    put("tokenizer.json", STRING(json));
    ok(tokenizer_open(folder, &t));
    return t;
}

static void check_tokens(const struct token_data *d, int64_t n, const int32_t *ids) {
    assert_int_equal(d->n, n);
    assert_memory_equal(d->ids, ids, (size_t)n * sizeof *ids);
}

static void documents_are_joined(void **state) {
    (void)state;
    struct token_data d, again;
    char text[256], lines[256];
    const char *both[] = {text, lines};
    snprintf(text, sizeof text, "%s", put("t.txt", STRING("aba")));
    snprintf(lines, sizeof lines, "%s",
             put("t.jsonl", STRING("{\"text\":\"b\"}\n{\"text\":\"\"}\n{\"text\":\"ab\"}\n")));

    struct tokenizer *t = toy("{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
                              "\"add_bos_token\":true}");
    ok(token_data_open(both, 2, t, 5, &d));
    check_tokens(&d, 7, (const int32_t[]){0, 4, 2, 0, 3, 0, 4});
    assert_int_equal(d.n_text_byte, 6);
    ok(token_data_open(both, 2, t, 0, &again));
    assert_true(d.hash == again.hash);
    token_data_close(&again);
    ok(token_data_open(&both[1], 1, t, 5, &again));
    assert_true(d.hash != again.hash);
    token_data_close(&again);
    assert_int_equal(token_data_open(both, 2, t, 4, &again), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "t.txt: token 1 has id 4"));
    token_data_close(&d);
    tokenizer_close(t);

    t = toy("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}");
    ok(token_data_open(both, 2, t, 5, &d));
    check_tokens(&d, 7, (const int32_t[]){4, 2, 1, 3, 1, 4, 1});
    token_data_close(&d);
    tokenizer_close(t);

    t = toy("{\"bos_token\":\"<s>\",\"eos_token\":null}");
    ok(token_data_open(both, 2, t, 5, &d));
    check_tokens(&d, 4, (const int32_t[]){4, 2, 3, 4});
    token_data_close(&d);
    const char *no_text[] = {put("n.jsonl", STRING("{\"text\":\"\"}"))};
    assert_int_equal(token_data_open(no_text, 1, t, 5, &d), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "no tokens"));
    tokenizer_close(t);
    assert_int_equal(token_data_open(both, 2, NULL, 5, &d), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "tokenizer"));

    put("tokenizer_config.json", STRING("{\"eos_token\":\"<zz>\"}"));
    assert_int_equal(tokenizer_open(folder, &t), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "eos_token \"<zz>\""));
}

static void token_files(void **state) {
    (void)state;
    struct token_data d;
    const unsigned char u16[] = {1, 0, 0, 1, 0xff, 0xff},
                        u32[] = {0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff};
    const char *file[] = {put("a.u16", u16, 6)};
    ok(token_data_open(file, 1, NULL, 65536, &d));
    check_tokens(&d, 3, (const int32_t[]){1, 256, 65535});
    assert_int_equal(d.n_text_byte, 0);
    token_data_close(&d);
    assert_int_equal(token_data_open(file, 1, NULL, 65535, &d), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "a.u16: token 2 has id 65535"));
    put("a.u16", u16, 5);
    assert_int_equal(token_data_open(file, 1, NULL, 0, &d), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "a.u16: 5 bytes"));
    put("a.u16", u16, 0);
    assert_int_equal(token_data_open(file, 1, NULL, 0, &d), STATUS_FAILED);
    const char *wide[] = {put("a.u32", u32, 4)};
    ok(token_data_open(wide, 1, NULL, 0, &d));
    check_tokens(&d, 1, (const int32_t[]){65536});
    token_data_close(&d);
    put("a.u32", u32, 8); /* an id beyond int32 is never right */
    assert_int_equal(token_data_open(wide, 1, NULL, 0, &d), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "a.u32: token 1 has id 4294967295"));
}

enum { N = 103, SEQ = 8, BATCH = 5 };

static struct token_data counting(int64_t n) {
    struct token_data d = {.n = n};
    ok(memory_alloc(n, (int64_t)sizeof *d.ids, "ids", &d.ids));
    for (int64_t i = 0; i < n; i++)
        d.ids[i] = (int32_t)i;
    return d;
}

/* ids[i] = i, so a window is known by its first input, and its targets follow from it. */
static int64_t check_window(const int32_t *inputs, const int32_t *targets, bool rows) {
    assert_int_equal(inputs[0] % SEQ, 0);
    for (int i = 0; i < SEQ; i++) {
        assert_int_equal(inputs[i], inputs[0] + i);
        assert_int_equal(targets[i], rows && i == SEQ - 1 ? -1 : inputs[i] + 1);
    }
    return inputs[0] / SEQ;
}

static void every_window_once_an_epoch(void **state) {
    (void)state;
    struct token_data d = counting(N);
    for (int rows = 0; rows < 2; rows++) {
        struct batcher b;
        int32_t inputs[BATCH * SEQ], targets[BATCH * SEQ];
        int64_t order[3][N / SEQ];
        ok(batcher_open(&d, BATCH, SEQ, rows, 7, &b));
        int64_t n_window = b.n_window;
        assert_int_equal(n_window, 12);
        for (int64_t k = 0; k < 3 * n_window; k++) {
            if (k % BATCH == 0)
                batcher_next(&b, inputs, targets);
            int64_t at = k % BATCH * SEQ;
            order[k / n_window][k % n_window] = check_window(inputs + at, targets + at, rows);
        }
        for (int e = 0; e < 3; e++) {
            uint64_t seen = 0;
            for (int64_t k = 0; k < n_window; k++)
                seen |= (uint64_t)1 << order[e][k];
            assert_true(seen == ((uint64_t)1 << n_window) - 1);
        }
        assert_memory_not_equal(order[0], order[1], sizeof order[0]);
        assert_memory_not_equal(order[1], order[2], sizeof order[0]);
        for (int64_t w = 0; w < n_window; w++) {
            batcher_window(&b, w, inputs, targets);
            assert_int_equal(check_window(inputs, targets, rows), w);
        }
        batcher_close(&b);
    }
    token_data_close(&d);
}

static void resumes_from_position(void **state) {
    (void)state;
    struct token_data d = counting(N);
    struct batcher whole, resumed, other;
    int32_t a[2][BATCH * SEQ], b[2][BATCH * SEQ], c[2][BATCH * SEQ];
    bool differs = false;
    ok(batcher_open(&d, BATCH, SEQ, false, 3, &whole));
    ok(batcher_open(&d, BATCH, SEQ, false, 4, &other));
    int64_t before = memory_alloc_count();
    for (int step = 0; step < 20; step++) {
        int64_t position = whole.position;
        assert_int_equal(position, step * BATCH);
        batcher_next(&whole, a[0], a[1]);
        batcher_next(&other, c[0], c[1]);
        differs |= memcmp(a, c, sizeof a) != 0;
        before++; /* the one allocation below; a step makes none */
        ok(batcher_open(&d, BATCH, SEQ, false, 3, &resumed));
        resumed.position = position;
        batcher_next(&resumed, b[0], b[1]);
        assert_memory_equal(a, b, sizeof a);
        batcher_close(&resumed);
    }
    assert_int_equal(memory_alloc_count(), before);
    assert_true(differs); /* another seed, another order */
    batcher_close(&whole);
    batcher_close(&other);
    token_data_close(&d);
}

static void too_little_data_says_how_much(void **state) {
    (void)state;
    struct token_data d = counting(SEQ);
    struct batcher b;
    assert_int_equal(batcher_open(&d, 1, SEQ, false, 0, &b), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "at least 9"));
    ok(batcher_open(&d, 1, SEQ, true, 0, &b));
    assert_int_equal(b.n_window, 1);
    batcher_close(&b);
    assert_int_equal(batcher_open(&d, 1, SEQ + 1, true, 0, &b), STATUS_FAILED);
    assert_int_equal(batcher_open(&d, 0, SEQ, true, 0, &b), STATUS_USAGE);
    token_data_close(&d);
}

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state) {
    (void)state;
    return dir_remove(folder) == STATUS_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_of_each_kind),        cmocka_unit_test(bad_text_is_refused),
        cmocka_unit_test(documents_are_joined),          cmocka_unit_test(token_files),
        cmocka_unit_test(every_window_once_an_epoch),    cmocka_unit_test(resumes_from_position),
        cmocka_unit_test(too_little_data_says_how_much),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
