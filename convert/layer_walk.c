/* Layer by layer: measure on the source model, fit, refit on the converted one, write. The two
 * residual streams of all windows stay in host memory, so each layer's text passes once through
 * the source's layer and twice through the converted one (before and after the refit). */
#include "convert/attune.h"
#include "convert/linalg.h"

#include "core/log.h"

#include <stdio.h>
#include <string.h>

struct walk {
    struct convert_plan *p;
    struct checkpoint_writer *writer;
    struct merge_buffers *buffers;
    struct backend *be;
    struct calibration calib; /* n_window 0: none */
    struct one_layer teacher, student;
    bool has_student;
    float *x_teacher, *x_student, *mid; /* [windows * n_seq, width] */
    float *normed, *heads;              /* one batch of windows */
    double *wide, *target;              /* the same in fp64 */
    double *moment;                     /* [n_in, n_in] */
    double *seen;                       /* [n_kv to, n_in, n_in]; NULL: none */
    float *slice;                       /* [rows, heads] */
    double *kept;                       /* [n_group_heads * SEEN rows, n_in] */
    int64_t (*item)[ROLE_COUNT];        /* [n_layer], -1: absent */
    struct attn_weights from, permuted, to;
    struct refit_sums sums;
    char what[512];
    struct arena arena;
};

bool convert_measures(const struct convert_options *o) {
    return o->method == MERGE_FIT || o->method == MERGE_PROCRUSTES || o->refit != REFIT_NONE ||
           o->grouping == GROUPING_FIT;
}

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

static const enum role ATTENTION[] = {ROLE_Q,      ROLE_K,      ROLE_V,      ROLE_O,
                                      ROLE_Q_BIAS, ROLE_K_BIAS, ROLE_V_BIAS, ROLE_O_BIAS};
enum { N_ATTENTION = sizeof ATTENTION / sizeof *ATTENTION };

static enum status read_weights(struct walk *k, int64_t layer) {
    for (int i = 0; i < N_ATTENTION; i++) {
        int64_t at = k->item[layer][ATTENTION[i]];
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
                                 "%s: tensor %s: %lld NaN and %lld infinite values; a fit needs "
                                 "finite weights: repair them, or use --method mean",
                                 t->path, t->name, (long long)item->found.n_nan,
                                 (long long)item->found.n_inf);
            goto out;
        }
        dtype_convert(raw, t->dtype, values, DTYPE_F64, n);
        role_copy(&k->from, ATTENTION[i], values, true);
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

/* One role of k->to, rounded as the output file rounds it, into the student; with `write` into the
 * file too. */
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
    for (int64_t e = 0; e < n && write; e += MERGE_CHUNK)
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

static void widen(const float *from, int64_t rows, int64_t cols, int64_t extra, double *to) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++)
            to[r * (cols + extra) + c] = (double)from[r * cols + c];
        if (extra)
            to[r * (cols + 1) + cols] = 1;
    }
}

enum {
    SEEN_BUDGET = 1 << 22,   /* values of what heads see that are kept of a batch */
    ATTUNE_BATCHES = 8,      /* batches of windows that tuning uses, at least */
    ATTUNE_EVALUATIONS = 20, /* of a layer's attention and its gradient */
};

/* Some rows of the batch as every query head sees them, into k->seen. */
static enum status add_seen(struct walk *k, int64_t rows) {
    int64_t w = k->from.width, n_in = k->from.n_in, d = k->from.head_dim, n_head = k->from.n_head;
    int64_t hd = n_head * d, keep = size_max(1, SEEN_BUDGET / (n_head * n_in));
    int64_t step = (rows + keep - 1) / keep, n = (rows + step - 1) / step;
    for (int64_t first = 0; first < w; first += d) {
        int64_t at = size_min(first, w - d);
        TRY(model_layer_seen(k->teacher.model, k->teacher.acts, 0, at, k->slice));
        for (int64_t h = 0; h < n_head; h++)
            for (int64_t r = 0; r < n; r++) {
                double *to = k->kept + (h * n + r) * n_in;
                const float *x = k->slice + r * step * hd + h * d;
                for (int64_t c = 0; c < d; c++)
                    to[at + c] = (double)x[c];
                if (n_in > w)
                    to[w] = 1;
            }
    }
    int64_t heads = n_head / k->to.n_kv;
    for (int64_t g = 0; g < k->to.n_kv; g++)
        linalg_gram(heads * n, n_in, k->kept + g * heads * n * n_in, k->seen + g * n_in * n_in);
    return STATUS_OK;
}

/* The source's layer over all windows: k->moment, k->seen; with `advance` also k->mid, and
 * x_teacher moves behind the layer. */
static enum status teacher_pass(struct walk *k, bool advance) {
    const struct calibration *c = &k->calib;
    int64_t w = k->from.width, n_in = k->from.n_in, step = k->teacher.n_batch;
    memset(k->moment, 0, (size_t)(n_in * n_in) * sizeof *k->moment);
    if (k->seen)
        memset(k->seen, 0, (size_t)(k->to.n_kv * n_in * n_in) * sizeof *k->seen);
    for (int64_t at = 0; at < c->n_window; at += step) {
        int64_t n = size_min(step, c->n_window - at), rows = n * c->n_seq;
        int64_t first = at * c->n_seq * w;
        struct layer_io io = {.in = k->x_teacher + first,
                              .normed = k->normed,
                              .mid = advance && k->mid ? k->mid + first : NULL,
                              .out = advance ? k->x_teacher + first : NULL};
        TRY(model_layer_run(k->teacher.model, k->teacher.acts, 0, n, c->n_seq, &io));
        widen(k->normed, rows, w, n_in - w, k->wide);
        linalg_gram(rows, n_in, k->wide, k->moment);
        if (k->seen)
            TRY(add_seen(k, rows));
    }
    for (int64_t g = 0; k->seen && g < k->to.n_kv; g++)
        linalg_mirror(n_in, k->seen + g * n_in * n_in);
    linalg_mirror(n_in, k->moment);
    for (int64_t i = 0; i < n_in * n_in; i++)
        k->moment[i] /= (double)(c->n_window * c->n_seq);
    return STATUS_OK;
}

/* Without text: E[x x^T] of a normed input with its directions equally strong. */
static enum status plain_moment(struct walk *k, int64_t layer) {
    const struct checkpoint_tensor *t = k->p->items[k->item[layer][ROLE_ATTN_NORM]].from;
    int64_t w = k->from.width, n_in = k->from.n_in;
    void *raw = NULL;
    double *gain = NULL;
    enum status status;
    TRY_OUT(memory_alloc(t->n_byte, 1, t->name, &raw));
    TRY_OUT(memory_alloc(w, (int64_t)sizeof *gain, t->name, &gain));
    TRY_OUT(checkpoint_read(t, 0, t->n_byte, raw));
    dtype_convert(raw, t->dtype, gain, DTYPE_F64, w);
    memset(k->moment, 0, (size_t)(n_in * n_in) * sizeof *k->moment);
    for (int64_t i = 0; i < n_in; i++)
        k->moment[i * n_in + i] = i < w ? gain[i] * gain[i] : 1;
out:
    memory_free(gain);
    memory_free(raw);
    return status;
}

/* The converted layer over the windows as it is: what o_proj sees, and what it should give. */
static enum status refit_pass(struct walk *k) {
    const struct calibration *c = &k->calib;
    int64_t w = k->to.width, hd = k->to.n_head * k->to.head_dim, step = k->student.n_batch;
    refit_sums_clear(&k->sums);
    for (int64_t at = 0; at < c->n_window;) {
        bool held_out = at >= c->n_train;
        int64_t n = size_min(step, (held_out ? c->n_window : c->n_train) - at);
        int64_t rows = n * c->n_seq, first = at * c->n_seq * w;
        struct layer_io io = {.in = k->x_student + first, .heads = k->heads};
        TRY(model_layer_run(k->student.model, k->student.acts, 0, n, c->n_seq, &io));
        widen(k->heads, rows, hd, k->sums.n_y - hd, k->wide);
        for (int64_t i = 0; i < rows * w; i++)
            k->target[i] = (double)k->mid[first + i] - (double)k->x_student[first + i];
        refit_sums_add(&k->sums, held_out, rows, k->wide, k->target);
        at += n;
    }
    return STATUS_OK;
}

static enum status advance_student(struct walk *k) {
    const struct calibration *c = &k->calib;
    int64_t step = k->student.n_batch;
    for (int64_t at = 0; at < c->n_window; at += step) {
        float *x = k->x_student + at * c->n_seq * k->to.width;
        struct layer_io io = {.in = x, .out = x};
        TRY(model_layer_run(k->student.model, k->student.acts, 0, size_min(step, c->n_window - at),
                            c->n_seq, &io));
    }
    return STATUS_OK;
}

/* o_proj with its bias as a last column, when it has one. */
static enum status refit_o(struct walk *k, struct layer_fit *report) {
    int64_t hd = k->to.n_head * k->to.head_dim, n = k->sums.n_y, w = k->to.width;
    double *o;
    enum status status;
    TRY(refit_pass(k));
    TRY(memory_alloc(w * n, (int64_t)sizeof *o, "o_proj", &o));
    for (int64_t i = 0; i < w; i++) {
        memcpy(o + i * n, k->to.o + i * hd, (size_t)hd * sizeof *o);
        if (n > hd)
            o[i * n + hd] = k->to.o_bias[i];
    }
    TRY_OUT(refit_solve(&k->sums, o, &report->before, &report->after, &report->refitted, k->what));
    for (int64_t i = 0; i < w; i++) {
        memcpy(k->to.o + i * hd, o + i * n, (size_t)hd * sizeof *o);
        if (n > hd)
            k->to.o_bias[i] = o[i * n + hd];
    }
out:
    memory_free(o);
    return status;
}

static enum status put_roles(struct walk *k, int64_t layer) {
    for (int i = 0; i < N_ATTENTION; i++)
        TRY(put_role(k, layer, ATTENTION[i], false));
    return STATUS_OK;
}

static void attn_weights_copy(const struct attn_weights *from, struct attn_weights *to) {
    int64_t d = from->head_dim, q = from->n_head * d, kv = from->n_kv * d;
    memcpy(to->q, from->q, (size_t)(q * from->n_in) * sizeof *to->q);
    memcpy(to->k, from->k, (size_t)(kv * from->n_in) * sizeof *to->k);
    memcpy(to->v, from->v, (size_t)(kv * from->n_in) * sizeof *to->v);
    memcpy(to->o, from->o, (size_t)(q * from->width) * sizeof *to->o);
    memcpy(to->o_bias, from->o_bias, (size_t)from->width * sizeof *to->o_bias);
}

/* Tune the projections together from where the refit of o_proj ended, then o_proj alone again; kept
 * when the held-out error says so. */
static enum status attune(struct walk *k, int64_t layer) {
    struct layer_fit *report = &k->p->layers[layer], trial = {0};
    struct attn_weights before = {.n_head = k->to.n_head,
                                  .n_kv = k->to.n_kv,
                                  .head_dim = k->to.head_dim,
                                  .width = k->to.width,
                                  .n_in = k->to.n_in};
    int64_t batches = k->calib.n_train / k->student.n_batch;
    struct attune a = {.layer = &k->student,
                       .w = &k->to,
                       .queries_only = k->p->options.refit == REFIT_QO,
                       .x = k->x_student,
                       .mid = k->mid,
                       .n_window = k->calib.n_train,
                       .n_seq = k->calib.n_seq,
                       .stride = size_max(1, batches / ATTUNE_BATCHES),
                       .moment = k->moment,
                       .heads = k->sums.yy[0],
                       .n_y = k->sums.n_y,
                       .n_eval = ATTUNE_EVALUATIONS};
    double first, last;
    enum status status;
    TRY_OUT(attn_weights_alloc(&before));
    attn_weights_copy(&k->to, &before);
    TRY_OUT(attune_run(&a, &first, &last, k->what));
    TRY_OUT(put_roles(k, layer));
    TRY_OUT(refit_o(k, &trial));
    double now = trial.refitted ? trial.after : trial.before;
    if (now < (report->refitted ? report->after : report->before)) {
        report->after = now;
        report->refitted = true;
    } else {
        attn_weights_copy(&before, &k->to);
        TRY_OUT(put_roles(k, layer));
    }
out:
    attn_weights_free(&before);
    return status;
}

/* Heads that should share become neighbours, in the source layer too. */
static enum status group(struct walk *k, int64_t layer, struct rotary rotary) {
    const struct convert_options *o = &k->p->options;
    int64_t n = k->from.n_kv, n_in = k->from.n_in, *order;
    double *all;
    enum status status;
    TRY(arena_alloc(&k->p->arena, n, (int64_t)sizeof *order, &order));
    TRY(memory_alloc(n_in * n_in, 8, "input moments", &all));
    for (int64_t g = 0; g < k->to.n_kv; g++)
        for (int64_t i = 0; i < n_in * n_in && (k->seen || g == 0); i++)
            all[i] += k->seen ? k->seen[g * n_in * n_in + i] : k->moment[i];
    TRY_OUT(fit_grouping(&k->from, k->moment, all, rotary, k->to.n_kv, o->seed + (uint64_t)layer,
                         order, k->what));
    k->p->layers[layer].order = order;
    attn_weights_permute(&k->from, order, &k->permuted);
    struct attn_weights swap = k->from;
    k->from = k->permuted;
    k->permuted = swap;
    for (int i = 0; i < N_ATTENTION && k->calib.n_window; i++)
        TRY_OUT(set_role(&k->teacher, &k->from, ATTENTION[i]));
out:
    memory_free(all);
    return status;
}

/* k->from, whose KV heads are as many as k->to wants, or are to be merged. */
static enum status fit_to(struct walk *k, struct rotary rotary, struct fit_error *error) {
    if (k->to.n_kv == k->from.n_kv) {
        *error = (struct fit_error){0};
        attn_weights_copy(&k->from, &k->to);
        return STATUS_OK;
    }
    return fit_layer(&k->from, k->moment, k->seen, rotary, k->p->options.method, &k->to, error,
                     k->what);
}

static enum status fit_one(struct walk *k, int64_t layer) {
    struct convert_plan *p = k->p;
    struct layer_fit *report = &p->layers[layer];
    struct rotary rotary = {.dims = p->config.head_dim};
    struct fit_error error;
    snprintf(k->what, sizeof k->what, "%s: layer %lld", p->options.from, (long long)layer);
    k->from.n_kv = k->permuted.n_kv = p->folder->config.n_kv_head[layer];
    k->to.n_kv = p->config.n_kv_head[layer];
    TRY(read_weights(k, layer));
    if (k->calib.n_window)
        TRY(one_layer_load(&k->teacher, layer, k->from.n_kv));
    if (p->options.grouping == GROUPING_FIT) {
        TRY(k->calib.n_window ? teacher_pass(k, false) : plain_moment(k, layer));
        TRY(group(k, layer, rotary));
    }
    TRY(k->calib.n_window ? teacher_pass(k, true) : plain_moment(k, layer));
    TRY(fit_to(k, rotary, &error));
    report->fitted = true;
    report->k_error = error.k;
    report->v_error = error.v;
    if (k->has_student) {
        TRY(one_layer_load(&k->student, layer, k->to.n_kv));
        TRY(put_roles(k, layer));
        TRY(refit_o(k, report));
        if (p->options.refit >= REFIT_QO)
            TRY(attune(k, layer));
        if (!report->refitted)
            log_info("layer %lld: the refit does not lower the held-out error of %.4f: fitted "
                     "weights kept",
                     (long long)layer, report->before);
    }
    for (int i = 0; i < N_ATTENTION; i++)
        if (k->item[layer][ATTENTION[i]] >= 0 && p->items[k->item[layer][ATTENTION[i]]].fitted)
            TRY(put_role(k, layer, ATTENTION[i], true));
    if (k->has_student && layer + 1 < p->config.n_layer)
        TRY(advance_student(k));
    log_info("layer %lld: error of keys %.4f, of values %.4f%s", (long long)layer, error.k, error.v,
             k->has_student ? "" : ", no refit");
    return STATUS_OK;
}

static enum status find_items(struct walk *k) {
    struct convert_plan *p = k->p;
    TRY(arena_alloc(&k->arena, p->config.n_layer, (int64_t)sizeof *k->item, &k->item));
    for (int64_t l = 0; l < p->config.n_layer; l++)
        for (int r = 0; r < ROLE_COUNT; r++)
            k->item[l][r] = -1;
    for (int64_t i = 0; i < p->n_item; i++)
        if (p->items[i].role != ROLE_COUNT && p->items[i].layer >= 0)
            k->item[p->items[i].layer][p->items[i].role] = i;
    return STATUS_OK;
}

static enum status open_calibration(struct walk *k) {
    struct convert_plan *p = k->p;
    const struct convert_options *o = &p->options;
    const struct model_config *c = &p->folder->config;
    int64_t w = c->width, hd = c->n_head * c->head_dim;
    if (!o->n_calibrate)
        return o->refit == REFIT_NONE
                   ? STATUS_OK
                   : status_fail(STATUS_USAGE, "a refit needs calibration: give --calibrate");
    TRY(backend_open(o->backend ? o->backend : "auto", &k->be));
    TRY(calibration_open(o, p->folder, k->be, &k->calib));
    int64_t n = k->calib.n_window * k->calib.n_seq;
    p->calib_used = n;
    p->calib_windows = k->calib.n_window;
    p->calib_heldout = k->calib.n_window - k->calib.n_train;
    p->calib_hash = k->calib.hash;
    TRY(one_layer_open(p->folder, k->be, c->n_kv_head[0], k->calib.n_seq, &k->teacher));
    int64_t rows = k->teacher.n_batch * k->calib.n_seq;
    TRY(memory_alloc(n * w, 4, "residual streams", &k->x_teacher));
    TRY(calibration_embed(&k->calib, p->folder, k->x_teacher));
    TRY(memory_alloc(rows * w, 4, "activations", &k->normed));
    TRY(memory_alloc(rows * (size_max(w, hd) + 1), 8, "activations", &k->wide));
    if (o->method == MERGE_FIT && c->width >= c->head_dim) {
        int64_t n_in = k->from.n_in, kept = SEEN_BUDGET / (c->n_head * n_in) + 1;
        TRY(memory_alloc(model_kv_max(&p->config) * n_in * n_in, 8, "input moments", &k->seen));
        TRY(memory_alloc(rows * hd, 4, "activations", &k->slice));
        TRY(memory_alloc(size_min(kept, rows) * c->n_head * n_in, 8, "activations", &k->kept));
    }
    if (o->refit == REFIT_NONE)
        return STATUS_OK;
    k->has_student = true;
    TRY(one_layer_open(p->folder, k->be, p->config.n_kv_head[0], k->calib.n_seq, &k->student));
    TRY(memory_alloc(n * w, 4, "residual streams", &k->x_student));
    TRY(memory_alloc(n * w, 4, "residual streams", &k->mid));
    memcpy(k->x_student, k->x_teacher, (size_t)(n * w) * 4);
    TRY(memory_alloc(rows * hd, 4, "activations", &k->heads));
    TRY(memory_alloc(rows * w, 8, "activations", &k->target));
    k->sums = (struct refit_sums){.n_y = hd + c->o_bias, .width = w};
    return refit_sums_alloc(&k->sums);
}

static void walk_close(struct walk *k) {
    calibration_close(&k->calib);
    one_layer_close(&k->teacher);
    one_layer_close(&k->student);
    memory_free(k->x_teacher);
    memory_free(k->x_student);
    memory_free(k->mid);
    memory_free(k->normed);
    memory_free(k->heads);
    memory_free(k->wide);
    memory_free(k->target);
    memory_free(k->moment);
    memory_free(k->seen);
    memory_free(k->slice);
    memory_free(k->kept);
    attn_weights_free(&k->from);
    attn_weights_free(&k->permuted);
    attn_weights_free(&k->to);
    refit_sums_free(&k->sums);
    arena_free(&k->arena);
    backend_close(k->be);
}

enum status refit_run(struct convert_plan *p, struct checkpoint_writer *w,
                      struct merge_buffers *b) {
    const struct model_config *c = &p->folder->config;
    struct walk *k = NULL;
    struct progress progress;
    enum status status;
    TRY(memory_alloc(1, (int64_t)sizeof *k, "conversion", &k));
    k->p = p;
    k->writer = w;
    k->buffers = b;
    k->from = (struct attn_weights){.n_head = c->n_head,
                                    .n_kv = model_kv_max(c),
                                    .head_dim = c->head_dim,
                                    .width = c->width,
                                    .n_in = c->width + c->qkv_bias};
    k->permuted = k->to = k->from;
    k->to.n_kv = model_kv_max(&p->config);
    TRY_OUT(attn_weights_alloc(&k->from));
    TRY_OUT(attn_weights_alloc(&k->permuted));
    TRY_OUT(attn_weights_alloc(&k->to));
    TRY_OUT(memory_alloc(k->from.n_in * k->from.n_in, 8, "input moments", &k->moment));
    TRY_OUT(find_items(k));
    TRY_OUT(open_calibration(k));
    progress_start(&progress, "fit", (double)c->n_layer, "layers");
    for (int64_t l = 0; l < c->n_layer; l++) {
        TRY_OUT(fit_one(k, l));
        progress_update(&progress, (double)(l + 1), NULL);
    }
    progress_end(&progress);
out:
    walk_close(k);
    memory_free(k);
    return status;
}
