/* Which heads of a layer share: groupings that the closed-form loss proposes, and the one that is
 * there, each fitted and asked for its error on held-out windows. */
#include "convert/walk.h"

#include "core/log.h"

#include <math.h>
#include <string.h>

enum { SUM_BATCHES = 8 };      /* batches of windows from which a candidate's o_proj is refitted */
static const double NOISE = 2; /* standard errors that a gain must exceed */

/* The squared error of what the converted layer adds to the stream, for every held-out window. */
static enum status window_errors(struct walk *k, const struct spill *x, double *errors) {
    const struct calibration *c = &k->calib;
    int64_t w = k->to.width, step = k->student.n_batch;
    for (int64_t at = c->n_train; at < c->n_window; at += step) {
        int64_t n = size_min(step, c->n_window - at), first = at * c->n_seq * w;
        TRY(model_layer_attend(k->student.model, k->student.acts, 0, n, c->n_seq, x->data + first,
                               k->normed));
        for (int64_t i = 0; i < n; i++) {
            double sum = 0;
            for (int64_t j = i * c->n_seq * w; j < (i + 1) * c->n_seq * w; j++) {
                double e = (double)k->mid.data[first + j] - (double)x->data[first + j] -
                           (double)k->normed[j];
                sum += e * e;
            }
            errors[at - c->n_train + i] = sum;
        }
    }
    return STATUS_OK;
}

static enum status try_order(struct walk *k, const int64_t *order, const double *cov,
                             struct rotary rotary, double *errors) {
    const struct convert_options *o = &k->p->options;
    const struct spill *x = k->has_student ? &k->x_student : &k->x_teacher;
    struct fit_error error;
    double *old = NULL, *new = NULL;
    enum status status;
    int64_t n = k->sums.width * k->sums.n_y;
    attn_weights_permute(&k->from, order, &k->permuted);
    TRY_OUT(fit_layer(&k->permuted, k->moment, cov, rotary, o->method, &k->to, &error, k->what));
    TRY_OUT(walk_set(&k->student, &k->to));
    if (k->has_student) {
        int64_t batches = k->calib.n_train / k->student.n_batch;
        TRY_OUT(walk_sums(k, x, size_max(1, batches / SUM_BATCHES)));
        TRY_OUT(memory_alloc(n, 8, "o_proj", &old));
        TRY_OUT(memory_alloc(n, 8, "o_proj", &new));
        attn_weights_get_o(&k->to, k->sums.n_y, old);
        TRY_OUT(refit_ridge(&k->sums, old, new, k->what));
        attn_weights_set_o(&k->to, k->sums.n_y, new);
        TRY_OUT(walk_set(&k->student, &k->to));
    }
    status = window_errors(k, x, errors);
out:
    memory_free(old);
    memory_free(new);
    return status;
}

/* Is b less than a by more than the noise between n windows? */
static bool clearly_less(int64_t n, const double *a, const double *b) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        mean += (a[i] - b[i]) / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += (a[i] - b[i] - mean) * (a[i] - b[i] - mean);
    return n > 1 && mean > NOISE * sqrt(squares / (double)(n * (n - 1)));
}

static double total(int64_t n, const double *errors) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += errors[i];
    return sum;
}

/* The grouping to take among `found` of `orders`. */
static enum status choose(struct walk *k, int64_t layer, const int64_t *orders, int found,
                          struct rotary rotary, int *best) {
    int64_t n = k->calib.n_window - k->calib.n_train;
    double *errors;
    enum status status;
    *best = 0;
    TRY(memory_alloc(found * n, 8, "errors", &errors));
    walk_forget(k);
    for (int i = 0; i < found; i++)
        TRY_OUT(walk_observe(k, k->to.n_kv, orders + i * k->from.n_kv));
    TRY_OUT(walk_measure(k, layer, false));
    TRY_OUT(one_layer_load(&k->student, layer, k->to.n_kv));
    for (int i = 0; i < found; i++) {
        TRY_OUT(try_order(k, orders + i * k->from.n_kv, k->n_part ? k->parts[i].cov : NULL, rotary,
                          errors + i * n));
        if (total(n, errors + i * n) < total(n, errors + *best * n))
            *best = i;
    }
    if (!clearly_less(n, errors, errors + *best * n))
        *best = 0;
    log_info("layer %lld: %d groupings, %s %.2f of the neighbours' held-out error",
             (long long)layer, found, *best ? "the best has" : "none has clearly less than",
             total(n, errors + *best * n) / total(n, errors));
out:
    memory_free(errors);
    return status;
}

enum status walk_group(struct walk *k, int64_t layer, struct rotary rotary) {
    int64_t n = k->from.n_kv, *orders = NULL, *order;
    int found = 0, best = 0;
    enum status status;
    TRY_OUT(memory_alloc(MAX_PARTITION * n, (int64_t)sizeof *orders, "groupings", &orders));
    walk_forget(k);
    TRY_OUT(walk_observe(k, 1, NULL));
    TRY_OUT(walk_measure(k, layer, false));
    TRY_OUT(fit_groupings(&k->from, k->moment, k->n_part ? k->parts[0].cov : NULL, rotary,
                          k->to.n_kv, k->p->options.seed + (uint64_t)layer, MAX_PARTITION, orders,
                          &found, k->what));
    if (found > 1)
        TRY_OUT(choose(k, layer, orders, found, rotary, &best));
    TRY_OUT(arena_alloc(&k->p->arena, n, (int64_t)sizeof *order, &order));
    memcpy(order, orders + best * n, (size_t)n * sizeof *order);
    k->p->layers[layer].order = order;
    attn_weights_permute(&k->from, order, &k->permuted);
    struct attn_weights swap = k->from;
    k->from = k->permuted;
    k->permuted = swap;
    status = walk_set(&k->teacher, &k->from);
out:
    memory_free(orders);
    return status;
}
