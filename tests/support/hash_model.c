/* See hash_model.h. The formulas are mirrored in tests/train/make_reference.py. */
#include "tests/support/hash_model.h"

#include "checkpoints/checkpoint.h"
#include "core/file.h"
#include "model/arch.h"

#include <stdio.h>
#include <string.h>

static uint64_t splitmix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t fnv1a(const char *text) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

struct model_config hash_model_config(int64_t n_kv_head, bool bias, bool tied) {
    struct model_config c = {
        .family = "llama",
        .n_vocab = 64,
        .n_layer = 2,
        .width = 32,
        .n_head = 4,
        .head_dim = 8,
        .n_ff = 48,
        .max_position = 64,
        .norm_eps = 1e-5,
        .rope_theta = 10000,
        .qkv_bias = bias,
        .o_bias = bias,
        .tied_head = tied,
        .bos_id = 1,
        .eos_id = 2,
        .dtype = DTYPE_F32,
    };
    for (int64_t l = 0; l < c.n_layer; l++)
        c.n_kv_head[l] = (int32_t)n_kv_head;
    return c;
}

float hash_model_weight(uint64_t seed, const char *name, int64_t i) {
    uint64_t base = splitmix64(seed ^ fnv1a(name));
    float v = (float)(splitmix64(base + (uint64_t)i) >> 48) / 65536.0f - 0.5f;
    if (strstr(name, "norm"))
        return 1.0f + v / 4;
    if (strstr(name, "bias"))
        return v / 4;
    return strstr(name, "embed") || strstr(name, "lm_head") ? v : v / 2;
}

int32_t hash_model_token(uint64_t seed, int64_t i, int64_t n_vocab) {
    return (int32_t)((splitmix64(splitmix64(seed) + (uint64_t)i) >> 16) % (uint64_t)n_vocab);
}

static enum status write_tensors(struct checkpoint_writer *w, const struct tensor_spec *specs,
                                 int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) {
        struct tensor t = {.dtype = specs[i].dtype, .rank = specs[i].rank};
        memcpy(t.shape, specs[i].shape, sizeof t.shape);
        int64_t size = dtype_size(t.dtype);
        for (int64_t j = 0; j < tensor_count(&t); j++) {
            float v = hash_model_weight(seed, specs[i].name, j);
            char bytes[8];
            if (!dtype_convert(&v, DTYPE_F32, bytes, t.dtype, 1))
                return status_fail(STATUS_FAILED, "hash model: %s is no float type",
                                   dtype_name(t.dtype));
            TRY(checkpoint_writer_put(w, i, j * size, size, bytes));
        }
    }
    return STATUS_OK;
}

enum status hash_model_write(const char *dir, const struct model_config *config, uint64_t seed,
                             enum dtype dtype) {
    enum { MAX_TENSOR = 256 };
    static struct tensor_spec specs[MAX_TENSOR];
    static char names[MAX_TENSOR][128];
    int64_t n = 0;
    const struct arch *arch = arch_find(config->family);
    for (int r = 0; r < ROLE_COUNT; r++) {
        int64_t layers = role_in_layer(r) ? config->n_layer : 1;
        for (int64_t l = 0; l < layers && config_has_role(config, r) && n < MAX_TENSOR; l++, n++) {
            arch_tensor_name(arch, r, l, names[n], sizeof names[n]);
            specs[n] = (struct tensor_spec){.name = names[n], .dtype = dtype};
            specs[n].rank = config_role_shape(config, r, l, specs[n].shape);
        }
    }
    struct model_config copy = *config;
    copy.dtype = dtype;
    struct json *json = model_config_to_json(&copy);
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    enum status status = path_mkdirs(dir);
    if (status == STATUS_OK)
        status = json_save(json, path);
    json_free(json);
    TRY(status);
    struct checkpoint_writer *w;
    TRY(checkpoint_writer_open(dir, "model", specs, n, 0, &w));
    status = write_tensors(w, specs, n, seed);
    if (status != STATUS_OK) {
        checkpoint_writer_abort(w);
        return status;
    }
    return checkpoint_writer_close(w);
}
