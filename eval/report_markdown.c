/* The report as Markdown and as JSON. */
#include "eval/report_data.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static enum status md(struct text *out, const char *s) {
    for (; *s; s++) {
        if (strchr("\\|`*_<>[]#&", *s))
            TRY(text_puts(out, "\\"));
        TRY(text_printf(out, "%c", *s == '\n' || *s == '\r' ? ' ' : *s));
    }
    return STATUS_OK;
}

static enum status row(struct text *out, const char *state, const struct report_point *p) {
    TRY(text_puts(out, "| "));
    TRY(md(out, p->id));
    if (!p->measured)
        return text_printf(out, " | %s | not measured yet | | | | | |\n", state);
    char agreement[32];
    snprintf(agreement, sizeof agreement, "%.1f %%", 100 * p->agreement);
    return text_printf(
        out, " | %s%s | %s | %s | %s | %s | %s | %s |\n", state,
        p->pareto ? REPORT_PARETO_MARK : "", report_heads(p).s, report_count(p->kv_bytes).s,
        p->has_perplexity ? report_with_error(p->perplexity, p->perplexity_se).s : "–",
        p->has_perplexity ? report_with_error(p->nll, p->nll_se).s : "–",
        p->has_divergence ? report_with_error(p->kl, p->kl_se).s : "–",
        !p->has_divergence    ? "–"
        : isnan(p->agreement) ? "NaN"
                              : agreement);
}

static enum status speed_rows(struct text *out, const struct report_point *p) {
    for (int64_t i = 0; i < p->n_speed; i++) {
        const struct report_speed *s = &p->speed[i];
        TRY(text_puts(out, "| "));
        TRY(md(out, p->id));
        TRY(text_printf(out, " | %s | %s | %s |\n", report_count((double)s->context).s,
                        report_count(s->prefill.median).s, report_count(s->decode.median).s));
    }
    return STATUS_OK;
}

/* A curve in a line of text: eight heights of block. */
static enum status sparkline(struct text *out, const struct report_series *s) {
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    enum { WIDTH = 32 };
    double least = INFINITY, most = -INFINITY;
    for (int64_t i = 0; i < s->n; i++)
        if (isfinite(s->y[i])) {
            least = fmin(least, s->y[i]);
            most = fmax(most, s->y[i]);
        }
    int64_t n = size_min(s->n, WIDTH);
    for (int64_t i = 0; i < n; i++) {
        double v = s->y[n > 1 ? i * (s->n - 1) / (n - 1) : 0];
        int level = !isfinite(v)   ? -1
                    : most > least ? (int)(7.999 * (v - least) / (most - least))
                                   : 0;
        TRY(text_puts(out, level < 0 ? "?" : blocks[level]));
    }
    return STATUS_OK;
}

static enum status curves(struct text *out, const struct report *r) {
    bool any = false;
    for (int64_t i = 0; i < r->n_variant; i++) {
        const struct report_variant *v = &r->variants[i];
        const struct report_series *held = &v->curve.held_out, *loss = &v->curve.loss;
        if (!v->curve.present && !v->trains)
            continue;
        if (!any)
            TRY(text_puts(out, "\n## Loss while training (nats per token)\n\n"));
        any = true;
        TRY(text_puts(out, "- **"));
        TRY(md(out, v->id));
        TRY(text_puts(out, "** "));
        if (!v->curve.present)
            TRY(text_puts(out, "not measured yet"));
        if (held->n) {
            TRY(text_printf(out, "held-out %s → %s in %.0f steps ", report_number(held->y[0]).s,
                            report_number(held->y[held->n - 1]).s, held->x[held->n - 1]));
            TRY(sparkline(out, held));
        }
        if (loss->n) {
            TRY(text_printf(out, "%straining %s → %s ", held->n ? "; " : "",
                            report_number(loss->y[0]).s, report_number(loss->y[loss->n - 1]).s));
            TRY(sparkline(out, loss));
        }
        TRY(text_puts(out, "\n"));
    }
    return STATUS_OK;
}

static enum status fenced(struct text *out, const char *title, const struct json *j) {
    if (!j)
        return STATUS_OK;
    TRY(text_printf(out, "\n## %s\n\n```json\n", title));
    TRY(json_print(j, true, out));
    return text_puts(out, "\n```\n");
}

enum status report_markdown(const struct report *r, struct text *out) {
    TRY(text_puts(out, "# "));
    TRY(md(out, r->title));
    TRY(text_puts(out, "\n"));
    if (r->source) {
        TRY(text_puts(out, "\nSource model: "));
        TRY(md(out, r->source));
        TRY(text_puts(out, "\n"));
    }
    if (r->run) {
        TRY(text_puts(out, "\n| model | state | KV heads | KV bytes/token | perplexity | NLL | KL "
                           "from source | top-1 agreement |\n"
                           "|---|---|---|---:|---:|---:|---:|---:|\n"));
        TRY(row(out, "source", &r->teacher));
        for (int64_t i = 0; i < r->n_variant; i++) {
            const struct report_variant *v = &r->variants[i];
            TRY(row(out, "converted", &v->converted));
            if (v->trains || v->distilled.measured)
                TRY(row(out, "distilled", &v->distilled));
        }
        TRY(text_puts(out, "\n± is one standard error over windows; NLL and KL in nats per "
                           "token.\n" REPORT_PARETO_NOTE
                           "\n\n## Speed (tokens per second, median)\n\n"));
        int64_t before = out->n;
        TRY(text_puts(out, "| model | context | prefill | decode |\n|---|---:|---:|---:|\n"));
        int64_t empty = out->n;
        TRY(speed_rows(out, &r->teacher));
        for (int64_t i = 0; i < r->n_variant; i++)
            TRY(speed_rows(out, report_best(&r->variants[i])));
        if (out->n == empty) {
            out->n = before;
            TRY(text_puts(out, "Not measured yet.\n"));
        }
    }
    TRY(curves(out, r));
    TRY(fenced(out, "Protocol", r->protocol));
    TRY(fenced(out, "Data", r->data));
    TRY(fenced(out, "Environment", r->environment));
    TRY(fenced(out, "Configuration", r->config));
    if (r->config)
        TRY(text_puts(out, "\nSave the configuration as `config.json` and run `regroup run "
                           "config.json` to repeat this.\n"));
    return STATUS_OK;
}

static void set_series(struct json *o, const char *key, const struct report_series *s) {
    struct json *a = json_set_array(o, key);
    for (int64_t i = 0; i < s->n; i++) {
        struct json *pair = json_push_array(a);
        json_push_number(pair, s->x[i]);
        json_push_number(pair, s->y[i]);
    }
}

static void set_point(struct json *o, const char *key, const struct report *r,
                      const struct report_point *p) {
    if (!p->measured) {
        json_set_string(o, key, NULL);
        return;
    }
    json_set_copy(o, key, p->model);
    if (p == &r->teacher || !r->teacher.measured)
        return;
    struct json *against = json_set_object(o, p->kind == REPORT_DISTILLED ? "distilled_vs_source"
                                                                          : "converted_vs_source");
    json_set_number(against, "kv_bytes_ratio", p->kv_bytes / r->teacher.kv_bytes);
    json_set_bool(against, "pareto", p->pareto);
    json_set_number(against, "perplexity_ratio", p->perplexity / r->teacher.perplexity);
}

struct json *report_json(const struct report *r) {
    struct json *j = json_object();
    json_set_string(j, "kind", "regroup report");
    json_set_string(j, "title", r->title);
    json_set_string(j, "source", r->source);
    json_set_string(j, "created", r->created);
    json_set_string(j, "version", r->version ? r->version : REGROUP_VERSION);
    if (r->run)
        set_point(j, "teacher", r, &r->teacher);
    struct json *variants = json_set_array(j, "variants");
    for (int64_t i = 0; i < r->n_variant; i++) {
        const struct report_variant *v = &r->variants[i];
        struct json *o = json_push_object(variants);
        json_set_string(o, "id", v->id);
        json_set_string(o, "method", v->method);
        if (v->kv_budget)
            json_set_string(o, "kv_budget", v->kv_budget);
        else if (v->kv_heads)
            json_set_int(o, "kv_heads", v->kv_heads);
        if (r->run) {
            set_point(o, "converted", r, &v->converted);
            set_point(o, "distilled", r, &v->distilled);
        }
        if (v->curve.present) {
            struct json *c = json_set_object(o, "curve");
            json_set_string(c, "unit", "[step, nats per token]");
            set_series(c, "held_out_nll", &v->curve.held_out);
            set_series(c, "training_loss", &v->curve.loss);
        }
    }
    static const char *const keys[] = {"protocol", "data", "environment", "config"};
    const struct json *values[] = {r->protocol, r->data, r->environment, r->config};
    for (int i = 0; i < 4; i++)
        if (values[i])
            json_set_copy(j, keys[i], values[i]);
    return j;
}
