/* Which models of a run are worth choosing: those that none beats in both memory and quality. */
#include "eval/report_data.h"

static struct report_point *point_at(struct report *r, int64_t i) {
    if (i == 0)
        return &r->teacher;
    struct report_variant *v = &r->variants[(i - 1) / 2];
    return i % 2 ? &v->converted : &v->distilled;
}

/* NaN beats nothing and is beaten by nothing, so it is asked for first. */
static bool comparable(const struct report_point *p) {
    return p->measured && p->has_perplexity && p->perplexity > 0 && p->kv_bytes > 0;
}

static bool beats(const struct report_point *a, const struct report_point *b) {
    return a->kv_bytes <= b->kv_bytes && a->perplexity <= b->perplexity &&
           (a->kv_bytes < b->kv_bytes || a->perplexity < b->perplexity);
}

void report_mark_pareto(struct report *r) {
    int64_t n = 1 + 2 * r->n_variant;
    for (int64_t i = 0; i < n; i++) {
        struct report_point *p = point_at(r, i);
        p->pareto = comparable(p);
        for (int64_t k = 0; p->pareto && k < n; k++)
            p->pareto = !comparable(point_at(r, k)) || !beats(point_at(r, k), p);
    }
}
