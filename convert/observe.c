/* See observe.h. Only pairs of a query head and a value that meet in some group are computed. */
#include "convert/observe.h"
#include "convert/linalg.h"

#include <string.h>

enum { KEPT_VALUES = 1 << 22 }; /* of a batch */

enum status partition_alloc(struct partition *p) {
    int64_t side = p->n_kv / p->n_group * p->head_dim;
    return memory_alloc(p->n_group * side * side, 8, "value moments", &p->cov);
}

void partition_free(struct partition *p) {
    memory_free(p->cov);
    p->cov = NULL;
}

void partition_mirror(struct partition *p) {
    int64_t side = p->n_kv / p->n_group * p->head_dim;
    for (int64_t g = 0; g < p->n_group; g++)
        linalg_mirror(side, p->cov + g * side * side);
}

enum status observer_open(const struct one_layer *layer, int64_t n_kv, struct observer *out) {
    const struct model_config *c = &layer->model->config;
    int64_t rows = layer->n_batch * layer->n_seq, cols = n_kv * c->head_dim;
    *out = (struct observer){.keep = size_max(1, KEPT_VALUES / (c->n_head * cols))};
    out->keep = size_min(out->keep, rows);
    TRY(memory_alloc(rows * c->n_head * c->head_dim, 4, "activations", &out->slice));
    TRY(memory_alloc(out->keep * c->n_head * cols, 8, "activations", &out->kept));
    return memory_alloc(out->keep * c->n_head * cols, 8, "activations", &out->columns);
}

void observer_close(struct observer *o) {
    memory_free(o->slice);
    memory_free(o->kept);
    memory_free(o->columns);
    *o = (struct observer){0};
}

static int64_t head_at(const struct partition *p, int64_t i) {
    return p->order ? p->order[i] : i;
}

static int64_t group_of(const struct partition *p, int64_t head) {
    int64_t i = 0;
    while (head_at(p, i) != head)
        i++;
    return i / (p->n_kv / p->n_group);
}

static bool meet(const struct partition *parts, int n_part, int64_t a, int64_t b) {
    for (int i = 0; i < n_part; i++)
        if (group_of(&parts[i], a) == group_of(&parts[i], b))
            return true;
    return false;
}

/* Head `value`'s values as the query heads of KV heads [first, first + n) see them, into o->kept:
 * [n_kv, n_q, n_kept, n_kv d]. */
static enum status keep_seen(struct observer *o, const struct one_layer *layer, int64_t rows,
                             int64_t step, int64_t first, int64_t n, int64_t value) {
    const struct model_config *c = &layer->model->config;
    int64_t d = c->head_dim, n_q = c->n_head / c->n_kv_head[0], cols = c->n_kv_head[0] * d;
    int64_t n_kept = (rows + step - 1) / step;
    TRY(model_layer_seen(layer->model, layer->acts, 0, first, n, value, o->slice));
    for (int64_t q = 0; q < n * n_q; q++)
        for (int64_t r = 0; r < n_kept; r++) {
            const float *z = o->slice + (r * step * n * n_q + q) * d;
            double *to = o->kept + ((first * n_q + q) * n_kept + r) * cols + value * d;
            for (int64_t i = 0; i < d; i++)
                to[i] = (double)z[i];
        }
    return STATUS_OK;
}

static void add_partition(struct observer *o, struct partition *p, int64_t head_rows) {
    int64_t r = p->n_kv / p->n_group, d = p->head_dim, side = r * d, cols = p->n_kv * d;
    for (int64_t g = 0; g < p->n_group; g++) {
        double *to = o->columns;
        for (int64_t i = g * r; i < (g + 1) * r; i++) {
            const double *from = o->kept + head_at(p, i) * head_rows * cols;
            for (int64_t row = 0; row < head_rows; row++, from += cols)
                for (int64_t j = g * r; j < (g + 1) * r; j++, to += d)
                    memcpy(to, from + head_at(p, j) * d, (size_t)d * sizeof *to);
        }
        linalg_gram(r * head_rows, side, o->columns, p->cov + g * side * side);
    }
}

enum status observer_add(struct observer *o, const struct one_layer *layer, int64_t rows,
                         struct partition *parts, int n_part) {
    const struct model_config *c = &layer->model->config;
    int64_t n_kv = c->n_kv_head[0], step = (rows + o->keep - 1) / o->keep;
    int64_t head_rows = c->n_head / n_kv * ((rows + step - 1) / step);
    for (int64_t value = 0; value < n_kv; value++)
        for (int64_t h = 0, n = 0; h<n_kv; h += n> 0 ? n : 1) {
            for (n = 0; h + n < n_kv && meet(parts, n_part, h + n, value); n++)
                ;
            if (n)
                TRY(keep_seen(o, layer, rows, step, h, n, value));
        }
    for (int i = 0; i < n_part; i++)
        add_partition(o, &parts[i], head_rows);
    return STATUS_OK;
}
