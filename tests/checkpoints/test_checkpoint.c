/* safetensors: what must be refused, each with a message that names the file and the tensor, and
 * what must come back byte for byte. */
#include "checkpoints/checkpoint.h"
#include "core/file.h"
#include "core/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/regroup-checkpoint-XXXXXX");
    return mkdtemp(dir) ? 0 : 1;
}

static int drop_dir(void **state) {
    (void)state;
    return dir_remove(dir) == STATUS_OK ? 0 : 1;
}

static const char *at(const char *name) {
    static char path[4][160];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void put(const char *name, const void *bytes, int64_t n) {
    assert_int_equal(file_write(at(name), bytes, n), STATUS_OK);
}

/* A safetensors file with this header text, the length `claim` (-1: the true one), n_data bytes. */
static void put_file(const char *name, const char *header, int64_t claim, int64_t n_data) {
    unsigned char bytes[4096] = {0};
    size_t n = strlen(header);
    uint64_t said = claim < 0 ? n : (uint64_t)claim;
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(said >> (8 * i));
    memcpy(bytes + 8, header, n);
    put(name, bytes, 8 + (int64_t)n + n_data);
}

static void refuse(const char *path, const char *named) {
    struct checkpoint *c;
    assert_int_equal(checkpoint_open(path, &c), STATUS_FAILED);
    assert_null(c);
    if (!strstr(status_message(), named))
        fail_msg("'%s' does not say '%s'", status_message(), named);
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

static void refuses_bad_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        int64_t claim, n_data;
        const char *named;
    } cases[] = {
        {"{}", 1, 0, "header claims 1 bytes"},
        {"{}", 100, 0, "truncated"},
        {"{}", 1LL << 40, 0, "header claims"},
        {"{}", INT64_MAX, 0, "header claims"},
        {"[]", -1, 0, "not a JSON object"},
        {"{\"a\":", -1, 0, "model.safetensors"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", -1, 4, "tensor a: its data end at byte 8"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", -1, 12, "cover 8 bytes, but the file holds 12"},
        {"{" T("a", "F32", "[2]", "0", "4") "}", -1, 4, "tensor a: data_offsets cover 4 bytes"},
        {"{" T("a", "F32", "[1]", "4", "8") "}", -1, 8, "tensor a: there is a gap"},
        {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "4", "12") "}", -1, 12,
         "tensor b: its data overlap"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "0", "4") "}", -1, 4,
         "tensor b: its data overlap"},
        {"{" T("a", "F33", "[1]", "0", "4") "}", -1, 4, "tensor a: unknown dtype \"F33\""},
        {"{" T("a", "bfloat16", "[1]", "0", "2") "}", -1, 2, "unknown dtype \"bfloat16\""},
        {"{" T("a", "F32", "[-1]", "0", "4") "}", -1, 4, "tensor a: its shape"},
        {"{" T("a", "F32", "[1.5]", "0", "6") "}", -1, 6, "tensor a: its shape"},
        {"{" T("a", "F32", "\"1\"", "0", "4") "}", -1, 4, "tensor a: its shape"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", -1, 4, "tensor a: its shape"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", -1, 0, "larger than any"},
        {"{" T("a", "F32", "[3037000500,3037000500]", "0", "0") "}", -1, 0, "larger than any"},
        {"{" T("a", "F32", "[1]", "4", "0") "}", -1, 4, "tensor a: its data_offsets"},
        {"{" T("a", "F32", "[1]", "-4", "0") "}", -1, 4, "tensor a: its data_offsets"},
        {"{" T("a", "F32", "[1]", "0", "1e300") "}", -1, 4, "tensor a: its data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", -1, 4,
         "data_offsets"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 4, "tensor a: no dtype"},
        {"{\"a\":3}", -1, 0, "tensor a: no dtype"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", -1, 8,
         "key \"a\" is there twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_file("model.safetensors", cases[i].header, cases[i].claim, cases[i].n_data);
        refuse(dir, cases[i].named);
        refuse(dir, "model.safetensors");
    }
    put("model.safetensors", "short", 5);
    refuse(dir, "not a safetensors file");
}

static void accepts_the_odd_but_legal(void **state) {
    (void)state;
    struct checkpoint *c;
    /* No tensors; padding; a scalar, an empty tensor, wide shapes, metadata, unsorted order. */
    put_file("model.safetensors", "{}      ", -1, 0);
    assert_int_equal(checkpoint_open(dir, &c), STATUS_OK);
    assert_int_equal(checkpoint_count(c), 0);
    assert_null(checkpoint_find(c, "a"));
    checkpoint_close(c);
    put_file("model.safetensors",
             "{" T("z", "BF16", "[2,1]", "4", "8") "," T("e", "I64", "[0,9]", "4", "4") "," T(
                 "s", "F32", "[]", "0", "4") ",\"__metadata__\":{\"format\":\"pt\"}} ",
             -1, 4 + 4);
    assert_int_equal(checkpoint_open(at("model.safetensors"), &c), STATUS_OK);
    assert_int_equal(checkpoint_count(c), 3);
    assert_string_equal(checkpoint_at(c, 0)->name, "s");
    assert_int_equal(checkpoint_at(c, 0)->rank, 0);
    assert_string_equal(checkpoint_at(c, 2)->name, "z");
    assert_string_equal(checkpoint_metadata(c, "format"), "pt");
    assert_null(checkpoint_metadata(c, "other"));
    assert_int_equal(checkpoint_total_bytes(c), 8);
    char byte[9];
    assert_int_equal(checkpoint_read(checkpoint_find(c, "z"), 0, 5, byte), STATUS_FAILED);
    assert_int_equal(checkpoint_read(checkpoint_find(c, "z"), -1, 1, byte), STATUS_FAILED);
    assert_int_equal(checkpoint_read(checkpoint_find(c, "z"), 2, 2, byte), STATUS_OK);
    const struct checkpoint_tensor *t;
    assert_int_equal(checkpoint_need(c, "lm_head.weight", &t), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "lm_head.weight is missing"));
    checkpoint_close(c);
    assert_int_equal(unlink(at("model.safetensors")), 0);
}

static void holds_index_and_shards_to_each_other(void **state) {
    (void)state;
    struct checkpoint *c;
    refuse(dir, "neither model.safetensors nor");
    put("pytorch_model.bin", "x", 1);
    refuse(dir, "only pytorch_model.bin");
    refuse(at("nowhere"), "does not exist");
    put_file("one.safetensors", "{" T("a", "F32", "[1]", "0", "4") "}", -1, 4);
    put_file("two.safetensors", "{" T("b", "F32", "[1]", "0", "4") "}", -1, 4);
    static const struct {
        const char *index, *named;
    } cases[] = {
        {"{}", "weight_map"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":{\"a\":7}}", "weight_map.a"},
        {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}", "weight_map.a"},
        {"{\"weight_map\":{\"a\":\"\"}}", "weight_map.a"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"six.safetensors\"}}",
         "six.safetensors is missing"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}}",
         "tensor b is missing from one.safetensors"},
        {"{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}",
         "tensor a is missing from two.safetensors"},
        {"{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}",
         "tensor c is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("model.safetensors.index.json", cases[i].index, (int64_t)strlen(cases[i].index));
        refuse(dir, cases[i].named);
    }
    const char *good = "{\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}";
    put("model.safetensors.index.json", good, (int64_t)strlen(good));
    assert_int_equal(checkpoint_open(dir, &c), STATUS_OK);
    assert_string_equal(checkpoint_at(c, 0)->name, "a");
    assert_int_equal(checkpoint_count(c), 2);
    checkpoint_close(c);
    put_file("two.safetensors",
             "{" T("b", "F32", "[1]", "0", "4") "," T("x", "F32", "[1]", "4", "8") "}", -1, 8);
    refuse(dir, "tensor x of two.safetensors is not in the weight_map");
    put_file("two.safetensors",
             "{" T("b", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", -1, 8);
    refuse(dir, "tensor a is in two shards");
    assert_int_equal(unlink(at("model.safetensors.index.json")), 0);
}

static const struct tensor_spec specs[] = {
    {.name = "byte", .dtype = DTYPE_U8, .rank = 1, .shape = {3}},
    {.name = "half\"quoted\"", .dtype = DTYPE_BF16, .rank = 2, .shape = {5, 3}},
    {.name = "empty", .dtype = DTYPE_F16, .rank = 2, .shape = {0, 4}},
    {.name = "single", .dtype = DTYPE_F32, .rank = 2, .shape = {4, 8}},
    {.name = "double", .dtype = DTYPE_F64, .rank = 0},
};
enum { N_SPEC = sizeof specs / sizeof *specs };
static const int64_t spec_bytes[N_SPEC] = {3, 30, 0, 128, 8};

static unsigned char value(int64_t tensor, int64_t i) {
    return (unsigned char)(tensor * 77 + i * 13 + 5);
}

static void write_all(const char *stem, int64_t max_shard) {
    struct checkpoint_writer *w;
    assert_int_equal(checkpoint_writer_open(dir, stem, specs, N_SPEC, max_shard, &w), STATUS_OK);
    for (int64_t t = N_SPEC - 1; t >= 0; t--) /* any order, in pieces */
        for (int64_t first = 0; first < spec_bytes[t]; first += 50) {
            unsigned char piece[50];
            int64_t n = size_min(50, spec_bytes[t] - first);
            for (int64_t i = 0; i < n; i++)
                piece[i] = value(t, first + i);
            assert_int_equal(checkpoint_writer_put(w, t, first, n, piece), STATUS_OK);
        }
    assert_int_equal(checkpoint_writer_close(w), STATUS_OK);
}

static void check_all(const char *path) {
    struct checkpoint *c;
    assert_int_equal(checkpoint_open(path, &c), STATUS_OK);
    assert_int_equal(checkpoint_count(c), N_SPEC);
    for (int64_t t = 0; t < N_SPEC; t++) {
        unsigned char bytes[128];
        const struct checkpoint_tensor *found = checkpoint_find(c, specs[t].name);
        assert_non_null(found);
        assert_int_equal(found->dtype, specs[t].dtype);
        assert_int_equal(found->rank, specs[t].rank);
        assert_memory_equal(found->shape, specs[t].shape, sizeof found->shape);
        assert_int_equal(found->n_byte, spec_bytes[t]);
        assert_int_equal(found->offset % dtype_size(found->dtype), 0);
        assert_int_equal(checkpoint_read(found, 0, found->n_byte, bytes), STATUS_OK);
        for (int64_t i = 0; i < found->n_byte; i++)
            assert_int_equal(bytes[i], value(t, i));
    }
    assert_string_equal(checkpoint_metadata(c, "format"), "pt");
    checkpoint_close(c);
}

static void writes_what_it_reads(void **state) {
    (void)state;
    write_all("whole", 0);
    check_all(at("whole.safetensors"));
    assert_false(path_exists(at("whole.safetensors.index.json")));
    write_all("model", 100); /* byte, half, empty | single | double */
    assert_true(path_exists(at("model-00001-of-00003.safetensors")));
    check_all(dir);
    struct json *index;
    assert_int_equal(json_load(at("model.safetensors.index.json"), &index), STATUS_OK);
    assert_int_equal(json_int(json_get(json_get(index, "metadata"), "total_size")), 169);
    assert_string_equal(json_string(json_get(json_get(index, "weight_map"), "double")),
                        "model-00003-of-00003.safetensors");
    json_free(index);
}

static void copies_whole_tensors(void **state) {
    (void)state;
    struct checkpoint *c;
    struct checkpoint_writer *w;
    assert_int_equal(checkpoint_open(dir, &c), STATUS_OK);
    assert_int_equal(checkpoint_writer_open(dir, "copy", specs, N_SPEC, 0, &w), STATUS_OK);
    for (int64_t t = 0; t < N_SPEC; t++)
        assert_int_equal(checkpoint_writer_copy(w, t, checkpoint_find(c, specs[t].name)),
                         STATUS_OK);
    assert_int_equal(checkpoint_writer_close(w), STATUS_OK);
    check_all(at("copy.safetensors"));
    /* A tensor that was not written is noticed, and so is one that does not fit. */
    assert_int_equal(checkpoint_writer_open(dir, "hole", specs, N_SPEC, 0, &w), STATUS_OK);
    assert_int_equal(checkpoint_writer_copy(w, 0, checkpoint_find(c, "single")), STATUS_FAILED);
    assert_int_equal(checkpoint_writer_put(w, 0, 2, 2, "xx"), STATUS_FAILED);
    assert_int_equal(checkpoint_writer_put(w, 0, 0, 2, "xx"), STATUS_OK);
    assert_int_equal(checkpoint_writer_close(w), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "tensor byte: 2 of 3 bytes"));
    /* What stands there is not overwritten. */
    assert_int_equal(checkpoint_writer_open(dir, "copy", specs, N_SPEC, 0, &w), STATUS_FAILED);
    checkpoint_close(c);
}

/* Against isnan and isinf one by one, with the special values at every place of a block's edge. */
static void counts_what_is_not_finite(void **state) {
    (void)state;
    enum { N = 9000 };
    static float f[N];
    static double d[N];
    static uint16_t h[N];
    static const int64_t places[] = {0, 1, 4095, 4096, 4097, 8191, 8192, N - 1};
    for (int64_t i = 0; i < N; i++)
        f[i] = i % 7 ? 3.4e38f : -65504.0f; /* the largest finite ones must not count */
    for (size_t k = 0; k < sizeof places / sizeof *places; k++)
        f[places[k]] = k % 3 == 0 ? NAN : k % 3 == 1 ? INFINITY : -INFINITY;
    struct nonfinite found = {0};
    nonfinite_scan(f, DTYPE_F32, N, &found);
    assert_int_equal(found.n_nan, 3);
    assert_int_equal(found.n_inf, 5);
    dtype_convert(f, DTYPE_F32, d, DTYPE_F64, N);
    found = (struct nonfinite){0};
    nonfinite_scan(d, DTYPE_F64, N, &found);
    assert_true(found.n_nan == 3 && found.n_inf == 5);
    for (int64_t i = 0; i < N; i++)
        h[i] = i % 2 ? 0x7f7f : 0xff7f; /* bf16: the largest finite */
    h[4096] = 0xff80, h[17] = 0x7f80, h[N - 1] = 0xffff, h[0] = 0x7f81;
    found = (struct nonfinite){0};
    nonfinite_scan(h, DTYPE_BF16, N, &found);
    assert_true(found.n_nan == 2 && found.n_inf == 2);
    for (int64_t i = 0; i < N; i++)
        h[i] = i % 2 ? 0x7bff : 0xfbff; /* f16 */
    h[4095] = 0xfc00, h[5000] = 0x7e00;
    found = (struct nonfinite){0};
    nonfinite_scan(h, DTYPE_F16, N, &found);
    assert_true(found.n_nan == 1 && found.n_inf == 1);
    nonfinite_scan(h, DTYPE_I16, N, &found);
    assert_true(found.n_nan == 1 && found.n_inf == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_bad_headers),
        cmocka_unit_test(accepts_the_odd_but_legal),
        cmocka_unit_test(holds_index_and_shards_to_each_other),
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(copies_whole_tensors),
        cmocka_unit_test(counts_what_is_not_finite),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
