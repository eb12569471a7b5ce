/* What a layer loses with fewer KV heads: each candidate is fitted, and the layer as a whole run on
 * held-out windows of the source's stream. */
#include "convert/walk.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ROWS = 16384 }; /* held-out tokens that are run */

struct reference { /* the source's layer on held-out windows */
    int64_t n_window;
    float *in, *out; /* [n_window * n_seq, width] */
};

/* A layer over the reference's windows. */
static enum status run_layer(const struct one_layer *layer, const struct reference *r, int64_t w,
                             float *out) {
    for (int64_t at = 0; at < r->n_window; at += layer->n_batch) {
        int64_t n = size_min(layer->n_batch, r->n_window - at), first = at * layer->n_seq * w;
        struct layer_io io = {.in = r->in + first, .out = out + first};
        TRY(model_layer_run(layer->model, layer->acts, 0, n, layer->n_seq, &io));
    }
    return STATUS_OK;
}

/* With k->to in place of k->from: the mean square of what the layer puts wrongly into the stream,
 * as a share of the stream behind it. */
static enum status run_loss(struct walk *k, int64_t layer, const struct reference *r, float *out,
                            double *loss) {
    int64_t n = r->n_window * k->calib.n_seq * k->from.width;
    double wrong = 0, all = 0;
    TRY(one_layer_load(&k->student, layer, k->to.n_kv));
    TRY(walk_set(&k->student, &k->to));
    TRY(run_layer(&k->student, r, k->from.width, out));
    for (int64_t i = 0; i < n; i++) {
        double e = (double)out[i] - (double)r->out[i];
        wrong += e * e;
        all += (double)r->out[i] * (double)r->out[i];
    }
    *loss = all <= 0 ? 0 : wrong / all; /* a NaN stays */
    return STATUS_OK;
}

/* n candidates at once, none too: one pass over the windows. */
static enum status some_losses(struct walk *k, int64_t layer, struct budget_candidate *first,
                               int64_t n, bool advance, const struct reference *r, float *out) {
    struct rotary rotary = {.dims = k->p->config.head_dim};
    struct fit_error error;
    walk_forget(k);
    for (int64_t i = 0; i < n; i++)
        TRY(walk_observe(k, first[i].n_kv, NULL));
    TRY(walk_measure(k, layer, advance));
    for (int64_t i = 0; i < n; i++) {
        k->to.n_kv = first[i].n_kv;
        TRY(fit_layer(&k->from, k->moment, k->n_part ? k->parts[i].cov : NULL, rotary,
                      k->p->options.method, &k->to, &error, k->what));
        if (r->in)
            TRY(run_loss(k, layer, r, out, &first[i].loss));
        else
            first[i].loss = error.k + error.v; /* without text the stream is unknown */
    }
    return STATUS_OK;
}

enum status walk_losses(struct walk *k, int64_t layer) {
    struct budget_layer *b = &k->p->budget[layer];
    const struct calibration *c = &k->calib;
    int64_t w = k->from.width, row = c->n_seq * w;
    struct reference r = {
        .n_window =
            c->n_window ? size_min(c->n_window - c->n_train, size_max(1, MAX_ROWS / c->n_seq)) : 0};
    float *out = NULL;
    enum status status;
    snprintf(k->what, sizeof k->what, "%s: layer %lld", k->p->options.from, (long long)layer);
    k->from.n_kv = k->p->folder->config.n_kv_head[layer];
    TRY_OUT(walk_read(k, layer));
    if (c->n_window) {
        TRY_OUT(one_layer_load(&k->teacher, layer, k->from.n_kv));
        TRY_OUT(memory_alloc(r.n_window * row, 4, "activations", &r.in));
        TRY_OUT(memory_alloc(r.n_window * row, 4, "activations", &r.out));
        TRY_OUT(memory_alloc(r.n_window * row, 4, "activations", &out));
        memcpy(r.in, k->x_teacher.data + c->n_train * row, (size_t)(r.n_window * row) * 4);
        TRY_OUT(run_layer(&k->teacher, &r, w, r.out));
    }
    int64_t i = 1;
    do /* also with nothing to choose: the stream moves on */
        TRY_OUT(some_losses(k, layer, b->candidates + i, size_min(MAX_PARTITION, b->n - i),
                            i + MAX_PARTITION >= b->n, &r, out));
    while ((i += MAX_PARTITION) < b->n);
out:
    memory_free(r.in);
    memory_free(r.out);
    memory_free(out);
    return status;
}
