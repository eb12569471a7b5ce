/* Writes a synthetic sharded MHA checkpoint of about `GB` gigabytes (bf16, llama, heads of 64,
 * WIDTH 2048 unless given) for bench/convert_*.sh: bench_make_checkpoint DIR GB [WIDTH] */
#include "checkpoints/checkpoint.h"
#include "core/file.h"
#include "core/rng.h"
#include "model/arch.h"

#include <stdio.h>
#include <stdlib.h>

enum { CHUNK = 1 << 20, NAME = 96 };

static int64_t declare(const struct model_config *c, struct tensor_spec *specs,
                       char (*names)[NAME]) {
    const struct arch *arch = arch_find(c->family);
    int64_t n = 0;
    for (int64_t l = -1; l < c->n_layer; l++)
        for (int r = 0; r < ROLE_COUNT; r++) {
            if (role_in_layer((enum role)r) != (l >= 0) || !config_has_role(c, (enum role)r))
                continue;
            arch_tensor_name(arch, (enum role)r, l, names[n], NAME);
            specs[n] = (struct tensor_spec){.name = names[n], .dtype = DTYPE_BF16};
            specs[n].rank = config_role_shape(c, (enum role)r, l, specs[n].shape);
            n++;
        }
    return n;
}

static enum status fill(struct checkpoint_writer *w, const struct tensor_spec *specs, int64_t n,
                        uint16_t *chunk) {
    for (int64_t i = 0; i < n; i++) {
        int64_t count = specs[i].shape[0] * (specs[i].rank == 2 ? specs[i].shape[1] : 1);
        for (int64_t at = 0; at < count; at += CHUNK) {
            int64_t m = size_min(CHUNK, count - at);
            chunk[i] ^= (uint16_t)(at / CHUNK); /* no two chunks quite alike */
            TRY(checkpoint_writer_put(w, i, at * 2, m * 2, chunk));
        }
    }
    return checkpoint_writer_close(w);
}

static enum status make(const char *dir, double gigabytes, int64_t width) {
    static struct model_config c = {.family = "llama",
                                    .n_vocab = 32000,
                                    .head_dim = 64,
                                    .max_position = 4096,
                                    .norm_eps = 1e-5,
                                    .rope_theta = 10000,
                                    .bos_id = 1,
                                    .eos_id = 2,
                                    .tied_head = true,
                                    .dtype = DTYPE_BF16};
    static struct tensor_spec specs[MODEL_MAX_LAYER * 10];
    static char names[MODEL_MAX_LAYER * 10][NAME];
    c.width = width;
    c.n_head = width / 64;
    c.n_ff = width * 11 / 4;
    double side = (double)width, layer = 2.0 * (4 + 3 * 11.0 / 4) * side * side;
    double embed = 2.0 * 32000 * side;
    c.n_layer = size_max(1, (int64_t)((gigabytes * 1e9 - embed) / layer));
    for (int64_t l = 0; l < c.n_layer; l++)
        c.n_kv_head[l] = (int32_t)c.n_head;
    int64_t n = declare(&c, specs, names);
    struct checkpoint_writer *w;
    struct arena arena = {0};
    uint16_t *chunk;
    char *path;
    TRY(path_mkdirs(dir));
    TRY(memory_alloc(CHUNK, 2, "chunk", &chunk));
    struct rng rng = rng_seed(1);
    for (int64_t i = 0; i < CHUNK; i++)
        chunk[i] = f32_to_bf16((float)(0.02 * rng_normal(&rng)));
    TRY(checkpoint_writer_open(dir, "model", specs, n, 500000000, &w));
    TRY(fill(w, specs, n, chunk));
    TRY(path_join(&arena, dir, "config.json", &path));
    struct json *j = model_config_to_json(&c);
    enum status status = json_save(j, path);
    json_free(j);
    arena_free(&arena);
    memory_free(chunk);
    return status;
}

int main(int argc, char **argv) {
    int64_t width = argc == 4 ? atoll(argv[3]) : 2048;
    if (argc < 3 || argc > 4 || !(atof(argv[2]) > 0) || atof(argv[2]) > 100 || width < 64 ||
        width > 16384 || width % 64) {
        fprintf(stderr, "usage: bench_make_checkpoint DIR GB [WIDTH]\n");
        return 2;
    }
    if (make(argv[1], atof(argv[2]), width) != STATUS_OK) {
        fprintf(stderr, "bench_make_checkpoint: %s\n", status_message());
        return 1;
    }
    return 0;
}
