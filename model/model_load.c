/* A model comes to be: read from a folder, or drawn at random. */
#include "core/log.h"
#include "core/rng.h"
#include "model/folder.h"
#include "model/params.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { CHUNK = 1 << 20, BLOCK = 1 << 14 }; /* elements uploaded at a time, drawn by a thread */

void model_close(struct model *m) {
    if (!m)
        return;
    if (m->data)
        m->be->free(m->be, m->data);
    if (m->inv_freq)
        m->be->free(m->be, m->inv_freq);
    memory_free(m->params);
    memory_free(m->layer_index);
    memory_free(m);
}

/* Everything but the values. */
static enum status prepare(const struct model_config *config, struct backend *be, enum dtype dtype,
                           struct model **out) {
    enum status status;
    struct model *m;
    float *inv_freq = NULL;
    int64_t half = config->head_dim / 2, bytes;
    *out = NULL;
    if (!be->has_dtype[dtype])
        return status_fail(STATUS_FAILED, "backend %s does not compute in %s", be->name,
                           dtype_name(dtype));
    TRY(memory_alloc(1, (int64_t)sizeof *m, "model", &m));
    m->config = *config;
    m->be = be;
    m->dtype = dtype;
    TRY_OUT(params_lay_out(m));
    if (!size_mul(m->n_param, dtype_size(dtype), &bytes)) {
        status = status_nomem("model", 9e18);
        goto out;
    }
    TRY_OUT(be->alloc(be, bytes, "model weights", &m->data));
    TRY_OUT(memory_alloc(half, (int64_t)sizeof *inv_freq, "rotary frequencies", &inv_freq));
    model_rope_inv_freq(config, inv_freq);
    void *device = NULL;
    TRY_OUT(be->alloc(be, half * (int64_t)sizeof *inv_freq, "rotary frequencies", &device));
    m->inv_freq = device;
    TRY_OUT(be->upload(be, STREAM_COMPUTE, device, inv_freq, half * (int64_t)sizeof *inv_freq));
    TRY_OUT(be->sync(be, STREAM_COMPUTE));
    *out = m;
    m = NULL;
out:
    memory_free(inv_freq);
    model_close(m);
    return status;
}

static enum status check_shape(const struct param *p, const struct checkpoint_tensor *t) {
    char expected[96], found[96];
    bool same = t->rank == p->rank;
    for (int i = 0; same && i < p->rank; i++)
        same = t->shape[i] == p->shape[i];
    if (!same)
        return status_fail(
            STATUS_FAILED,
            "%s: tensor %s: expected shape %s from config.json, found %s; the configuration does "
            "not belong to these weights",
            t->path, p->name, tensor_shape_text(p->rank, p->shape, expected, sizeof expected),
            tensor_shape_text(t->rank, t->shape, found, sizeof found));
    if (!dtype_is_float(t->dtype))
        return status_fail(STATUS_FAILED,
                           "%s: tensor %s: expected F32, F16 or BF16, found %s; quantised "
                           "checkpoints must be dequantised first",
                           t->path, p->name, dtype_name(t->dtype));
    return STATUS_OK;
}

enum status model_check_tensors(const struct model_config *config, const struct checkpoint *ck) {
    enum status status;
    struct model shape_only = {.config = *config};
    TRY_OUT(params_lay_out(&shape_only));
    for (int64_t i = 0; i < shape_only.n_param_tensors; i++) {
        const struct checkpoint_tensor *t;
        TRY_OUT(checkpoint_need(ck, shape_only.params[i].name, &t));
        TRY_OUT(check_shape(&shape_only.params[i], t));
    }
out:
    memory_free(shape_only.params);
    memory_free(shape_only.layer_index);
    return status;
}

/* Move one tensor through the two host buffers, CHUNK elements at a time. */
static enum status load_param(struct model *m, const struct param *p,
                              const struct checkpoint_tensor *t, void *raw, void *converted) {
    struct tensor view = model_view(m, m->data, m->dtype, p - m->params);
    int64_t from = dtype_size(t->dtype), to = dtype_size(m->dtype);
    struct nonfinite bad = {0};
    for (int64_t at = 0; at < p->count; at += CHUNK) {
        int64_t n = size_min(CHUNK, p->count - at);
        TRY(checkpoint_read(t, at * from, n * from, raw));
        dtype_convert(raw, t->dtype, converted, m->dtype, n);
        nonfinite_scan(raw, t->dtype, n, &bad);
        TRY(m->be->upload(m->be, STREAM_COMPUTE, tensor_at(&view, at), converted, n * to));
        TRY(m->be->sync(m->be, STREAM_COMPUTE));
    }
    if (bad.n_nan || bad.n_inf)
        log_warn("%s: tensor %s: %lld of %lld values are NaN and %lld infinite", t->path, p->name,
                 (long long)bad.n_nan, (long long)p->count, (long long)bad.n_inf);
    return STATUS_OK;
}

enum status model_open(const char *dir, struct backend *be, enum dtype dtype, struct model **out) {
    enum status status;
    struct model_folder *folder = NULL;
    struct model *m = NULL;
    void *raw = NULL, *converted = NULL;
    *out = NULL;
    TRY_OUT(model_folder_open(dir, &folder));
    TRY_OUT(prepare(&folder->config, be, dtype, &m));
    TRY_OUT(memory_alloc(CHUNK, 8, "load buffer", &raw));
    TRY_OUT(memory_alloc(CHUNK, 8, "load buffer", &converted));
    for (int64_t i = 0; i < m->n_param_tensors; i++) {
        const struct checkpoint_tensor *t;
        TRY_OUT(checkpoint_need(folder->ck, m->params[i].name, &t));
        TRY_OUT(load_param(m, &m->params[i], t, raw, converted));
    }
    *out = m;
    m = NULL;
out:
    memory_free(raw);
    memory_free(converted);
    model_folder_close(folder);
    model_close(m);
    return status;
}

static bool is_norm(enum role r) {
    return r == ROLE_ATTN_NORM || r == ROLE_FFN_NORM || r == ROLE_FINAL_NORM;
}

/* std * rng_normal, n times, as `dtype`. Where each block begins in the stream is found by going
 * through its numbers, a tenth of the work; then blocks are drawn side by side: billions of
 * parameters take seconds. */
static void draw(struct rng *rng, double std, int64_t n, enum dtype dtype, double *drawn,
                 void *converted) {
    struct rng begin[CHUNK / BLOCK + 1];
    int64_t n_block = (n + BLOCK - 1) / BLOCK;
    for (int64_t k = 0; k < n; k++) {
        if (k % BLOCK == 0)
            begin[k / BLOCK] = *rng;
        rng_u64(rng); /* a normal takes two */
        rng_u64(rng);
    }
    begin[n_block] = *rng;
#pragma omp parallel for
    for (int64_t b = 0; b < n_block; b++) {
        struct rng mine = begin[b];
        int64_t first = b * BLOCK, end = size_min(n, first + BLOCK);
        for (int64_t k = first; k < end; k++)
            drawn[k] = std * rng_normal(&mine);
        assert(!memcmp(&mine, &begin[b + 1], sizeof mine));
        dtype_convert(drawn + first, DTYPE_F64, (char *)converted + first * dtype_size(dtype),
                      dtype, end - first);
    }
}

enum status model_new(const struct model_config *config, struct backend *be, enum dtype dtype,
                      uint64_t seed, struct model **out) {
    enum status status;
    struct model *m = NULL;
    double *drawn = NULL;
    void *converted = NULL;
    *out = NULL;
    TRY_OUT(prepare(config, be, dtype, &m));
    TRY_OUT(memory_alloc(CHUNK, 8, "initialisation buffer", &drawn));
    TRY_OUT(memory_alloc(CHUNK, 8, "initialisation buffer", &converted));
    for (int64_t i = 0; i < m->n_param_tensors; i++) {
        const struct param *p = &m->params[i];
        struct rng rng = rng_stream(seed, (uint64_t)i);
        struct tensor view = model_view(m, m->data, dtype, i);
        /* GPT-2's scheme: branches into the residual stream shrink with depth. */
        double std = 0.02;
        if (p->role == ROLE_O || p->role == ROLE_DOWN)
            std /= sqrt(2.0 * (double)config->n_layer);
        for (int64_t at = 0; at < p->count; at += CHUNK) {
            int64_t n = size_min(CHUNK, p->count - at);
            if (p->rank == 2) {
                draw(&rng, std, n, dtype, drawn, converted);
            } else {
                for (int64_t k = 0; k < n; k++)
                    drawn[k] = is_norm(p->role) ? 1.0 : 0.0;
                dtype_convert(drawn, DTYPE_F64, converted, dtype, n);
            }
            TRY_OUT(be->upload(be, STREAM_COMPUTE, tensor_at(&view, at), converted,
                               n * dtype_size(dtype)));
            TRY_OUT(be->sync(be, STREAM_COMPUTE));
        }
    }
    *out = m;
    m = NULL;
out:
    memory_free(drawn);
    memory_free(converted);
    model_close(m);
    return status;
}
