/* A model goes back to a folder: weights, configuration, and the files that stood beside them. */
#include "checkpoints/checkpoint.h"
#include "core/file.h"
#include "model/model.h"

#include <string.h>

enum { CHUNK = 1 << 20 }; /* elements */

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

bool model_is_weight_file(const char *name) {
    static const char *const ends[] = {".safetensors", ".bin", ".index.json", ".pt",  ".pth",
                                       ".gguf",        ".h5",  ".msgpack",    ".onnx"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

enum status model_copy_side_files(const char *from, const char *to) {
    /* Written anew, or ours and about another model. */
    static const char *const skipped[] = {"config.json", "regroup.json", "state.json"};
    struct arena arena = {0};
    enum status status;
    char **names, *source, *target;
    int64_t n;
    TRY_OUT(dir_list(&arena, from, &names, &n));
    for (int64_t i = 0; i < n; i++) {
        bool skip = model_is_weight_file(names[i]) || names[i][0] == '.';
        for (size_t k = 0; k < sizeof skipped / sizeof *skipped; k++)
            skip |= !strcmp(names[i], skipped[k]);
        TRY_OUT(path_join(&arena, from, names[i], &source));
        if (skip || path_is_dir(source))
            continue;
        TRY_OUT(path_join(&arena, to, names[i], &target));
        TRY_OUT(file_copy(source, target));
    }
out:
    arena_free(&arena);
    return status;
}

static enum status save_config(const struct model *m, const char *dir, enum dtype file_dtype,
                               const char *config_from, struct arena *arena) {
    char *path;
    TRY(path_join(arena, dir, "config.json", &path));
    if (!config_from) {
        struct model_config c = m->config;
        c.dtype = file_dtype;
        struct json *j = model_config_to_json(&c);
        enum status status = json_save(j, path);
        json_free(j);
        return status;
    }
    char *source;
    struct text text = {0};
    TRY(path_join(arena, config_from, "config.json", &source));
    enum status status = file_read(source, 1 << 24, &text);
    if (status == STATUS_OK)
        status = model_config_edit(&text, &m->config, file_dtype);
    if (status == STATUS_OK)
        status = file_write(path, text.data, text.n);
    text_free(&text);
    return status;
}

enum status model_save(const struct model *m, const char *dir, const void *source,
                       enum dtype source_dtype, enum dtype file_dtype, const char *config_from) {
    struct arena arena = {0};
    enum status status;
    struct tensor_spec *specs;
    struct checkpoint_writer *writer = NULL;
    void *raw = NULL, *converted = NULL;
    if (!source) {
        source = m->data;
        source_dtype = m->dtype;
    }
    TRY_OUT(arena_alloc(&arena, m->n_param_tensors, (int64_t)sizeof *specs, &specs));
    for (int64_t i = 0; i < m->n_param_tensors; i++) {
        const struct param *p = &m->params[i];
        specs[i] = (struct tensor_spec){.name = p->name, .dtype = file_dtype, .rank = p->rank};
        memcpy(specs[i].shape, p->shape, sizeof p->shape);
    }
    TRY_OUT(memory_alloc(CHUNK, 8, "save buffer", &raw));
    TRY_OUT(memory_alloc(CHUNK, 8, "save buffer", &converted));
    TRY_OUT(checkpoint_writer_open(dir, "model", specs, m->n_param_tensors,
                                   (int64_t)5 * 1000 * 1000 * 1000, &writer));
    int64_t from = dtype_size(source_dtype), to = dtype_size(file_dtype);
    for (int64_t i = 0; i < m->n_param_tensors; i++) {
        struct tensor view = model_view(m, source, source_dtype, i);
        int64_t count = m->params[i].count;
        for (int64_t at = 0; at < count; at += CHUNK) {
            int64_t n = size_min(CHUNK, count - at);
            TRY_OUT(m->be->download(m->be, STREAM_COMPUTE, raw, tensor_at(&view, at), n * from));
            TRY_OUT(m->be->sync(m->be, STREAM_COMPUTE));
            dtype_convert(raw, source_dtype, converted, file_dtype, n);
            TRY_OUT(checkpoint_writer_put(writer, i, at * to, n * to, converted));
        }
    }
    struct checkpoint_writer *closing = writer;
    writer = NULL;
    TRY_OUT(checkpoint_writer_close(closing));
    TRY_OUT(save_config(m, dir, file_dtype, config_from, &arena));
    if (config_from)
        TRY_OUT(model_copy_side_files(config_from, dir));
out:
    checkpoint_writer_abort(writer);
    memory_free(raw);
    memory_free(converted);
    arena_free(&arena);
    return status;
}
