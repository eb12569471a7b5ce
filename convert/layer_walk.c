/* Layer by layer: measure on the source model, fit, refit on the converted one, write. The two
 * residual streams of all windows stay in host memory, so each layer's text passes once through
 * the source's layer and twice through the converted one (before and after the refit). */
#include "convert/attune.h"
#include "convert/linalg.h"
#include "convert/walk.h"

#include "core/file.h"
#include "core/log.h"

#include <stdio.h>
#include <string.h>

enum {
    ATTUNE_BATCHES = 8,      /* batches of windows that tuning uses, at least */
    ATTUNE_EVALUATIONS = 20, /* of a layer's attention and its gradient */
};
static const int64_t STREAM_MEMORY = (int64_t)1 << 30; /* bytes; more goes to a file */

bool convert_measures(const struct convert_options *o) {
    return o->method == MERGE_FIT || o->method == MERGE_PROCRUSTES || o->refit != REFIT_NONE ||
           o->grouping == GROUPING_FIT;
}

void widen(const float *from, int64_t rows, int64_t cols, int64_t extra, double *to) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++)
            to[r * (cols + extra) + c] = (double)from[r * cols + c];
        if (extra)
            to[r * (cols + 1) + cols] = 1;
    }
}

void walk_forget(struct walk *k) {
    for (; k->n_part; k->n_part--)
        partition_free(&k->parts[k->n_part - 1]);
}

enum status walk_observe(struct walk *k, int64_t n_group, const int64_t *order) {
    if (n_group == k->from.n_kv || !k->observer.keep)
        return STATUS_OK;
    struct partition *p = &k->parts[k->n_part++];
    *p = (struct partition){
        .n_kv = k->from.n_kv, .n_group = n_group, .head_dim = k->from.head_dim, .order = order};
    return partition_alloc(p);
}

static enum status teacher_pass(struct walk *k, bool advance) {
    const struct calibration *c = &k->calib;
    int64_t w = k->from.width, n_in = k->from.n_in, step = k->teacher.n_batch;
    memset(k->moment, 0, (size_t)(n_in * n_in) * sizeof *k->moment);
    for (int64_t at = 0; at < c->n_window; at += step) {
        int64_t n = size_min(step, c->n_window - at), rows = n * c->n_seq;
        int64_t first = at * c->n_seq * w;
        struct layer_io io = {.in = k->x_teacher.data + first,
                              .normed = k->normed,
                              .mid = k->mid.data ? k->mid.data + first : NULL,
                              .out = advance ? k->x_teacher.data + first : NULL};
        TRY(model_layer_run(k->teacher.model, k->teacher.acts, 0, n, c->n_seq, &io));
        widen(k->normed, rows, w, n_in - w, k->wide);
        linalg_gram(rows, n_in, k->wide, k->moment);
        if (k->n_part)
            TRY(observer_add(&k->observer, &k->teacher, rows, k->parts, k->n_part));
        spill_rest(&k->x_teacher, first, rows * w);
        spill_rest(&k->mid, first, rows * w);
    }
    for (int i = 0; i < k->n_part; i++)
        partition_mirror(&k->parts[i]);
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

enum status walk_measure(struct walk *k, int64_t layer, bool advance) {
    return k->calib.n_window ? teacher_pass(k, advance) : plain_moment(k, layer);
}

enum status walk_sums(struct walk *k, const struct spill *x, int64_t stride) {
    const struct calibration *c = &k->calib;
    int64_t w = k->to.width, hd = k->to.n_head * k->to.head_dim, step = k->student.n_batch;
    refit_sums_clear(&k->sums);
    for (int64_t at = 0; at < c->n_window;) {
        bool held_out = at >= c->n_train;
        int64_t n = size_min(step, (held_out ? c->n_window : c->n_train) - at);
        int64_t rows = n * c->n_seq, first = at * c->n_seq * w;
        struct layer_io io = {.in = x->data + first, .heads = k->heads};
        TRY(model_layer_run(k->student.model, k->student.acts, 0, n, c->n_seq, &io));
        widen(k->heads, rows, hd, k->sums.n_y - hd, k->wide);
        for (int64_t i = 0; i < rows * w; i++)
            k->target[i] = (double)k->mid.data[first + i] - (double)x->data[first + i];
        refit_sums_add(&k->sums, held_out, rows, k->wide, k->target);
        spill_rest(x, first, rows * w);
        spill_rest(&k->mid, first, rows * w);
        at = held_out ? at + n : size_min(c->n_train, at + n * stride);
    }
    return STATUS_OK;
}

static enum status advance_student(struct walk *k) {
    const struct calibration *c = &k->calib;
    int64_t step = k->student.n_batch;
    for (int64_t at = 0; at < c->n_window; at += step) {
        int64_t n = size_min(step, c->n_window - at), row = c->n_seq * k->to.width;
        float *x = k->x_student.data + at * row;
        struct layer_io io = {.in = x, .out = x};
        TRY(model_layer_run(k->student.model, k->student.acts, 0, n, c->n_seq, &io));
        spill_rest(&k->x_student, at * row, n * row);
    }
    return STATUS_OK;
}

static enum status refit_o(struct walk *k, struct layer_fit *report) {
    double *o;
    enum status status;
    TRY(walk_sums(k, &k->x_student, 1));
    TRY(memory_alloc(k->to.width * k->sums.n_y, (int64_t)sizeof *o, "o_proj", &o));
    attn_weights_get_o(&k->to, k->sums.n_y, o);
    TRY_OUT(refit_solve(&k->sums, o, &report->before, &report->after, &report->refitted, k->what));
    attn_weights_set_o(&k->to, k->sums.n_y, o);
out:
    memory_free(o);
    return status;
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
                       .x = k->x_student.data,
                       .mid = k->mid.data,
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
    TRY_OUT(walk_put(k, layer, false));
    TRY_OUT(refit_o(k, &trial));
    double now = trial.refitted ? trial.after : trial.before;
    if (now < (report->refitted ? report->after : report->before)) {
        report->after = now;
        report->refitted = true;
    } else {
        attn_weights_copy(&before, &k->to);
        TRY_OUT(walk_put(k, layer, false));
    }
out:
    attn_weights_free(&before);
    return status;
}

/* k->from, whose KV heads are as many as k->to wants, or are to be merged. */
static enum status fit_to(struct walk *k, struct rotary rotary, struct fit_error *error) {
    if (k->to.n_kv == k->from.n_kv) {
        *error = (struct fit_error){0};
        attn_weights_copy(&k->from, &k->to);
        return STATUS_OK;
    }
    return fit_layer(&k->from, k->moment, k->n_part ? k->parts[0].cov : NULL, rotary,
                     k->p->options.method, &k->to, error, k->what);
}

static enum status fit_one(struct walk *k, int64_t layer) {
    struct convert_plan *p = k->p;
    struct layer_fit *report = &p->layers[layer];
    struct rotary rotary = {.dims = p->config.head_dim};
    struct fit_error error;
    snprintf(k->what, sizeof k->what, "%s: layer %lld", p->options.from, (long long)layer);
    k->from.n_kv = k->permuted.n_kv = p->folder->config.n_kv_head[layer];
    k->to.n_kv = p->config.n_kv_head[layer];
    TRY(walk_read(k, layer));
    if (k->calib.n_window)
        TRY(one_layer_load(&k->teacher, layer, k->from.n_kv));
    if (p->options.grouping == GROUPING_FIT)
        TRY(walk_group(k, layer, rotary));
    walk_forget(k);
    TRY(walk_observe(k, k->to.n_kv, NULL));
    TRY(walk_measure(k, layer, true));
    TRY(fit_to(k, rotary, &error));
    report->fitted = true;
    report->k_error = error.k;
    report->v_error = error.v;
    if (k->has_student) {
        TRY(one_layer_load(&k->student, layer, k->to.n_kv));
        TRY(walk_put(k, layer, false));
        TRY(refit_o(k, report));
        if (p->options.refit >= REFIT_QO)
            TRY(attune(k, layer));
        if (!report->refitted)
            log_info("layer %lld: the refit does not lower the held-out error of %.4f: fitted "
                     "weights kept",
                     (long long)layer, report->before);
    }
    TRY(walk_put(k, layer, true));
    if (k->has_student && layer + 1 < p->config.n_layer)
        TRY(advance_student(k));
    if (k->calib.n_window)
        log_info("layer %lld: error of keys %.4f, of values %.4f%s", (long long)layer, error.k,
                 error.v, k->has_student ? "" : ", no refit");
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

/* The streams: the source's, and with a refit the converted model's and what it should be. */
static enum status open_streams(struct walk *k, bool choosing) {
    const struct convert_options *o = &k->p->options;
    int64_t n = k->calib.n_window * k->calib.n_seq * k->from.width;
    int64_t limit = o->stream_memory > 0 ? o->stream_memory : STREAM_MEMORY;
    bool compares = !choosing && (k->has_student || o->grouping == GROUPING_FIT);
    double bytes = 4.0 * (double)n * (k->has_student ? 3 : compares ? 2 : 1);
    char *dir = NULL;
    if (bytes > (double)limit) {
        TRY(path_parent(&k->arena, o->to ? o->to : ".", &dir));
        while (!path_exists(dir)) /* a dry run makes no folder */
            TRY(path_parent(&k->arena, dir, &dir));
        log_info("%s: %.1f GiB for the residual streams of %lld tokens, in an unnamed file", dir,
                 bytes / 1073741824, (long long)(k->calib.n_window * k->calib.n_seq));
    }
    TRY(spill_open(&k->x_teacher, n, dir));
    TRY(calibration_embed(&k->calib, k->p->folder, k->x_teacher.data));
    if (compares)
        TRY(spill_open(&k->mid, n, dir));
    if (!k->has_student)
        return STATUS_OK;
    TRY(spill_open(&k->x_student, n, dir));
    memcpy(k->x_student.data, k->x_teacher.data, (size_t)n * sizeof(float));
    return STATUS_OK;
}

static enum status open_calibration(struct walk *k, bool choosing) {
    struct convert_plan *p = k->p;
    const struct convert_options *o = &p->options;
    const struct model_config *c = &p->folder->config;
    int64_t w = c->width, hd = c->n_head * c->head_dim;
    if (!o->n_calibrate)
        return o->refit == REFIT_NONE
                   ? STATUS_OK
                   : status_fail(STATUS_USAGE, "a refit needs calibration: give --calibrate");
    TRY(backend_open(o->backend ? o->backend : "auto", &k->be));
    if (!p->calibration) {
        TRY(memory_alloc(1, (int64_t)sizeof *p->calibration, "calibration", &p->calibration));
        TRY(calibration_open(o, p->folder, k->be, p->calibration));
    }
    k->calib = *p->calibration;
    p->calib_used = k->calib.n_window * k->calib.n_seq;
    p->calib_windows = k->calib.n_window;
    p->calib_heldout = k->calib.n_window - k->calib.n_train;
    p->calib_hash = k->calib.hash;
    k->has_student = o->refit != REFIT_NONE && !choosing;
    TRY(open_streams(k, choosing));
    TRY(one_layer_open(p->folder, k->be, c->n_kv_head[0], k->calib.n_seq, &k->teacher));
    int64_t rows = k->teacher.n_batch * k->calib.n_seq;
    TRY(memory_alloc(rows * w, 4, "activations", &k->normed));
    TRY(memory_alloc(rows * (size_max(w, hd) + 1), 8, "activations", &k->wide));
    if (o->method == MERGE_FIT)
        TRY(observer_open(&k->teacher, model_kv_max(c), &k->observer));
    if (choosing || k->mid.data)
        TRY(one_layer_open(p->folder, k->be, p->config.n_kv_head[0], k->calib.n_seq, &k->student));
    if (!k->mid.data)
        return STATUS_OK;
    TRY(memory_alloc(rows * hd, 4, "activations", &k->heads));
    TRY(memory_alloc(rows * w, 8, "activations", &k->target));
    k->sums = (struct refit_sums){.n_y = hd + c->o_bias, .width = w};
    return refit_sums_alloc(&k->sums);
}

static void walk_close(struct walk *k) {
    one_layer_close(&k->teacher);
    one_layer_close(&k->student);
    spill_close(&k->x_teacher);
    spill_close(&k->x_student);
    spill_close(&k->mid);
    observer_close(&k->observer);
    walk_forget(k);
    memory_free(k->normed);
    memory_free(k->heads);
    memory_free(k->wide);
    memory_free(k->target);
    memory_free(k->moment);
    attn_weights_free(&k->from);
    attn_weights_free(&k->permuted);
    attn_weights_free(&k->to);
    refit_sums_free(&k->sums);
    arena_free(&k->arena);
    backend_close(k->be);
}

static enum status walk(struct convert_plan *p, struct checkpoint_writer *w,
                        struct merge_buffers *b, const char *name,
                        enum status (*visit)(struct walk *, int64_t layer)) {
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
    if (p->options.grouping == GROUPING_FIT)
        TRY_OUT(attn_weights_alloc(&k->permuted));
    TRY_OUT(attn_weights_alloc(&k->to));
    TRY_OUT(memory_alloc(k->from.n_in * k->from.n_in, 8, "input moments", &k->moment));
    TRY_OUT(find_items(k));
    TRY_OUT(open_calibration(k, !w));
    progress_start(&progress, name, (double)c->n_layer, "layers");
    for (int64_t l = 0; l < c->n_layer; l++) {
        TRY_OUT(visit(k, l));
        progress_update(&progress, (double)(l + 1), NULL);
    }
    progress_end(&progress);
out:
    walk_close(k);
    memory_free(k);
    return status;
}

enum status refit_run(struct convert_plan *p, struct checkpoint_writer *w,
                      struct merge_buffers *b) {
    return walk(p, w, b, "fit", fit_one);
}

enum status refit_losses(struct convert_plan *p) {
    return walk(p, NULL, NULL, "budget", walk_losses);
}
