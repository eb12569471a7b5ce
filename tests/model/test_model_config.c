/* config.json: defaults of each family, both spellings, what is refused and by which name, and the
 * edit that leaves every other byte alone. */
#include "model/arch.h"
#include "model/config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define SIZES                                                                                      \
    "\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"      \
    "\"num_attention_heads\":8"

static enum status parse(const char *text, struct model_config *c) {
    struct json *j;
    assert_int_equal(json_parse(text, (int64_t)strlen(text), "config.json", &j), STATUS_OK);
    enum status status = model_config_parse(j, "config.json", c);
    json_free(j);
    return status;
}

static struct model_config good(const char *text) {
    static struct model_config c;
    if (parse(text, &c) != STATUS_OK)
        fail_msg("%s", status_message());
    return c;
}

#define LLAMA(more) "{\"model_type\":\"llama\"," SIZES more "}"
#define QWEN(more) "{\"model_type\":\"qwen2\"," SIZES more "}"
#define MISTRAL(more) "{\"model_type\":\"mistral\"," SIZES more "}"
#define KV ",\"num_key_value_heads\":4"

static void fills_in_each_familys_defaults(void **state) {
    (void)state;
    struct model_config c = good(LLAMA(""));
    assert_int_equal(c.n_kv_head[1], 8);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.max_position, 2048);
    assert_int_equal(c.sliding_window, 0);
    assert_true(c.norm_eps == 1e-6 && c.rope_theta == 10000 && c.dtype == DTYPE_F32);
    assert_true(!c.qkv_bias && !c.o_bias && !c.tied_head && c.bos_id == -1);
    c = good(LLAMA(",\"attention_bias\":true,\"num_key_value_heads\":null,\"head_dim\":16"));
    assert_true(c.qkv_bias && c.o_bias && c.n_kv_head[0] == 8 && c.head_dim == 16);
    c = good(QWEN(KV));
    assert_true(c.qkv_bias && !c.o_bias && c.sliding_window == 0);
    c = good(QWEN(",\"num_key_value_heads\":null,\"use_sliding_window\":true,"
                  "\"sliding_window\":77,\"max_window_layers\":0"));
    assert_true(c.n_kv_head[0] == 8 && c.sliding_window == 77);
    c = good(QWEN(KV ",\"use_sliding_window\":true,\"max_window_layers\":2"));
    assert_int_equal(c.sliding_window, 0);
    c = good(MISTRAL(""));
    assert_true(c.n_kv_head[0] == 8 && c.sliding_window == 4096 && !c.qkv_bias);
    c = good(MISTRAL(",\"sliding_window\":null"));
    assert_int_equal(c.sliding_window, 0);
    c = good(LLAMA(",\"eos_token_id\":[7,8],\"bos_token_id\":null,\"dtype\":\"bfloat16\","
                   "\"torch_dtype\":\"float16\""));
    assert_true(c.eos_id == 7 && c.bos_id == -1 && c.dtype == DTYPE_BF16);
}

static void reads_rope_in_both_spellings(void **state) {
    (void)state;
    static const char *const llama3[] = {
        LLAMA(",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
              "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
              "\"original_max_position_embeddings\":8192}"),
        LLAMA(",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\","
              "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
              "\"original_max_position_embeddings\":8192},\"rope_scaling\":null"),
    };
    for (int i = 0; i < 2; i++) {
        struct model_config c = good(llama3[i]);
        assert_true(c.rope_theta == 500000 && c.rope_scaling == ROPE_LLAMA3 && c.rope_factor == 8);
        assert_true(c.rope_low_freq == 1 && c.rope_high_freq == 4);
        assert_int_equal(c.rope_original_position, 8192);
    }
    struct model_config c = good(LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}"));
    assert_true(c.rope_scaling == ROPE_LINEAR && c.rope_factor == 2);
    float half[4];
    model_rope_inv_freq(&c, half);
    assert_true(half[0] == 0.5f && fabsf(half[2] - 0.005f) <= 1e-9f);
    c = good(LLAMA(",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5}"));
    assert_true(c.rope_scaling == ROPE_PLAIN && c.rope_theta == 5);
}

/* Llama-3.1's frequencies, head_dim 128, from transformers' modeling_rope_utils in float64. */
static void scales_frequencies_like_llama3(void **state) {
    (void)state;
    struct model_config c = {.head_dim = 128,
                             .rope_theta = 500000,
                             .rope_scaling = ROPE_LLAMA3,
                             .rope_factor = 8,
                             .rope_low_freq = 1,
                             .rope_high_freq = 4,
                             .rope_original_position = 8192};
    static const struct {
        int i;
        double value;
    } right[] = {{0, 1},
                 {10, 0.12868737343265052},
                 {28, 0.0032114459947525913},
                 {29, 0.0021665707635033591},
                 {30, 0.0013718935677611379},
                 {32, 0.00052484616099295468},
                 {34, 0.00017850781276799638},
                 {35, 9.5562123539646833e-05},
                 {40, 3.4281021959525912e-05},
                 {63, 3.0689259889145111e-07}};
    float f[64];
    model_rope_inv_freq(&c, f);
    for (size_t k = 0; k < sizeof right / sizeof *right; k++) {
        double err = fabs((double)f[right[k].i] - right[k].value);
        assert_true(err <= 1e-7 * right[k].value);
    }
}

static void refuses_by_name(void **state) {
    (void)state;
    static const struct {
        const char *text, *named;
    } cases[] = {
        {"[]", "expected a JSON object"},
        {"{}", "model_type"},
        {"{\"model_type\":\"gpt_neox\"}", "model_type is \"gpt_neox\""},
        {"{\"model_type\":\"llama\"}", "vocab_size"},
        {LLAMA(",\"hidden_act\":\"gelu\""), "hidden_act is \"gelu\""},
        {LLAMA(",\"mlp_bias\":true"), "mlp_bias"},
        {LLAMA(",\"quantization_config\":{\"bits\":4}"), "quantization_config"},
        {LLAMA(",\"partial_rotary_factor\":0.5"), "partial_rotary_factor"},
        {LLAMA(",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}"),
         "partial_rotary_factor"},
        {LLAMA(",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}"),
         "rope_parameters.full_attention"},
        {LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}"),
         "rope_scaling.rope_type is \"yarn\""},
        {LLAMA(",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}"), "rope_scaling.type"},
        {LLAMA(",\"rope_scaling\":{\"type\":\"linear\"}"), "rope_scaling.factor"},
        {LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}"), "rope_scaling.factor"},
        {LLAMA(",\"rope_scaling\":{\"factor\":4}"), "rope_scaling has a factor but no rope_type"},
        {LLAMA(",\"rope_scaling\":\"linear\""), "rope_scaling"},
        {LLAMA(",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
               "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}"),
         "low_freq_factor"},
        {LLAMA(",\"rope_theta\":-1"), "rope_theta"},
        {LLAMA(",\"rms_norm_eps\":\"small\""), "rms_norm_eps"},
        {LLAMA(",\"num_key_value_heads\":3"), "num_key_value_heads is 3"},
        {LLAMA(",\"num_key_value_heads\":16"), "num_key_value_heads is 16"},
        {LLAMA(",\"num_key_value_heads\":0"), "num_key_value_heads"},
        {LLAMA(",\"num_key_value_heads\":-8"), "num_key_value_heads"},
        {LLAMA(",\"num_key_value_heads\":2.5"), "num_key_value_heads"},
        {LLAMA(",\"num_key_value_heads\":\"4\""), "num_key_value_heads"},
        {LLAMA(KV ",\"num_kv_heads\":8"), "num_kv_heads is 8"},
        {LLAMA(",\"num_key_value_heads_per_layer\":[4]"), "num_key_value_heads_per_layer"},
        {LLAMA(",\"num_key_value_heads_per_layer\":[4,3]"), "num_key_value_heads_per_layer is 3"},
        {QWEN(""), "num_key_value_heads (absent"},
        {QWEN(KV ",\"use_sliding_window\":true,\"max_window_layers\":1"), "max_window_layers is 1"},
        {QWEN(KV ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]"), "layer_types"},
        {MISTRAL(",\"attention_bias\":true"), "attention_bias"},
        {LLAMA(",\"head_dim\":7"), "head_dim is 7"},
        {LLAMA(",\"head_dim\":0"), "head_dim"},
        {LLAMA(",\"head_dim\":1000000000000"), "head_dim"},
        {LLAMA(",\"torch_dtype\":\"int8\""), "torch_dtype is \"int8\""},
        {LLAMA(",\"tie_word_embeddings\":\"yes\""), "tie_word_embeddings"},
        {LLAMA(",\"max_position_embeddings\":1e99"), "max_position_embeddings"},
        {"{\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":96,"
         "\"num_hidden_layers\":1025,\"num_attention_heads\":8}",
         "num_hidden_layers: expected an integer from 1 to 1024"},
        {"{\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":60,\"intermediate_size\":96,"
         "\"num_hidden_layers\":2,\"num_attention_heads\":8}",
         "head_dim is absent"},
        {"{\"model_type\":\"llama\",\"vocab_size\":-1,\"hidden_size\":64,\"intermediate_size\":96,"
         "\"num_hidden_layers\":2,\"num_attention_heads\":8}",
         "vocab_size"},
        {"{\"model_type\":\"llama\",\"vocab_size\":1,\"hidden_size\":99999999999,"
         "\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":8}",
         "hidden_size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c;
        assert_int_equal(parse(cases[i].text, &c), STATUS_FAILED);
        if (!strstr(status_message(), cases[i].named) || !strstr(status_message(), "config.json"))
            fail_msg("'%s' does not say '%s'", status_message(), cases[i].named);
    }
}

static void edit(const char *before, const char *after, int32_t n_kv, enum dtype dtype) {
    struct model_config c = good(before);
    struct text text = {0};
    for (int64_t l = 0; l < c.n_layer; l++)
        c.n_kv_head[l] = n_kv;
    assert_int_equal(text_puts(&text, before), STATUS_OK);
    assert_int_equal(model_config_edit(&text, &c, dtype), STATUS_OK);
    assert_string_equal(text.data, after);
    text_free(&text);
}

static void edits_only_what_changes(void **state) {
    (void)state;
    edit(
        LLAMA(",\"rms_norm_eps\":1.00E-05,\"num_key_value_heads\" : 8,\"head_dim\":8,  \"x\":[1 ]"),
        LLAMA(",\"rms_norm_eps\":1.00E-05,\"num_key_value_heads\" : 2,\"head_dim\":8,  \"x\":[1 ]"),
        2, DTYPE_COUNT);
    edit(LLAMA(",\"torch_dtype\":\"float32\""),
         LLAMA(",\"torch_dtype\":\"bfloat16\",\"num_key_value_heads\": 1,\"head_dim\": 8"), 1,
         DTYPE_BF16);
    edit(LLAMA(KV ",\"num_kv_heads\":4,\"dtype\":\"float32\",\"head_dim\":16,"
                  "\"num_key_value_heads_per_layer\":[4,4]"),
         LLAMA(",\"num_key_value_heads\":2,\"num_kv_heads\":2,\"dtype\":\"float16\","
               "\"head_dim\":16,\"num_key_value_heads_per_layer\":[2, 2]"),
         2, DTYPE_F16);
}

static void writes_what_it_reads(void **state) {
    (void)state;
    static const char *const texts[] = {
        LLAMA(KV ",\"attention_bias\":true,\"tie_word_embeddings\":true,\"bos_token_id\":1"),
        LLAMA(",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
              "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}"),
        LLAMA(",\"num_key_value_heads\":8,\"num_key_value_heads_per_layer\":[8,2]"),
        QWEN(KV),
        QWEN(KV ",\"use_sliding_window\":true,\"max_window_layers\":0"),
        MISTRAL(KV ",\"sliding_window\":null"),
        MISTRAL(KV ",\"torch_dtype\":\"bfloat16\"")};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct model_config c = good(texts[i]), back;
        struct json *j = model_config_to_json(&c);
        assert_int_equal(model_config_parse(j, "config.json", &back), STATUS_OK);
        json_free(j);
        assert_memory_equal(&c, &back, sizeof c);
    }
}

static void matches_names_and_roles(void **state) {
    (void)state;
    const struct arch *a = arch_find("qwen2");
    char name[128];
    enum role role;
    int64_t layer;
    for (int r = 0; r < ROLE_COUNT; r++) {
        if (!a->names[r])
            continue;
        arch_tensor_name(a, (enum role)r, 31, name, sizeof name);
        assert_true(arch_match(a, name, &role, &layer));
        assert_int_equal(role, r);
        assert_int_equal(layer, role_in_layer(role) ? 31 : -1);
    }
    static const char *const others[] = {
        "model.layers.01.self_attn.q_proj.weight",
        "model.layers..self_attn.q_proj.weight",
        "model.layers.-1.self_attn.q_proj.weight",
        "model.layers.1x.self_attn.q_proj.weight",
        "model.layers.99999999999999999999.self_attn.q_proj.weight",
        "model.layers.1.self_attn.rotary_emb.inv_freq",
        "model.norm.weight2",
        "model.norm",
        ""};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(arch_match(a, others[i], &role, &layer));
    assert_null(arch_find("gpt2"));
    assert_false(
        arch_match(arch_find("mistral"), "model.layers.0.self_attn.q_proj.bias", &role, &layer));
}

static void counts_cache_and_parallel_sizes(void **state) {
    (void)state;
    struct model_config c = {.n_layer = 32, .n_head = 32, .head_dim = 128};
    int64_t sizes[16];
    for (int64_t l = 0; l < 32; l++)
        c.n_kv_head[l] = 8;
    assert_int_equal(model_kv_bytes_per_token(&c, DTYPE_F16), 128 * 1024); /* methods: Llama-2-7B */
    assert_int_equal(model_tensor_parallel(&c, sizes, 16), 6);
    assert_int_equal(sizes[5], 32);
    assert_int_equal(model_tensor_parallel(&c, sizes, 3), 3);
    c.n_kv_head[3] = 2;
    assert_int_equal(model_kv_bytes_per_token(&c, DTYPE_F16), 128 * 1024 - 2 * 6 * 128 * 2);
    assert_false(model_kv_uniform(&c));
    c = (struct model_config){.n_layer = 1, .n_head = 12, .n_kv_head = {4}, .head_dim = 8};
    assert_int_equal(model_tensor_parallel(&c, sizes, 16), 4); /* 1 2 4 12: 6 fits neither way */
    assert_int_equal(sizes[3], 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_in_each_familys_defaults),
        cmocka_unit_test(reads_rope_in_both_spellings),
        cmocka_unit_test(scales_frequencies_like_llama3),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(edits_only_what_changes),
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(matches_names_and_roles),
        cmocka_unit_test(counts_cache_and_parallel_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
