/* Ids and decoded text against those of the Hugging Face and SentencePiece libraries
 * (make_fixtures.py), and what is refused, by name. */
#include "core/file.h"
#include "core/json.h"
#include "core/rng.h"
#include "data/tokenizer_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FIXTURES TEST_DIR "/data/fixtures/"

static void ok(enum status status) {
    if (status != STATUS_OK)
        fail_msg("%s", status_message());
}

/* A .hex fixture as the bytes it stands for, any other file as it is. */
static struct text load(const char *path) {
    struct text raw = {0}, bytes = {0};
    ok(file_read(path, 0, &raw));
    if (!strstr(path, ".hex"))
        return raw;
    for (int64_t i = 0; i + 1 < raw.n; i += raw.data[i] == '\n' ? 1 : 2) {
        unsigned value;
        if (raw.data[i] != '\n' && sscanf(raw.data + i, "%2x", &value) == 1)
            ok(text_add(&bytes, &(char){(char)value}, 1));
    }
    text_free(&raw);
    return bytes;
}

static struct tokenizer *open_fixture(const char *name) {
    struct tokenizer *t;
    char path[512];
    if (strcmp(name, "demo") == 0) {
        ok(tokenizer_open(TEST_DIR "/../configs/demo/model", &t));
        return t;
    }
    snprintf(path, sizeof path, FIXTURES "%s", name);
    struct text bytes = load(path);
    ok(tokenizer_parse(bytes.data, bytes.n, path, &t));
    text_free(&bytes);
    return t;
}

static void check_ids(const struct tokenizer *t, const char *name, const char *text, int64_t n,
                      const struct json *expected) {
    struct ids ids = {0};
    ok(tokenizer_encode(t, text, n, &ids));
    int64_t k = 0;
    for (const struct json *c = json_first(expected); c; c = json_next(c), k++)
        if (k >= ids.n || ids.data[k] != json_int(c))
            fail_msg("%s: \"%s\": id %lld is %d, expected %lld", name, text, (long long)k,
                     k < ids.n ? ids.data[k] : -1, (long long)json_int(c));
    if (k != ids.n)
        fail_msg("%s: \"%s\": %lld ids, expected %lld", name, text, (long long)ids.n, (long long)k);
    ids_free(&ids);
}

static void check_decoded(const struct tokenizer *t, const char *name, const struct json *ids,
                          const char *expected) {
    struct text out = {0};
    int32_t previous = -1;
    ok(text_puts(&out, ""));
    for (const struct json *c = json_first(ids); c; c = json_next(c)) {
        ok(tokenizer_decode(t, previous, (int32_t)json_int(c), &out));
        previous = (int32_t)json_int(c);
    }
    if (strcmp(out.data, expected) != 0)
        fail_msg("%s: decoded \"%s\", expected \"%s\"", name, out.data, expected);
    text_free(&out);
}

/* 20000 characters, the same as noise() of make_fixtures.py: one long word for most tokenizers. */
static struct text make_noise(void) {
    static const char *const pool[] = {
        "e", "e", "e", "t",  "t", " ", "a", "a",  "o", "n",  "h",  "i",  "s",    " ", " ", "r",
        "d", "l", ".", "\n", ",", "'", "1", "\t", "é", "日", "本", "語", "🙂", "x", "▁", "A"};
    struct text out = {0};
    uint32_t state = 1;
    for (int k = 0; k < 20000; k++) {
        state = (state * 1103515245u + 12345u) & 0x7fffffff;
        ok(text_puts(&out, pool[(state >> 16) % (sizeof pool / sizeof *pool)]));
    }
    return out;
}

static void check_noise(const struct tokenizer *t, const char *name, const struct json *expected) {
    struct text text = make_noise();
    struct ids ids = {0};
    ok(tokenizer_encode(t, text.data, text.n, &ids));
    char hash[32];
    snprintf(hash, sizeof hash, "%016llx",
             (unsigned long long)hash_bytes(ids.data, ids.n * (int64_t)sizeof *ids.data, 0));
    if (ids.n != json_int(json_get(expected, "n")) ||
        strcmp(hash, json_string(json_get(expected, "hash"))) != 0)
        fail_msg("%s: noise: %lld ids of hash %s, expected %lld", name, (long long)ids.n, hash,
                 (long long)json_int(json_get(expected, "n")));
    ids_free(&ids);
    text_free(&text);
}

static void ids_and_text_equal_the_libraries(void **state) {
    (void)state;
    struct json *root;
    int n_case = 0, n_decoded = 0;
    ok(json_load(FIXTURES "expected.json", &root));
    for (const struct json *f = json_first(root); f; f = json_next(f)) {
        struct tokenizer *t = open_fixture(json_key(f));
        for (int twice = 0; twice < 2; twice++) { /* the second time out of the cache */
            const struct json *c = json_first(json_get(f, "cases"));
            for (; c; c = json_next(c), n_case++) {
                const char *text = json_string(json_get(c, "text"));
                const char *decoded = json_string(json_get(c, "decoded"));
                const struct json *ids = json_get(c, "ids");
                check_ids(t, json_key(f), text, (int64_t)strlen(text), ids);
                if (decoded)
                    check_decoded(t, json_key(f), ids, decoded);
                n_decoded += decoded != NULL;
            }
        }
        check_noise(t, json_key(f), json_get(f, "noise"));
        tokenizer_close(t);
    }
    json_free(root);
    assert_true(n_case > 300 && n_decoded > 200);
}

static void shared_model_gives_its_ids(void **state) {
    (void)state;
    struct json *root;
    struct tokenizer *t;
    if (!path_exists(SHARED_DIR "/cases/tok512.json"))
        skip();
    ok(json_load(SHARED_DIR "/cases/tok512.json", &root));
    ok(tokenizer_open(SHARED_DIR "/checkpoints/stories260K", &t));
    assert_int_equal(tokenizer_n_vocab(t), 512);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_true(tokenizer_adds_bos(t));
    for (const struct json *c = json_first(json_get(root, "cases")); c; c = json_next(c)) {
        const char *text = json_string(json_get(c, "text"));
        check_ids(t, "tok512", text, (int64_t)strlen(text), json_get(c, "ids"));
    }
    tokenizer_close(t);
    json_free(root);
}

static void special_tokens_are_known(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t n_vocab;
        int32_t bos, eos;
        bool adds_bos;
    } expected[] = {{"demo", 1024, 0, 0, false},
                    {"llama3_style.json", 409, 407, -1, true},
                    {"llama2_style.json", 479, 1, -1, true},
                    {"mistral_style.json", 223, -1, -1, false},
                    {"spm.hex", 430, 1, 2, true}};
    for (int k = 0; k < 5; k++) {
        struct tokenizer *t = open_fixture(expected[k].name);
        assert_int_equal(tokenizer_n_vocab(t), expected[k].n_vocab);
        assert_int_equal(tokenizer_bos(t), expected[k].bos);
        assert_int_equal(tokenizer_eos(t), expected[k].eos);
        assert_int_equal(tokenizer_adds_bos(t), expected[k].adds_bos);
        tokenizer_close(t);
    }
}

static void invalid_utf8_names_its_byte(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t n, at;
    } bad[] = {{"abc\x80", 4, 3},          {"\xc3", 1, 0},
               {"12345678\xff", 9, 8},     {"\xc0\x80", 2, 0},
               {"a\xed\xa0\x80", 4, 1},    {"\xf4\x90\x80\x80", 4, 0},
               {"\xe0\x9f\xbf", 3, 0},     {"ok \xf0\x9f\x99", 6, 3},
               {"\xe6\x97\xa5\xe6", 4, 3}, {"\xf8\x88\x80\x80\x80", 5, 0}};
    struct tokenizer *t = open_fixture("llama3_style.json");
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        struct ids ids = {0};
        char expected[64];
        snprintf(expected, sizeof expected, "invalid UTF-8 at byte %lld", (long long)bad[k].at);
        assert_int_equal(tokenizer_encode(t, bad[k].text, bad[k].n, &ids), STATUS_FAILED);
        assert_non_null(strstr(status_message(), expected));
        assert_int_equal(ids.n, 0);
    }
    struct text out = {0};
    assert_int_equal(tokenizer_decode(t, -1, 409, &out), STATUS_FAILED);
    assert_int_equal(tokenizer_decode(t, -1, -1, &out), STATUS_FAILED);
    tokenizer_close(t);
}

/* The first and longest-lived promise of the merge loop: no quadratic time on one long word. A
 * quadratic one takes minutes here. */
static void megabytes_without_a_space_are_quick(void **state) {
    (void)state;
    static const char *const names[] = {"llama3_style.json", "llama2_style.json", "spm.hex"};
    struct text text = {0};
    for (int k = 0; k < 150000; k++)
        ok(text_puts(&text, "strongerthe"));
    for (int k = 0; k < 3; k++) {
        struct tokenizer *t = open_fixture(names[k]);
        struct ids ids = {0};
        ok(tokenizer_encode(t, text.data, text.n, &ids));
        assert_true(ids.n >= 150000 && ids.n < text.n);
        ids_free(&ids);
        tokenizer_close(t);
    }
    text_free(&text);
}

#define MODEL(more)                                                                                \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]" more "}"
#define WITH(more) "{" more "," MODEL("") "}"

static void what_is_not_done_is_refused_by_name(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{", "not valid JSON"},
        {"{}", "no \"model\""},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "\"Unigram\""},
        {"{\"model\":{\"type\":\"BPE\"}}", "no model.vocab"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "expected an id"},
        {"{\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}}", "expected an id"},
        {"{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}}", "expected an id"},
        {"{\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", "two tokens have id 1"},
        {"{\"model\":{\"vocab\":{\"a\":1,\"a\":2},\"merges\":[]}}", "\"a\" is there twice"},
        {"{\"model\":{\"vocab\":{\"a\":0}}}", "no model.merges"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "not a pair"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", "not a pair"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]}}", "not a pair"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a x\"]}}", "\"x\" is not in"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "\"a\" with \"a\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\" a\"]}}", "merge 0"},
        {"{" MODEL(",\"dropout\":0.1") "}", "dropout"},
        {"{" MODEL(",\"continuing_subword_prefix\":\"##\"") "}", "continuing_subword_prefix"},
        {"{" MODEL(",\"end_of_word_suffix\":\"</w>\"") "}", "end_of_word_suffix"},
        {"{" MODEL(",\"unk_token\":\"<unk>\"") "}", "unk_token"},
        {WITH("\"normalizer\":{\"type\":\"Lowercase\"}"), "normalizer \"Lowercase\""},
        {WITH("\"normalizer\":{}"), "\"type\""},
        {WITH("\"normalizer\":3"), "normalizer is not an object"},
        {WITH("\"normalizer\":{\"type\":\"Replace\",\"content\":\"x\"}"), "pattern"},
        {WITH("\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}"), "\"BertPreTokenizer\""},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}"), "not valid"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a*\"}}"), "nothing"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"}}"), "\\h"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"}}"), "&&"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?im:a)\"}}"), "(?i"},
        {WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Odd\"}"), "\"Odd\""},
        {WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"odd\"}"), "\"odd\""},
        {WITH(
             "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
             "{\"type\":\"Digits\"}]}"),
         "after ByteLevel"},
        {WITH("\"decoder\":{\"type\":\"WordPiece\"}"), "decoder \"WordPiece\""},
        {WITH("\"decoder\":{\"type\":\"ByteLevel\"}"), "\"ByteLevel\""},
        {WITH("\"post_processor\":{\"type\":\"BertProcessing\"}"), "\"BertProcessing\""},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{}},"
              "{\"SpecialToken\":{\"id\":\"a\"}}]}"),
         "after the text"},
        {WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
              "{\"SpecialToken\":{\"id\":\"zz\"}},{\"Sequence\":{}}]}"),
         "\"zz\""},
        {WITH("\"added_tokens\":[{\"id\":7}]"), "\"content\""},
        {WITH("\"added_tokens\":[{\"id\":7,\"content\":\"a\"}]"), "added token \"a\" has id 7"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct tokenizer *t;
        const char *text = cases[k][0];
        if (tokenizer_parse(text, (int64_t)strlen(text), "tok.json", &t) == STATUS_OK)
            fail_msg("accepted: %s", text);
        assert_null(t);
        if (!strstr(status_message(), cases[k][1]) || !strstr(status_message(), "tok.json") ||
            strchr(status_message(), '\n'))
            fail_msg("%s: message \"%s\" without %s", text, status_message(), cases[k][1]);
    }
}

/* Cut anywhere, and with any byte changed: refused or read, never worse. */
static void damaged_models_are_survived(void **state) {
    (void)state;
    struct text model = load(FIXTURES "spm.hex"), out = {0};
    int refused = 0;
    for (int64_t k = 0; k < 2 * model.n; k += k < 600 ? 1 : 7) {
        struct tokenizer *t;
        int64_t at = k % model.n, n = k < model.n ? at : model.n;
        char *copy; /* exact, for the sanitizer */
        ok(memory_alloc(n, 1, "copy", &copy));
        memcpy(copy, model.data, (size_t)n);
        if (k >= model.n)
            copy[at] = (char)(copy[at] ^ (1 << k % 8));
        if (tokenizer_parse(copy, n, "tok.model", &t) == STATUS_OK) {
            struct ids ids = {0};
            ok(tokenizer_encode(t, "the ﬁ①--\t sun\u3000 <tool>日本", 30, &ids));
            ids_free(&ids);
            tokenizer_close(t);
        } else {
            assert_non_null(strstr(status_message(), "tok.model"));
            refused++;
        }
        memory_free(copy);
    }
    assert_true(refused > 500);
    text_free(&model);
    text_free(&out);
}

static void missing_files_are_named(void **state) {
    (void)state;
    struct tokenizer *t;
    assert_int_equal(tokenizer_open(TEST_DIR "/data", &t), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "no tokenizer.json"));
    assert_int_equal(tokenizer_open(TEST_DIR "/absent.json", &t), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "absent.json"));
    assert_int_equal(tokenizer_parse("", 0, "x.model", &t), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "x.model"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_text_equal_the_libraries),
        cmocka_unit_test(shared_model_gives_its_ids),
        cmocka_unit_test(special_tokens_are_known),
        cmocka_unit_test(invalid_utf8_names_its_byte),
        cmocka_unit_test(megabytes_without_a_space_are_quick),
        cmocka_unit_test(what_is_not_done_is_refused_by_name),
        cmocka_unit_test(damaged_models_are_survived),
        cmocka_unit_test(missing_files_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
