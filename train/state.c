/* See state.h. */
#include "train/state.h"

#include "checkpoints/checkpoint.h"
#include "core/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t CHUNK = 4 << 20; /* bytes between device and file at a time */

bool state_exists(const char *out_dir) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/last/training/state.json", out_dir);
    return n < (int)sizeof path && path_exists(path);
}

static enum status need_hash(const struct json *j, const char *what, const char *key,
                             uint64_t *out) {
    const char *text;
    char *end;
    TRY(json_need_string(j, what, key, &text));
    *out = strtoull(text, &end, 16);
    if (end == text || *end)
        return status_fail(STATUS_FAILED, "%s: '%s' should be a hexadecimal hash, found '%s'", what,
                           key, text);
    return STATUS_OK;
}

static enum status parse_state(const struct json *j, const char *what, struct run_state *out) {
    *out = (struct run_state){.best_step = -1};
    TRY(json_need_int(j, what, "step", &out->step));
    TRY(json_need_int(j, what, "position", &out->position));
    TRY(json_opt_int(j, what, "best_step", &out->best_step));
    TRY(json_opt_double(j, what, "best_nll", &out->best_nll));
    TRY(need_hash(j, what, "train_hash", &out->train_hash));
    TRY(need_hash(j, what, "heldout_hash", &out->heldout_hash));
    if (out->step < 0 || out->position < 0)
        return status_fail(STATUS_FAILED, "%s: step %lld at data position %lld cannot be", what,
                           (long long)out->step, (long long)out->position);
    return STATUS_OK;
}

enum status state_load(const char *out_dir, struct run_state *out, struct json **settings) {
    struct arena arena = {0};
    struct json *j = NULL, *copy = NULL;
    char *path;
    enum status status;
    *settings = NULL;
    TRY_OUT(arena_printf(&arena, &path, "%s/last/training/state.json", out_dir));
    TRY_OUT(json_load(path, &j));
    TRY_OUT(parse_state(j, path, out));
    copy = json_object();
    json_set_copy(copy, "config", json_get(j, "config"));
    *settings = copy;
out:
    json_free(j);
    arena_free(&arena);
    return status;
}

/* A frozen parameter is in the state only when the model file cannot hold it exactly. */
static bool keeps_frozen(const struct trainer *t) {
    return dtype_size(t->dtype) > dtype_size(t->student->config.dtype);
}

static const char *const prefixes[TRAINER_BUFFERS] = {"master", "m", "v"};

struct part {
    char name[160];
    struct tensor data; /* flat, on the device */
};

static struct tensor flat_param(const struct trainer *t, int64_t param) {
    struct tensor view = model_view(t->student, t->student->data, t->dtype, param);
    return tensor_1d(t->dtype, view.data, t->student->params[param].count);
}

/* Everything the state holds, in file order; in the arena. */
static enum status list_parts(const struct trainer *t, struct arena *arena, struct part **out,
                              int64_t *n) {
    int64_t most = (TRAINER_BUFFERS + 1) * t->student->n_param_tensors;
    TRY(arena_alloc(arena, most, (int64_t)sizeof **out, out));
    *n = 0;
    for (int k = 0; k < TRAINER_BUFFERS; k++)
        for (int64_t i = 0; i < t->n_trained; i++, ++*n) {
            struct part *p = *out + *n;
            snprintf(p->name, sizeof p->name, "%s.%s", prefixes[k],
                     t->student->params[t->trained[i].param].name);
            p->data = trainer_state(t, k, i);
        }
    for (int64_t i = 0; t->config->stochastic_rounding && i < t->n_trained; i++) {
        struct part *p = *out + (*n)++;
        int64_t param = t->trained[i].param;
        snprintf(p->name, sizeof p->name, "rounded.%s", t->student->params[param].name);
        p->data = flat_param(t, param);
    }
    for (int64_t i = 0; keeps_frozen(t) && i < t->student->n_param_tensors; i++)
        if (!t->wanted[i]) {
            struct part *p = *out + (*n)++;
            snprintf(p->name, sizeof p->name, "frozen.%s", t->student->params[i].name);
            p->data = flat_param(t, i);
        }
    return STATUS_OK;
}

static enum status write_part(const struct trainer *t, struct checkpoint_writer *w, int64_t i,
                              struct tensor data, void *buffer) {
    int64_t size = dtype_size(data.dtype), step = CHUNK / size;
    for (int64_t first = 0; first < data.shape[0]; first += step) {
        int64_t n = size_min(step, data.shape[0] - first);
        TRY(t->be->download(t->be, STREAM_COMPUTE, buffer, tensor_rows(data, first, n).data,
                            n * size));
        TRY(t->be->sync(t->be, STREAM_COMPUTE));
        TRY(checkpoint_writer_put(w, i, first * size, n * size, buffer));
    }
    return STATUS_OK;
}

static enum status write_tensors(const struct trainer *t, const char *dir) {
    struct arena arena = {0};
    struct checkpoint_writer *w = NULL;
    struct tensor_spec *specs;
    struct part *parts;
    void *buffer;
    int64_t n;
    enum status status;
    TRY_OUT(list_parts(t, &arena, &parts, &n));
    TRY_OUT(arena_alloc(&arena, n, (int64_t)sizeof *specs, &specs));
    TRY_OUT(arena_alloc(&arena, CHUNK, 1, &buffer));
    for (int64_t i = 0; i < n; i++)
        specs[i] =
            (struct tensor_spec){parts[i].name, parts[i].data.dtype, 1, {parts[i].data.shape[0]}};
    TRY_OUT(checkpoint_writer_open(dir, "state", specs, n, 0, &w));
    for (int64_t i = 0; i < n; i++)
        TRY_OUT(write_part(t, w, i, parts[i].data, buffer));
out:
    if (status == STATUS_OK)
        status = checkpoint_writer_close(w);
    else if (w)
        checkpoint_writer_abort(w);
    arena_free(&arena);
    return status;
}

static enum status read_part(const struct trainer *t, const struct checkpoint *c,
                             const struct part *p, void *buffer) {
    const struct checkpoint_tensor *from;
    TRY(checkpoint_need(c, p->name, &from));
    if (from->dtype != p->data.dtype || from->n_byte != tensor_bytes(&p->data))
        return status_fail(STATUS_FAILED, "%s: %s is %s of %lld bytes, expected %s of %lld",
                           from->path, p->name, dtype_name(from->dtype), (long long)from->n_byte,
                           dtype_name(p->data.dtype), (long long)tensor_bytes(&p->data));
    int64_t size = dtype_size(p->data.dtype), step = CHUNK / size;
    for (int64_t first = 0; first < p->data.shape[0]; first += step) {
        int64_t n = size_min(step, p->data.shape[0] - first);
        TRY(checkpoint_read(from, first * size, n * size, buffer));
        TRY(t->be->upload(t->be, STREAM_COMPUTE, tensor_rows(p->data, first, n).data, buffer,
                          n * size));
        TRY(t->be->sync(t->be, STREAM_COMPUTE));
    }
    return STATUS_OK;
}

/* The weights follow from their masters, as AdamW leaves them: rounded to nearest. */
static enum status round_masters(struct trainer *t) {
    for (int64_t i = 0; t->master && i < t->n_trained; i++) {
        struct cast_args cast = {.x = trainer_state(t, TRAINER_MASTER, i),
                                 .out = flat_param(t, t->trained[i].param)};
        TRY(t->be->cast(t->be, &cast));
    }
    return t->be->sync(t->be, STREAM_COMPUTE);
}

enum status state_restore(struct trainer *t, const char *out_dir) {
    struct arena arena = {0};
    struct checkpoint *c = NULL;
    struct part *parts;
    void *buffer;
    char *path;
    int64_t n;
    enum status status;
    TRY_OUT(arena_printf(&arena, &path, "%s/last/training/state.safetensors", out_dir));
    TRY_OUT(checkpoint_open(path, &c));
    TRY_OUT(list_parts(t, &arena, &parts, &n));
    TRY_OUT(arena_alloc(&arena, CHUNK, 1, &buffer));
    for (int64_t i = 0; i < n; i++)
        TRY_OUT(read_part(t, c, &parts[i], buffer));
    if (!t->config->stochastic_rounding)
        TRY_OUT(round_masters(t));
out:
    checkpoint_close(c);
    arena_free(&arena);
    return status;
}

static void set_hash(struct json *j, const char *key, uint64_t hash) {
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    json_set_string(j, key, text);
}

static enum status write_json(const struct trainer *t, const struct run_state *s,
                              const char *path) {
    struct json *j = json_object(), *config = train_config_to_json(t->config);
    json_set_int(j, "step", s->step);
    json_set_int(j, "position", s->position);
    json_set_int(j, "best_step", s->best_step);
    json_set_number(j, "best_nll", s->best_nll);
    set_hash(j, "train_hash", s->train_hash);
    set_hash(j, "heldout_hash", s->heldout_hash);
    json_set_copy(j, "config", config);
    enum status status = json_save(j, path);
    json_free(config);
    json_free(j);
    return status;
}

/* A tokenizer given apart from the model belongs into the folder too. */
static enum status copy_tokenizer(const char *from, const char *dir) {
    struct arena arena = {0};
    char *to;
    enum status status;
    if (path_is_dir(from))
        return model_copy_side_files(from, dir);
    TRY_OUT(path_join(&arena, dir, path_base(from), &to));
    TRY_OUT(file_copy(from, to));
out:
    arena_free(&arena);
    return status;
}

enum status state_save_model(const struct trainer *t, const char *dir) {
    const struct train_config *c = t->config;
    const char *from = strcmp(c->objective, "pretrain") ? c->student : c->model_config;
    TRY(model_save(t->student, dir, NULL, t->dtype, t->student->config.dtype, from));
    return c->tokenizer && *c->tokenizer ? copy_tokenizer(c->tokenizer, dir) : STATUS_OK;
}

static enum status save(const struct trainer *t, const struct run_state *s, const char *out_dir,
                        const char *name) {
    struct arena arena = {0};
    struct staging staged = {0};
    char *path, *folder;
    enum status status;
    TRY_OUT(path_join(&arena, out_dir, name, &path));
    TRY_OUT(staging_open(path, true, &staged));
    TRY_OUT(state_save_model(t, staged.path));
    if (s) {
        TRY_OUT(path_join(&arena, staged.path, "training", &folder));
        TRY_OUT(path_mkdirs(folder));
        TRY_OUT(write_tensors(t, folder));
        TRY_OUT(path_join(&arena, folder, "state.json", &path));
        TRY_OUT(write_json(t, s, path));
    }
    TRY_OUT(staging_commit(&staged));
out:
    staging_abort(&staged);
    arena_free(&arena);
    return status;
}

enum status state_save_last(const struct trainer *t, const struct run_state *s,
                            const char *out_dir) {
    return save(t, s, out_dir, "last");
}

enum status state_save_best(const struct trainer *t, const char *out_dir) {
    return save(t, NULL, out_dir, "best");
}
