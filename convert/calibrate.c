/* See calibrate.h. */
#include "convert/calibrate.h"

#include "core/file.h"
#include "core/rng.h"

#include <stdio.h>
#include <string.h>

enum { ROWS_AT_A_TIME = 2048 };

static bool is_token_file(const char *path) {
    const char *dot = strrchr(path_base(path), '.');
    return dot && (!strcmp(dot, ".u16") || !strcmp(dot, ".u32"));
}

void calibration_close(struct calibration *c) {
    memory_free(c->ids);
    *c = (struct calibration){0};
}

enum status calibration_open(const struct convert_options *o, const struct model_folder *folder,
                             struct backend *be, struct calibration *out) {
    enum status status = STATUS_OK;
    struct tokenizer *tokenizer = NULL;
    struct token_data data = {0};
    int64_t most = o->calib_tokens > 0 ? o->calib_tokens : CALIB_TOKENS;
    int64_t n_seq = o->calib_window > 0 ? o->calib_window : CALIB_WINDOW;
    bool self = o->n_calibrate == 1 && !strcmp(o->calibrate[0], "self");
    *out = (struct calibration){.n_seq = size_min(n_seq, folder->config.max_position)};
    if (!self) {
        for (int64_t i = 0; i < o->n_calibrate && !tokenizer; i++)
            if (!is_token_file(o->calibrate[i]))
                TRY_OUT(tokenizer_open(o->from, &tokenizer));
        TRY_OUT(token_data_open(o->calibrate, o->n_calibrate, tokenizer, folder->config.n_vocab,
                                &data));
        most = size_min(most, data.n);
    }
    out->n_window = most / out->n_seq;
    out->n_train = out->n_window - size_max(1, out->n_window / 8);
    if (out->n_train < 1) {
        status =
            status_fail(STATUS_FAILED,
                        "calibration: %lld tokens are not two windows of %lld; give more text, "
                        "or a smaller --calib-window",
                        (long long)most, (long long)out->n_seq);
        goto out;
    }
    int64_t n = out->n_window * out->n_seq;
    TRY_OUT(memory_alloc(n, (int64_t)sizeof *out->ids, "calibration tokens", &out->ids));
    if (self)
        TRY_OUT(calibration_sample(o->from, be, out->n_window, out->n_seq, o->seed, out->ids));
    /* Windows spread evenly over the text, so that few of them still see all of it. */
    int64_t there = self ? 0 : data.n / out->n_seq;
    for (int64_t w = 0; w < out->n_window && !self; w++)
        memcpy(out->ids + w * out->n_seq, data.ids + w * there / out->n_window * out->n_seq,
               (size_t)out->n_seq * sizeof *out->ids);
    out->hash = hash_bytes(out->ids, n * (int64_t)sizeof *out->ids, 0);
out:
    token_data_close(&data);
    tokenizer_close(tokenizer);
    return status;
}

static enum status find(const struct model_folder *folder, enum role role, int64_t layer,
                        const struct checkpoint_tensor **out) {
    char name[256];
    arch_tensor_name(folder->arch, role, layer, name, sizeof name);
    return checkpoint_need(folder->ck, name, out);
}

enum status calibration_embed(const struct calibration *c, const struct model_folder *folder,
                              float *stream) {
    const struct checkpoint_tensor *t;
    int64_t w = folder->config.width, n_vocab = folder->config.n_vocab;
    int64_t n = c->n_window * c->n_seq;
    TRY(find(folder, ROLE_EMBED, -1, &t));
    /* In order of id: every row of the table is read once, however often it is used. */
    int64_t bytes = w * dtype_size(t->dtype), *first, *next;
    char *row = NULL;
    enum status status;
    struct arena arena = {0};
    TRY_OUT(arena_alloc(&arena, n_vocab, (int64_t)sizeof *first, &first));
    TRY_OUT(arena_alloc(&arena, n, (int64_t)sizeof *next, &next));
    TRY_OUT(arena_alloc(&arena, bytes, 1, &row));
    for (int64_t i = n - 1; i >= 0; i--) {
        next[i] = first[c->ids[i]];
        first[c->ids[i]] = i + 1;
    }
    for (int64_t v = 0; v < n_vocab; v++) {
        if (!first[v])
            continue;
        TRY_OUT(checkpoint_read(t, v * bytes, bytes, row));
        for (int64_t i = first[v]; i; i = next[i - 1])
            dtype_convert(row, t->dtype, stream + (i - 1) * w, DTYPE_F32, w);
    }
out:
    arena_free(&arena);
    return status;
}

enum status one_layer_open(const struct model_folder *folder, struct backend *be, int64_t n_kv,
                           int64_t n_seq, struct one_layer *out) {
    struct model_config *c = NULL;
    enum status status;
    *out = (struct one_layer){
        .folder = folder, .n_batch = size_max(1, ROWS_AT_A_TIME / n_seq), .n_seq = n_seq};
    TRY(memory_alloc(1, (int64_t)sizeof *c, "configuration", &c));
    *c = folder->config;
    c->n_layer = 1;
    c->n_kv_head[0] = (int32_t)n_kv;
    c->n_vocab = 1;
    c->tied_head = true;
    TRY_OUT(model_new(c, be, DTYPE_F32, 0, &out->model));
    TRY_OUT(acts_open(out->model, ACTS_RECOMPUTE, out->n_batch, n_seq, &out->acts));
out:
    memory_free(c);
    return status;
}

void one_layer_close(struct one_layer *o) {
    acts_close(o->acts);
    model_close(o->model);
    *o = (struct one_layer){0};
}

enum status one_layer_set(struct one_layer *o, enum role role, const float *values, int64_t n) {
    struct model *m = o->model;
    struct tensor view = model_view(m, m->data, m->dtype, m->layer_index[0][role]);
    if (tensor_count(&view) != n)
        return status_fail(STATUS_FAILED, "%s: expected %lld values, found %lld", role_name(role),
                           (long long)tensor_count(&view), (long long)n);
    TRY(m->be->upload(m->be, STREAM_COMPUTE, view.data, values, n * (int64_t)sizeof *values));
    return m->be->sync(m->be, STREAM_COMPUTE);
}

/* The same with another number of KV heads: a new model. */
static enum status reopen(struct one_layer *o, int64_t n_kv) {
    struct one_layer was = *o;
    if (o->model->config.n_kv_head[0] == n_kv)
        return STATUS_OK;
    struct backend *be = o->model->be;
    one_layer_close(o);
    return one_layer_open(was.folder, be, n_kv, was.n_seq, o);
}

enum status one_layer_load(struct one_layer *o, int64_t layer, int64_t n_kv) {
    enum status status = STATUS_OK;
    TRY(reopen(o, n_kv));
    for (int r = 0; r < ROLE_COUNT; r++) {
        const struct checkpoint_tensor *t;
        void *raw = NULL;
        float *values = NULL;
        if (!role_in_layer((enum role)r) || !config_has_role(&o->model->config, (enum role)r))
            continue;
        int64_t shape[2], has = 1;
        int rank = config_role_shape(&o->model->config, (enum role)r, 0, shape);
        for (int i = 0; i < rank; i++)
            has *= shape[i];
        TRY_OUT(find(o->folder, (enum role)r, layer, &t));
        int64_t n = t->n_byte / dtype_size(t->dtype);
        if (n != has) /* K or V of another head count */
            continue;
        TRY_OUT(memory_alloc(t->n_byte, 1, t->name, &raw));
        status = memory_alloc(n, (int64_t)sizeof *values, t->name, &values);
        if (status == STATUS_OK)
            status = checkpoint_read(t, 0, t->n_byte, raw);
        if (status == STATUS_OK) {
            dtype_convert(raw, t->dtype, values, DTYPE_F32, n);
            status = one_layer_set(o, (enum role)r, values, n);
        }
        memory_free(values);
        memory_free(raw);
        TRY_OUT(status);
    }
out:
    return status;
}
