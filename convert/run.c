/* The plan carried out: weights, config.json, side files and regroup.json into a staged folder
 * that appears under its name only when complete. */
#include "convert/budget.h"
#include "convert/convert.h"
#include "convert/refit.h"

#include "core/file.h"
#include "core/log.h"
#include "core/rng.h"
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replacing the output must not take the input away. */
static enum status check_apart(const struct convert_options *o) {
    enum status status = STATUS_OK;
    char *from = realpath(o->from, NULL), *to = realpath(o->to, NULL);
    size_t n = to ? strlen(to) : 0;
    if (from && to && !strncmp(from, to, n) && (from[n] == 0 || from[n] == '/'))
        status = status_fail(STATUS_FAILED, "%s %s the input %s; give another output", o->to,
                             from[n] ? "contains" : "is", o->from);
    free(from);
    free(to);
    return status;
}

static void warn_about(const struct convert_item *item) {
    if (item->found.n_nan || item->found.n_inf)
        log_warn("%s: tensor %s: %lld NaN and %lld infinite values, carried into the result",
                 item->from->path, item->from->name, (long long)item->found.n_nan,
                 (long long)item->found.n_inf);
    if (item->n_overflow)
        log_warn("%s: tensor %s: %lld values are too large for %s and became infinite; choose bf16 "
                 "or f32",
                 item->from->path, item->from->name, (long long)item->n_overflow,
                 dtype_name(item->to.dtype));
}

static enum status write_weights(struct convert_plan *p, const char *dir) {
    enum status status;
    struct tensor_spec *specs;
    struct checkpoint_writer *writer = NULL;
    struct merge_buffers buffers = {0};
    struct progress progress;
    int64_t done = 0;
    TRY_OUT(arena_alloc(&p->arena, p->n_item, (int64_t)sizeof *specs, &specs));
    for (int64_t i = 0; i < p->n_item; i++)
        specs[i] = p->items[i].to;
    TRY_OUT(merge_buffers_alloc(&buffers));
    TRY_OUT(checkpoint_writer_open(dir, "model", specs, p->n_item, p->options.max_shard_bytes,
                                   &writer));
    bool fitted = false;
    for (int64_t i = 0; i < p->n_item; i++) {
        p->items[i].found = (struct nonfinite){0};
        p->items[i].n_overflow = 0;
        fitted = fitted || p->items[i].fitted;
    }
    if (fitted)
        TRY_OUT(refit_run(p, writer, &buffers));
    progress_start(&progress, "convert", (double)p->to_bytes / 1048576, "MiB");
    for (int64_t i = 0; i < p->n_item && status == STATUS_OK; i++) {
        if (!p->items[i].fitted)
            status = merge_stream(p, i, writer, &buffers);
        done += p->items[i].to_bytes;
        progress_update(&progress, (double)done / 1048576, NULL);
    }
    progress_end(&progress);
    if (status != STATUS_OK)
        goto out;
    for (int64_t i = 0; i < p->n_item; i++)
        warn_about(&p->items[i]);
    TRY_OUT(model_folder_head_differs(p->folder, buffers.in, (int64_t)MERGE_CHUNK * 8,
                                      &p->head_differs));
    if (p->head_differs)
        log_warn("%s: tie_word_embeddings is true, but %s has values of its own; transformers "
                 "ignores them, both are kept",
                 p->options.from, p->folder->stray_head->name);
    struct checkpoint_writer *closing = writer;
    writer = NULL;
    status = checkpoint_writer_close(closing);
out:
    checkpoint_writer_abort(writer);
    merge_buffers_free(&buffers);
    return status;
}

/* config.json edited as text, then read back: what it says must be what was written. */
static enum status write_config(struct convert_plan *p, const char *dir, struct text *source) {
    enum status status;
    char *path;
    struct model_config *check = NULL;
    struct text text = {0};
    TRY_OUT(text_add(&text, source->data, source->n));
    TRY_OUT(model_config_edit(&text, &p->config, p->options.dtype));
    TRY_OUT(path_join(&p->arena, dir, "config.json", &path));
    TRY_OUT(file_write(path, text.data, text.n));
    TRY_OUT(memory_alloc(1, sizeof *check, "configuration", &check));
    TRY_OUT(model_config_load(dir, check));
    if (memcmp(check->n_kv_head, p->config.n_kv_head, sizeof check->n_kv_head) ||
        check->head_dim != p->config.head_dim)
        status = status_fail(STATUS_FAILED,
                             "%s/config.json: the edited copy reads back with other heads; is a "
                             "key there twice?",
                             p->options.from);
out:
    memory_free(check);
    text_free(&text);
    return status;
}

/* What a fit measured, and on what: enough to do it again. */
static void write_fit(const struct convert_plan *p, struct json *j) {
    const struct convert_options *o = &p->options;
    bool fitted = false; /* as many heads as before: nothing was */
    for (int64_t l = 0; l < p->config.n_layer; l++)
        fitted = fitted || p->layers[l].fitted;
    json_set_string(j, "refit", refit_name(fitted ? o->refit : REFIT_NONE));
    json_set_string(j, "grouping", fitted && o->grouping == GROUPING_FIT ? "fit" : "contiguous");
    if (p->calib_used) {
        char hash[32];
        snprintf(hash, sizeof hash, "%016" PRIx64, p->calib_hash);
        struct json *c = json_set_object(j, "calibration");
        struct json *files = json_set_array(c, "from");
        for (int64_t i = 0; i < o->n_calibrate; i++)
            json_push_string(files, o->calibrate[i]);
        json_set_int(c, "tokens", p->calib_used);
        json_set_int(c, "windows", p->calib_windows);
        json_set_int(c, "held_out_windows", p->calib_heldout);
        json_set_string(c, "ids_fnv1a64", hash);
    }
    struct json *layers = NULL;
    for (int64_t l = 0; l < p->config.n_layer; l++) {
        const struct layer_fit *f = &p->layers[l];
        if (!f->fitted)
            continue;
        if (!layers)
            layers = json_set_array(j, "layers");
        struct json *e = json_push_object(layers);
        json_set_int(e, "layer", l);
        json_set_number(e, "k_error", f->k_error);
        json_set_number(e, "v_error", f->v_error);
        if (o->refit != REFIT_NONE) {
            struct json *r = json_set_object(e, "refit");
            json_set_bool(r, "used", f->refitted);
            json_set_number(r, "held_out_error_before", f->before);
            json_set_number(r, "held_out_error_after", f->after);
        }
        if (f->order) {
            struct json *order = json_set_array(e, "kv_head_order");
            for (int64_t i = 0; i < p->folder->config.n_kv_head[l]; i++)
                json_push_number(order, (double)f->order[i]);
        }
    }
}

/* Where the model comes from; a conversion of a conversion keeps its past. */
static enum status write_history(struct convert_plan *p, const char *dir,
                                 const struct text *source) {
    const struct convert_options *o = &p->options;
    struct json *j = json_object(), *past = NULL;
    char hash[32], *path, *old;
    enum status status;
    json_set_string(j, "regroup", REGROUP_VERSION);
    json_set_string(j, "method", merge_method_name(o->method));
    if (o->method == MERGE_RANDOM || o->grouping == GROUPING_FIT || p->calib_used)
        json_set_int(j, "seed", (int64_t)o->seed);
    write_fit(p, j);
    budget_to_json(p, j);
    heads_to_json(p, j);
    json_set_string(j, "dtype", o->dtype == DTYPE_COUNT ? "keep" : dtype_torch(o->dtype));
    snprintf(hash, sizeof hash, "%016" PRIx64, hash_bytes(source->data, source->n, 0));
    struct json *from = json_set_object(j, "source");
    json_set_string(from, "path", o->from);
    json_set_string(from, "config_fnv1a64", hash);
    TRY_OUT(path_join(&p->arena, o->from, "regroup.json", &old));
    if (path_exists(old)) {
        TRY_OUT(json_load(old, &past));
        json_set_copy(from, "history", past);
    }
    TRY_OUT(path_join(&p->arena, dir, "regroup.json", &path));
    TRY_OUT(json_save(j, path));
out:
    json_free(past);
    json_free(j);
    return status;
}

static enum status say_skipped(struct convert_plan *p) {
    char **names;
    int64_t n;
    TRY(dir_list(&p->arena, p->options.from, &names, &n));
    for (int64_t i = 0; i < n; i++) {
        const char *end = strstr(names[i], ".safetensors");
        bool read = end && !strncmp(names[i], "model", 5);
        if (model_is_weight_file(names[i]) && !read)
            log_info("%s: %s holds the old weights; not copied", p->options.from, names[i]);
    }
    return STATUS_OK;
}

enum status convert_run(struct convert_plan *p, bool force) {
    struct staging staging = {0};
    struct text config = {0};
    char *path;
    enum status status;
    TRY_OUT(check_apart(&p->options));
    TRY_OUT(path_join(&p->arena, p->options.from, "config.json", &path));
    TRY_OUT(file_read(path, 1 << 24, &config));
    TRY_OUT(staging_open(p->options.to, force, &staging));
    TRY_OUT(convert_choose(p)); /* after what can fail at once */
    TRY_OUT(write_weights(p, staging.path));
    TRY_OUT(model_copy_side_files(p->options.from, staging.path));
    TRY_OUT(write_config(p, staging.path, &config));
    TRY_OUT(write_history(p, staging.path, &config));
    TRY_OUT(say_skipped(p));
    status = staging_commit(&staging);
out:
    staging_abort(&staging);
    text_free(&config);
    return status;
}
