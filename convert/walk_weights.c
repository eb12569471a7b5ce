/* Attention weights on their way: file -> fp64 -> device and output file. */
#include "convert/walk.h"

#include <string.h>

/* The rows of `role` in w, and whether it is a bias: then it is their last column. */
static double *role_rows(const struct attn_weights *w, enum role role, int64_t *n, bool *bias) {
    *bias = role == ROLE_Q_BIAS || role == ROLE_K_BIAS || role == ROLE_V_BIAS;
    bool is_q = role == ROLE_Q || role == ROLE_Q_BIAS;
    *n = (is_q ? w->n_head : w->n_kv) * w->head_dim;
    return is_q ? w->q : role == ROLE_K || role == ROLE_K_BIAS ? w->k : w->v;
}

/* A role's values, between w and a plain tensor. */
static void role_copy(struct attn_weights *w, enum role role, double *values, bool into_w) {
    int64_t n;
    bool bias;
    if (role == ROLE_O || role == ROLE_O_BIAS) {
        double *own = role == ROLE_O ? w->o : w->o_bias;
        n = w->width * (role == ROLE_O ? w->n_head * w->head_dim : 1);
        memcpy(into_w ? own : values, into_w ? values : own, (size_t)n * sizeof *values);
        return;
    }
    double *rows = role_rows(w, role, &n, &bias);
    int64_t cols = bias ? 1 : w->width;
    for (int64_t i = 0; i < n; i++) {
        double *row = rows + i * w->n_in + (bias ? w->width : 0);
        memcpy(into_w ? row : values + i * cols, into_w ? values + i * cols : row,
               (size_t)cols * sizeof *values);
    }
}

const enum role WALK_ROLES[N_WALK_ROLE] = {ROLE_Q,      ROLE_K,      ROLE_V,      ROLE_O,
                                           ROLE_Q_BIAS, ROLE_K_BIAS, ROLE_V_BIAS, ROLE_O_BIAS};

enum status walk_read(struct walk *k, int64_t layer) {
    for (int i = 0; i < N_WALK_ROLE; i++) {
        int64_t at = k->item[layer][WALK_ROLES[i]];
        if (at < 0)
            continue;
        struct convert_item *item = &k->p->items[at];
        const struct checkpoint_tensor *t = item->from;
        int64_t n = t->n_byte / dtype_size(t->dtype);
        void *raw = NULL;
        double *values = NULL;
        enum status status;
        TRY_OUT(memory_alloc(t->n_byte, 1, t->name, &raw));
        TRY_OUT(memory_alloc(n, (int64_t)sizeof *values, t->name, &values));
        TRY_OUT(checkpoint_read(t, 0, t->n_byte, raw));
        nonfinite_scan(raw, t->dtype, n, &item->found);
        if (item->found.n_nan || item->found.n_inf) {
            status = status_fail(STATUS_FAILED,
                                 "%s: tensor %s: %lld NaN and %lld infinite values; measuring "
                                 "needs finite weights: repair them, or use --kv-heads with "
                                 "--method mean",
                                 t->path, t->name, (long long)item->found.n_nan,
                                 (long long)item->found.n_inf);
            goto out;
        }
        dtype_convert(raw, t->dtype, values, DTYPE_F64, n);
        role_copy(&k->from, WALK_ROLES[i], values, true);
    out:
        memory_free(values);
        memory_free(raw);
        TRY(status);
    }
    return STATUS_OK;
}

/* One role of w into a layer, when the model has it. */
static enum status set_role(struct one_layer *layer, struct attn_weights *w, enum role role) {
    if (!config_has_role(&layer->model->config, role))
        return STATUS_OK;
    int64_t n = role == ROLE_O ? w->width * w->n_head * w->head_dim : w->width, rows;
    bool bias = false;
    if (role != ROLE_O && role != ROLE_O_BIAS) {
        role_rows(w, role, &rows, &bias);
        n = rows * (bias ? 1 : w->width);
    }
    double *values;
    TRY(memory_alloc(n, (int64_t)sizeof *values, "weights", &values));
    role_copy(w, role, values, false);
    float *single;
    enum status status = memory_alloc(n, (int64_t)sizeof *single, "weights", &single);
    if (status == STATUS_OK) {
        dtype_convert(values, DTYPE_F64, single, DTYPE_F32, n);
        status = one_layer_set(layer, role, single, n);
        memory_free(single);
    }
    memory_free(values);
    return status;
}

static enum status put_role(struct walk *k, int64_t layer, enum role role, bool write) {
    int64_t at = k->item[layer][role];
    if (at < 0)
        return STATUS_OK;
    const struct convert_item *item = &k->p->items[at];
    int64_t n = item->to_bytes / dtype_size(item->to.dtype);
    double *values = NULL;
    void *rounded = NULL;
    enum status status;
    TRY_OUT(memory_alloc(n, (int64_t)sizeof *values, item->to.name, &values));
    role_copy(&k->to, role, values, false);
    for (int64_t e = 0; e < n && write && item->fitted; e += MERGE_CHUNK)
        TRY_OUT(merge_put(k->p, at, e, size_min(MERGE_CHUNK, n - e), values + e, DTYPE_F64,
                          k->writer, k->buffers));
    if (k->has_student) {
        TRY_OUT(memory_alloc(n, 8, item->to.name, &rounded));
        dtype_convert(values, DTYPE_F64, rounded, item->to.dtype, n);
        dtype_convert(rounded, item->to.dtype, values, DTYPE_F32, n);
        TRY_OUT(one_layer_set(&k->student, role, (const float *)(const void *)values, n));
    }
out:
    memory_free(rounded);
    memory_free(values);
    return status;
}

enum status walk_set(struct one_layer *layer, struct attn_weights *w) {
    for (int i = 0; i < N_WALK_ROLE; i++)
        TRY(set_role(layer, w, WALK_ROLES[i]));
    return STATUS_OK;
}

enum status walk_put(struct walk *k, int64_t layer, bool write) {
    for (int i = 0; i < N_WALK_ROLE; i++)
        TRY(put_role(k, layer, WALK_ROLES[i], write));
    return STATUS_OK;
}
