/* Quality chart, loss curves, speed bars. */
#include "eval/report_chart.h"

#include "eval/chart_axis.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double text_width(const char *s, double size) {
    double n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return 0.61 * size * n;
}

static enum status open_svg(struct text *out, double width, double height, const char *class,
                            const char *id, const char *title, const char *description) {
    TRY(text_printf(out,
                    "<svg class=\"%s\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
                    "aria-labelledby=\"%s-t %s-d\" xmlns=\"http://www.w3.org/2000/svg\">\n<title "
                    "id=\"%s-t\">",
                    class, width, height, id, id, id));
    TRY(report_escape(out, title));
    TRY(text_printf(out, "</title>\n<desc id=\"%s-d\">", id));
    TRY(report_escape(out, description));
    return text_puts(out, "</desc>\n");
}

static enum status line(struct text *out, const char *class, double x1, double y1, double x2,
                        double y2) {
    return text_printf(out,
                       "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                       class, x1, y1, x2, y2);
}

static enum status label(struct text *out, const char *class, const char *anchor, double x,
                         double y, const char *s) {
    TRY(text_printf(out, "<text class=\"%s\" text-anchor=\"%s\" x=\"%.1f\" y=\"%.1f\">", class,
                    anchor, x, y));
    TRY(report_escape(out, s));
    return text_puts(out, "</text>\n");
}

static struct report_label tick_text(double v) {
    struct report_label l;
    snprintf(l.s, sizeof l.s, "%.4g", v);
    return fabs(v) >= 1e4 ? report_count(v) : l;
}

/* Placing labels: rectangles that may not be covered. */
struct box {
    double x, y, w, h;
};
enum { MAX_BOX = 1024 };
struct layout {
    struct box taken[MAX_BOX];
    int n;
    struct box frame;
};

static void take(struct layout *l, double x, double y, double w, double h) {
    if (l->n < MAX_BOX)
        l->taken[l->n++] = (struct box){x, y, w, h};
}

static double overlap(const struct box *a, const struct box *b) {
    double w = fmin(a->x + a->w, b->x + b->w) - fmax(a->x, b->x);
    double h = fmin(a->y + a->h, b->y + b->h) - fmax(a->y, b->y);
    return w > 0 && h > 0 ? w * h : 0;
}

/* The free place nearest to a mark, or the one that covers least. */
static struct box place(struct layout *l, double x, double y, double w, double h) {
    struct box best = {x, y, w, h};
    double least = DBL_MAX;
    for (double far = 9; far < 90; far += 6) {
        struct box tries[] = {
            {x + far, y - h / 2, w, h},           {x - far - w, y - h / 2, w, h},
            {x - w / 2, y - far - h, w, h},       {x - w / 2, y + far, w, h},
            {x + 8 - w, y - far - h, w, h},       {x - 8, y - far - h, w, h},
            {x + 8 - w, y + far, w, h},           {x - 8, y + far, w, h},
            {x + far, y - far - h / 2, w, h},     {x + far, y + far - h / 2, w, h},
            {x - far - w, y - far - h / 2, w, h}, {x - far - w, y + far - h / 2, w, h},
        };
        for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
            const struct box *t = &tries[i], *f = &l->frame;
            double cost = far * 0.2 + (double)i * 0.05;
            cost += 100 * (t->w * t->h - overlap(t, f));
            for (int k = 0; k < l->n; k++)
                cost += 10 * overlap(t, &l->taken[k]);
            if (cost < least) {
                least = cost;
                best = *t;
            }
        }
        if (least < 100) /* nothing is covered */
            break;
    }
    take(l, best.x, best.y, best.w, best.h);
    return best;
}

enum { MANY_MARKS = 13 }; /* beyond this only the frontier is labelled */

struct mark {
    const struct report_point *p;
    const struct report_variant *v; /* NULL: teacher */
    double x, y;
};

static bool drawable(const struct report_point *p) {
    return p->measured && p->has_perplexity && isfinite(p->perplexity) && p->perplexity > 0 &&
           isfinite(p->kv_bytes) && p->kv_bytes > 0;
}

struct quality {
    const struct report *r;
    struct axis x, y;
    struct mark *marks;
    int64_t n;
    double width, height, left, right, top, bottom;
};

static void add_mark(struct quality *q, const struct report_point *p,
                     const struct report_variant *v) {
    if (drawable(p))
        q->marks[q->n++] = (struct mark){.p = p, .v = v};
}

/* Variants with the same cache size stand side by side instead of on top of each other. */
static double dodge(const struct report *r, const struct report_variant *v) {
    int64_t before = 0, all = 0;
    double bytes = report_best(v)->kv_bytes;
    for (int64_t i = 0; i < r->n_variant; i++) {
        if (report_best(&r->variants[i])->kv_bytes != bytes)
            continue;
        all++;
        before += &r->variants[i] < v;
    }
    return ((double)before - (double)(all - 1) / 2) * 16;
}

static void scale_quality(struct quality *q) {
    double x0 = DBL_MAX, x1 = 0, y0 = DBL_MAX, y1 = 0;
    for (int64_t i = 0; i < q->n; i++) {
        const struct report_point *p = q->marks[i].p;
        x0 = fmin(x0, p->kv_bytes);
        x1 = fmax(x1, p->kv_bytes);
        y0 = fmin(y0, p->perplexity);
        y1 = fmax(y1, p->perplexity);
    }
    bool log = y1 / y0 > 3;
    double pad = log ? 0 : fmax(0.12 * (y1 - y0), 0.01 * y0);
    double grow = log ? pow(y1 / y0, 0.1) : 1;
    q->y = (struct axis){.log = log,
                         .from = y0 / grow - pad,
                         .to = y1 * grow + pad,
                         .pixel = q->height - q->bottom,
                         .pixel_end = q->top};
    double side = x1 > x0 ? pow(x1 / x0, 0.14) : 2;
    q->x = (struct axis){.log = true,
                         .from = x0 / side,
                         .to = x1 * side,
                         .pixel = q->left,
                         .pixel_end = q->width - q->right};
    for (int64_t i = 0; i < q->n; i++) {
        struct mark *m = &q->marks[i];
        m->x = axis_at(&q->x, m->p->kv_bytes) + (m->v ? dodge(q->r, m->v) : 0);
        m->y = axis_at(&q->y, m->p->perplexity);
    }
}

static enum status draw_axes(struct text *out, const struct quality *q) {
    double ticks[AXIS_MAX_TICK], right = q->width - q->right, floor = q->height - q->bottom;
    int n = axis_ticks(&q->y, 6, ticks);
    for (int i = 0; i < n; i++) {
        double y = axis_at(&q->y, ticks[i]);
        TRY(line(out, "grid", q->left, y, right, y));
        TRY(label(out, "tick", "end", q->left - 8, y + 4, tick_text(ticks[i]).s));
    }
    TRY(line(out, "axis", q->left, floor, right, floor));
    double last = -1e9; /* the sizes there are, not round numbers */
    for (double after = 0;;) {
        double next = DBL_MAX;
        for (int64_t i = 0; i < q->n; i++)
            if (q->marks[i].p->kv_bytes > after)
                next = fmin(next, q->marks[i].p->kv_bytes);
        if (next == DBL_MAX)
            break;
        after = next;
        double x = axis_at(&q->x, next);
        TRY(line(out, "axis", x, floor, x, floor + 5));
        if (x - last < 60)
            continue;
        last = x;
        TRY(label(out, "tick", "middle", x, floor + 20, report_bytes(next).s));
    }
    TRY(label(out, "name", "start", 4, 16, q->y.log ? "perplexity (log scale)" : "perplexity"));
    return label(out, "name", "middle", (q->left + right) / 2, q->height - 6,
                 "KV cache per token (log scale)");
}

static enum status draw_teacher(struct text *out, struct quality *q, struct layout *l) {
    const struct report_point *t = &q->r->teacher;
    if (!drawable(t))
        return STATUS_OK;
    double x = axis_at(&q->x, t->kv_bytes), y = axis_at(&q->y, t->perplexity);
    TRY(line(out, "teacher-line", q->left, y, q->width - q->right, y));
    take(l, q->left, y - 3, q->width - q->left - q->right, 6);
    return text_printf(out, "<path class=\"teacher-mark\" d=\"M%.1f %.1fl7 7l-7 7l-7 -7z\"/>\n", x,
                       y - 7);
}

static enum status draw_marks(struct text *out, const struct quality *q, struct layout *l) {
    for (int64_t i = 0; i + 1 < q->n; i++) { /* what training did */
        const struct mark *a = &q->marks[i], *b = &q->marks[i + 1];
        if (!a->v || a->v != b->v)
            continue;
        double gap = b->y > a->y ? 6 : -6;
        TRY(line(out, "gain", a->x, a->y + gap, b->x, b->y));
        take(l, a->x - 3, fmin(a->y, b->y), 6, fabs(a->y - b->y));
    }
    for (int64_t i = 0; i < q->n; i++) {
        const struct mark *m = &q->marks[i];
        take(l, m->x - 8, m->y - 8, 16, 16);
        if (!m->v)
            continue;
        double se = m->p->perplexity_se;
        if (isfinite(se) && m->p->perplexity > se)
            TRY(line(out, "error", m->x, axis_at(&q->y, m->p->perplexity - se), m->x,
                     fmax(q->top, axis_at(&q->y, m->p->perplexity + se))));
        TRY(text_printf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"6\"/>\n",
                        m->p->kind == REPORT_DISTILLED ? "distilled" : "converted", m->x, m->y));
    }
    return STATUS_OK;
}

/* The frontier: the models worth choosing, joined from the smallest cache to the largest. */
static enum status draw_frontier(struct text *out, const struct quality *q) {
    const struct mark *last = NULL;
    for (;;) {
        const struct mark *next = NULL;
        for (int64_t i = 0; i < q->n; i++) {
            const struct mark *m = &q->marks[i];
            if (m->p->pareto && (!last || m->p->kv_bytes > last->p->kv_bytes) &&
                (!next || m->p->kv_bytes < next->p->kv_bytes))
                next = m;
        }
        if (last && next)
            TRY(line(out, "frontier", last->x, last->y, next->x, next->y));
        if (!next)
            return STATUS_OK;
        last = next;
    }
}

static enum status draw_labels(struct text *out, const struct quality *q, struct layout *l) {
    for (int64_t i = q->n; i-- > 0;) { /* later marks are the better models */
        const struct mark *m = &q->marks[i], *after = m + 1;
        if (i + 1 < q->n && m->v && after->v == m->v && fabs(after->y - m->y) < 12)
            continue; /* one label says it for both */
        if (q->n > MANY_MARKS && m->v && !m->p->pareto)
            continue; /* the table has them all */
        struct report_label value = report_number(m->p->perplexity);
        char name[40], all[160];
        bool long_name = strlen(m->p->id) > 24;
        snprintf(name, sizeof name, "%.24s%s", m->p->id, long_name ? "..." : "");
        snprintf(all, sizeof all, "%s %s", name, value.s);
        struct box b = place(l, m->x, m->y, text_width(all, 12) + 4, 16);
        double anchor = b.x + b.w < m->x ? b.x + b.w : b.x > m->x ? b.x : b.x + b.w / 2;
        if (hypot(anchor - m->x, b.y + 8 - m->y) > 30)
            TRY(line(out, "leader", m->x, m->y, anchor, b.y + 8));
        TRY(text_printf(out, "<text class=\"mark\" x=\"%.1f\" y=\"%.1f\">", b.x + 2, b.y + 12.5));
        TRY(report_escape(out, name));
        TRY(text_printf(out, " <tspan class=\"value\">%s</tspan></text>\n", value.s));
    }
    return STATUS_OK;
}

static enum status draw_key(struct text *out, double x, double y) {
    TRY(text_printf(out, "<circle class=\"converted\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>\n", x,
                    y - 4));
    TRY(label(out, "tick", "start", x + 10, y, "converted"));
    TRY(text_printf(out, "<circle class=\"distilled\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\"/>\n", x + 84,
                    y - 4));
    return label(out, "tick", "start", x + 94, y, "distilled");
}

enum status chart_quality(struct text *out, const struct report *r, double width, double height,
                          const char *id) {
    struct quality q = {.r = r, .width = width, .height = height};
    q.left = 48;
    q.right = 12;
    q.top = 34;
    q.bottom = 50;
    struct layout *l = NULL;
    enum status status = STATUS_OK;
    TRY_OUT(memory_alloc(2 * r->n_variant + 1, sizeof *q.marks, "chart", &q.marks));
    TRY_OUT(memory_alloc(1, sizeof *l, "chart", &l));
    add_mark(&q, &r->teacher, NULL);
    for (int64_t i = 0; i < r->n_variant; i++) {
        add_mark(&q, &r->variants[i].converted, &r->variants[i]);
        add_mark(&q, &r->variants[i].distilled, &r->variants[i]);
    }
    if (!q.n)
        goto out;
    scale_quality(&q);
    l->frame =
        (struct box){q.left, q.top - 8, width - q.left - q.right, height - q.top - q.bottom + 8};
    TRY_OUT(open_svg(out, width, height, width < 500 ? "narrow" : "wide", id,
                     "Perplexity against KV-cache bytes per token",
                     "Every model of this run; the table below has the same numbers. Lower and "
                     "further left is better; the dashed line is the teacher."));
    TRY_OUT(draw_axes(out, &q));
    TRY_OUT(draw_teacher(out, &q, l));
    TRY_OUT(draw_frontier(out, &q));
    TRY_OUT(draw_marks(out, &q, l));
    TRY_OUT(draw_labels(out, &q, l));
    TRY_OUT(draw_key(out, width - q.right - 162, 16));
    status = text_puts(out, "</svg>\n");
out:
    memory_free(q.marks);
    memory_free(l);
    return status;
}

/* Loss curves. */

static void series_top(const struct report_series *s, double *top) {
    for (int64_t i = 0; i < s->n; i++)
        if (isfinite(s->y[i]))
            *top = fmax(*top, s->y[i]);
}

double chart_curve_top(const struct report *r) {
    double top = isfinite(r->teacher.nll) && r->teacher.measured ? r->teacher.nll : 0;
    for (int64_t v = 0; v < r->n_variant; v++) {
        series_top(&r->variants[v].curve.loss, &top);
        series_top(&r->variants[v].curve.held_out, &top);
    }
    return top > 0 ? 1.05 * top : 1;
}

/* A polyline; longer series are averaged down to what the width can show. Gaps where not finite. */
static enum status draw_series(struct text *out, const char *class, const struct report_series *s,
                               const struct axis *x, const struct axis *y) {
    enum { MAX_POINT = 160 };
    int64_t bucket = (s->n + MAX_POINT - 1) / MAX_POINT;
    bool pen = false;
    if (!s->n)
        return STATUS_OK;
    TRY(text_printf(out, "<path class=\"%s\" d=\"", class));
    for (int64_t i = 0; i < s->n; i += bucket) {
        int64_t n = size_min(bucket, s->n - i);
        double sx = 0, sy = 0;
        for (int64_t k = i; k < i + n; k++) {
            sx += s->x[k];
            sy += s->y[k];
        }
        if (!isfinite(sy)) {
            pen = false;
            continue;
        }
        TRY(text_printf(out, "%c%.1f %.1f", pen ? 'L' : 'M', axis_at(x, sx / (double)n),
                        axis_at(y, sy / (double)n)));
        pen = true;
    }
    return text_puts(out, "\"/>\n");
}

enum status chart_curve(struct text *out, const struct report *r, const struct report_variant *v,
                        double top, double width, double height, const char *id) {
    const struct report_curve *c = &v->curve;
    double ticks[AXIS_MAX_TICK], last = 1, floor = height - 40;
    if (c->loss.n)
        last = fmax(last, c->loss.x[c->loss.n - 1]);
    if (c->held_out.n)
        last = fmax(last, c->held_out.x[c->held_out.n - 1]);
    struct axis x = {.from = 0, .to = last, .pixel = 34, .pixel_end = width - 14};
    struct axis y = {.from = 0, .to = top, .pixel = floor, .pixel_end = 12};
    char title[300];
    snprintf(title, sizeof title, "Loss while training %.200s", v->id);
    TRY(open_svg(out, width, height, "curve", id, title,
                 "Training loss and held-out negative log-likelihood in nats per token against "
                 "steps; the dashed line is the teacher's."));
    int n = axis_ticks(&y, 5, ticks);
    for (int i = 0; i < n; i++) {
        TRY(line(out, i ? "grid" : "axis", x.pixel, axis_at(&y, ticks[i]), x.pixel_end,
                 axis_at(&y, ticks[i])));
        TRY(label(out, "tick", "end", x.pixel - 6, axis_at(&y, ticks[i]) + 4,
                  tick_text(ticks[i]).s));
    }
    n = axis_ticks(&x, 4, ticks);
    for (int i = 0; i < n; i++)
        TRY(label(out, "tick", "middle", axis_at(&x, ticks[i]), floor + 17, tick_text(ticks[i]).s));
    TRY(label(out, "name", "middle", (x.pixel + x.pixel_end) / 2, height - 6, "step"));
    if (r->teacher.measured && isfinite(r->teacher.nll)) {
        double at = axis_at(&y, r->teacher.nll);
        TRY(line(out, "teacher-line", x.pixel, at, x.pixel_end, at));
    }
    TRY(draw_series(out, "loss", &c->loss, &x, &y));
    TRY(draw_series(out, "held", &c->held_out, &x, &y));
    for (int64_t i = 0; i < c->held_out.n && c->held_out.n <= 40; i++)
        if (isfinite(c->held_out.y[i]))
            TRY(text_printf(out,
                            "<circle class=\"held-mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n",
                            axis_at(&x, c->held_out.x[i]), axis_at(&y, c->held_out.y[i])));
    return text_puts(out, "</svg>\n");
}

/* Speed bars. */

bool chart_has_speed(const struct report *r) {
    bool any = r->teacher.n_speed > 0;
    for (int64_t v = 0; v < r->n_variant; v++)
        any |= report_best(&r->variants[v])->n_speed > 0;
    return any;
}

static const struct report_point *speed_row(const struct report *r, int64_t row) {
    return row == 0 ? &r->teacher : report_best(&r->variants[row - 1]);
}

static const struct report_speed *speed_at(const struct report_point *p, int64_t context) {
    for (int64_t i = 0; i < p->n_speed; i++)
        if (p->speed[i].context == context)
            return &p->speed[i];
    return NULL;
}

static int64_t contexts_of(const struct report *r, int64_t out[REPORT_MAX_SPEED]) {
    int64_t n = 0;
    for (int64_t row = 0; row <= r->n_variant; row++) {
        const struct report_point *p = speed_row(r, row);
        for (int64_t i = 0; i < p->n_speed; i++) {
            bool known = false;
            for (int64_t k = 0; k < n; k++)
                known |= out[k] == p->speed[i].context;
            if (!known && n < REPORT_MAX_SPEED)
                out[n++] = p->speed[i].context;
        }
    }
    return n;
}

enum status chart_speed(struct text *out, const struct report *r, bool decode, double width,
                        const char *id) {
    enum { ROW = 24, HEAD = 28 };
    int64_t contexts[REPORT_MAX_SPEED], n_context = contexts_of(r, contexts), n_row = 0;
    double most = 0, names = 50;
    for (int64_t row = 0; row <= r->n_variant; row++) {
        const struct report_point *p = speed_row(r, row);
        n_row += p->n_speed;
        if (p->n_speed)
            names = fmin(fmax(names, text_width(p->id, 12) + 6), 120);
        for (int64_t i = 0; i < p->n_speed; i++)
            most = fmax(most, decode ? p->speed[i].decode.max : p->speed[i].prefill.max);
    }
    struct axis x = {.to = most > 0 ? most : 1, .pixel = names, .pixel_end = width - 62};
    double y = 0;
    TRY(open_svg(out, width, (double)(n_context * (HEAD + 8) + n_row * ROW), "speed", id,
                 decode ? "Decode speed" : "Prefill speed",
                 "Median tokens per second for each model and context length, as bars from zero; "
                 "the thin line spans the slowest and fastest repeat."));
    for (int64_t c = 0; c < n_context; c++) {
        char text[128];
        snprintf(text, sizeof text, "%s tokens of context", report_count((double)contexts[c]).s);
        TRY(label(out, "name", "start", 0, y + 16, text));
        y += HEAD;
        for (int64_t row = 0; row <= r->n_variant; row++) {
            const struct report_point *p = speed_row(r, row);
            const struct report_speed *s = speed_at(p, contexts[c]);
            if (!s)
                continue;
            const struct spread *v = decode ? &s->decode : &s->prefill;
            snprintf(text, sizeof text, "%.17s%s", p->id, strlen(p->id) > 17 ? "..." : "");
            TRY(label(out, "tick", "end", names - 6, y + 15, text));
            if (isfinite(v->median)) {
                TRY(text_printf(out,
                                "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                                "height=\"14\" rx=\"2\"/>\n",
                                row ? "bar" : "bar-teacher", names, y + 4,
                                axis_at(&x, v->median) - names));
                TRY(line(out, "whisker", axis_at(&x, v->min), y + 11, axis_at(&x, v->max), y + 11));
            }
            double end = isfinite(v->max) ? axis_at(&x, v->max) : names;
            TRY(label(out, "value", "start", end + 6, y + 15,
                      isnan(v->median) ? "NaN" : report_count(v->median).s));
            y += ROW;
        }
        y += 8;
    }
    return text_puts(out, "</svg>\n");
}
