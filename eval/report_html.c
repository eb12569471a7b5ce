/* report.html: what was saved and what it cost first, then the evidence, then how to repeat it. */
#include "eval/report_chart.h"
#include "eval/report_style.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static enum status element(struct text *out, const char *tag, const char *class, const char *s) {
    TRY(text_printf(out, class ? "<%s class=\"%s\">" : "<%s>", tag, class));
    TRY(report_escape(out, s));
    return text_printf(out, "</%s>\n", tag);
}

static bool compares(const struct report *r, const struct report_point *p) {
    return r->teacher.measured && p->measured;
}

/* The variant whose headline stands first: the cheapest in perplexity. NULL: none measured. */
static const struct report_variant *headline(const struct report *r) {
    const struct report_variant *best = NULL;
    for (int64_t i = 0; i < r->n_variant; i++) {
        const struct report_variant *v = &r->variants[i];
        const struct report_point *p = report_best(v);
        if (!compares(r, p) || !isfinite(p->perplexity))
            continue;
        if (!best || p->perplexity < report_best(best)->perplexity)
            best = v;
    }
    return best;
}

static enum status write_lead(struct text *out, const struct report *r) {
    const struct report_variant *v = headline(r);
    const struct report_point *t = &r->teacher;
    if (!v)
        return element(out, "p", "lead",
                       r->run ? "Not measured yet: the comparison with the source model appears "
                                "here once its evaluation and a variant's are in the run folder."
                              : "A training run by itself: its loss curves.");
    const struct report_point *p = report_best(v);
    char text[700];
    snprintf(text, sizeof text,
             "%.60s needs %s of KV cache per token instead of %s (%s smaller) and its perplexity "
             "is %s against the source's %s (%s)%s.",
             v->id, report_bytes(p->kv_bytes).s, report_bytes(t->kv_bytes).s,
             report_factor(t->kv_bytes / p->kv_bytes).s, report_number(p->perplexity).s,
             report_number(t->perplexity).s, report_percent(p->perplexity / t->perplexity).s,
             p->kind == REPORT_DISTILLED ? " after distillation" : ", not distilled");
    return element(out, "p", "lead", text);
}

static enum status write_figure(struct text *out, const char *big, const char *small) {
    TRY(text_puts(out, "<div>"));
    TRY(element(out, "span", "big", big));
    TRY(element(out, "span", "small", small));
    return text_puts(out, "</div>\n");
}

enum { MANY_CARDS = 4 }; /* beyond this only the frontier has cards */

static enum status write_card(struct text *out, const struct report *r,
                              const struct report_variant *v) {
    const struct report_point *p = report_best(v), *t = &r->teacher;
    char text[400];
    snprintf(text, sizeof text, "%.100s · %s", v->id, report_heads(p).s);
    TRY(text_puts(out, "<section class=\"card\">"));
    TRY(element(out, "h3", NULL, text));
    if (!p->measured) {
        TRY(element(out, "p", "muted", "Not measured yet."));
        return text_puts(out, "</section>\n");
    }
    TRY(text_puts(out, "<div class=\"pair\">\n"));
    snprintf(text, sizeof text, "%s per token", report_bytes(p->kv_bytes).s);
    TRY(write_figure(out,
                     compares(r, p) ? report_factor(t->kv_bytes / p->kv_bytes).s
                                    : report_bytes(p->kv_bytes).s,
                     compares(r, p) ? "smaller KV cache" : "KV cache per token"));
    if (!p->has_perplexity) {
        TRY(write_figure(out, "–", "perplexity not measured yet"));
    } else {
        bool distilled = p->kind == REPORT_DISTILLED;
        snprintf(text, sizeof text, "perplexity %s%s%s%s",
                 report_with_error(p->perplexity, p->perplexity_se).s,
                 distilled && v->converted.measured ? "; before distillation " : "",
                 distilled && v->converted.measured ? report_number(v->converted.perplexity).s : "",
                 distilled   ? ""
                 : v->trains ? "; distillation not measured yet"
                             : "; not distilled");
        TRY(write_figure(out,
                         compares(r, p) ? report_percent(p->perplexity / t->perplexity).s
                                        : report_number(p->perplexity).s,
                         text));
    }
    return text_puts(out, "</div></section>\n");
}

static enum status write_quality(struct text *out, const struct report *r) {
    int64_t before = out->n;
    TRY(text_puts(out, "<section><h2>Quality against memory</h2>\n<p class=\"muted\">Lower and "
                       "further left is better. The dashed line is the source model.</p>\n"));
    int64_t empty = out->n;
    TRY(chart_quality(out, r, 888, 420, "quality"));
    if (out->n == empty) {
        out->n = before;
        TRY(text_puts(out, "<section><h2>Quality against memory</h2>\n"
                           "<p class=\"muted\">Not measured yet.</p>\n"));
    } else {
        TRY(chart_quality(out, r, 360, 400, "quality-narrow"));
    }
    for (int64_t i = 0; i <= 2 * r->n_variant; i++) {
        const struct report_variant *v = i ? &r->variants[(i - 1) / 2] : NULL;
        const struct report_point *p = !v ? &r->teacher : i % 2 ? &v->converted : &v->distilled;
        if (!p->measured || !p->has_perplexity || isfinite(p->perplexity))
            continue;
        char text[320];
        snprintf(text, sizeof text, "Not drawn: %.60s (%s), whose perplexity is %s.", p->id,
                 p->kind == REPORT_DISTILLED   ? "distilled"
                 : p->kind == REPORT_CONVERTED ? "converted"
                                               : "source",
                 report_number(p->perplexity).s);
        TRY(element(out, "p", "small", text));
    }
    return text_puts(out, "</section>\n");
}

static enum status write_curves(struct text *out, const struct report *r) {
    double top = chart_curve_top(r);
    bool any = false, trains = !r->run;
    for (int64_t i = 0; i < r->n_variant; i++) {
        any |= r->variants[i].curve.present;
        trains |= r->variants[i].trains;
    }
    if (!any && !trains)
        return STATUS_OK;
    TRY(text_puts(out, "<section><h2>Loss while training</h2>\n"));
    if (!any)
        return text_puts(out, "<p class=\"muted\">Not measured yet.</p></section>\n");
    TRY(text_puts(out, "<p class=\"muted small\">Nats per token. "
                       "<span class=\"k\"><span class=\"key a\"></span>held-out text</span> "
                       "<span class=\"k\"><span class=\"key b\"></span>training objective</span>"));
    if (r->teacher.measured)
        TRY(text_puts(out, " <span class=\"k\"><span class=\"key t\"></span>source model</span>"));
    TRY(text_puts(out, "</p>\n<div class=\"grid\">\n"));
    for (int64_t i = 0; i < r->n_variant; i++) {
        const struct report_variant *v = &r->variants[i];
        const struct report_series *held = &v->curve.held_out;
        char id[32], text[320];
        if (!v->curve.present && !v->trains)
            continue;
        TRY(text_puts(out, "<div>"));
        TRY(element(out, "h3", NULL, v->id));
        if (held->n)
            snprintf(text, sizeof text, "held-out %s → %s in %.0f steps",
                     report_number(held->y[0]).s, report_number(held->y[held->n - 1]).s,
                     held->x[held->n - 1]);
        else
            snprintf(text, sizeof text, "%s",
                     v->curve.present ? "not evaluated on held-out text yet" : "Not measured yet.");
        TRY(element(out, "p", "muted small", text));
        snprintf(id, sizeof id, "curve-%" PRId64, i);
        if (v->curve.present)
            TRY(chart_curve(out, r, v, top, 420, 230, id));
        TRY(text_puts(out, "</div>\n"));
    }
    return text_puts(out, "</div></section>\n");
}

static enum status write_speed(struct text *out, const struct report *r) {
    TRY(text_puts(out, "<section><h2>Speed</h2>\n"));
    if (!chart_has_speed(r))
        return text_puts(out, "<p class=\"muted\">Not measured yet.</p></section>\n");
    TRY(text_puts(out, "<p class=\"muted\">Tokens per second through the KV cache: median of the "
                       "repeats as a bar, their range as a line.</p>\n<div class=\"grid\">"
                       "<div><h3>Prefill</h3>\n"));
    TRY(chart_speed(out, r, false, 420, "prefill"));
    TRY(text_puts(out, "</div><div><h3>Decode</h3>\n"));
    TRY(chart_speed(out, r, true, 420, "decode"));
    return text_puts(out, "</div></div></section>\n");
}

static enum status cell(struct text *out, bool known, const char *s) {
    return element(out, "td", NULL, known ? s : "–");
}

static enum status write_row(struct text *out, const char *state, const struct report_point *p,
                             bool best) {
    char text[200];
    TRY(text_puts(out, best ? "<tr class=\"best\">" : "<tr>"));
    TRY(cell(out, true, p->id));
    snprintf(text, sizeof text, "%s%s", state, p->pareto ? REPORT_PARETO_MARK : "");
    TRY(cell(out, true, text));
    if (!p->measured)
        return text_puts(out, "<td class=\"none\" colspan=\"7\">not measured yet</td></tr>\n");
    TRY(cell(out, true, report_heads(p).s));
    TRY(cell(out, true, report_count((double)p->parameters).s));
    snprintf(text, sizeof text, "%s", report_count(p->kv_bytes).s);
    if (p->kv_allocated != p->kv_bytes)
        snprintf(text, sizeof text, "%s (allocated %s)", report_count(p->kv_bytes).s,
                 report_number(p->kv_allocated).s);
    TRY(cell(out, true, text));
    TRY(cell(out, p->has_perplexity, report_with_error(p->perplexity, p->perplexity_se).s));
    TRY(cell(out, p->has_perplexity, report_with_error(p->nll, p->nll_se).s));
    TRY(cell(out, p->has_divergence, report_with_error(p->kl, p->kl_se).s));
    snprintf(text, sizeof text, "%.1f %%", 100 * p->agreement);
    TRY(cell(out, p->has_divergence, isnan(p->agreement) ? "NaN" : text));
    return text_puts(out, "</tr>\n");
}

static enum status write_table(struct text *out, const struct report *r) {
    const struct report_variant *best = headline(r);
    TRY(text_puts(out, "<section><h2>Every model</h2>\n<div class=\"scroll\"><table>\n<thead><tr>"
                       "<th scope=\"col\">model</th><th scope=\"col\">state</th>"
                       "<th scope=\"col\">KV heads</th><th scope=\"col\">parameters</th>"
                       "<th scope=\"col\">KV bytes<br/>per token</th><th scope=\"col\">perplexity"
                       "</th><th scope=\"col\">NLL</th><th scope=\"col\">KL from<br/>source</th>"
                       "<th scope=\"col\">top-1<br/>agreement</th></tr></thead>\n<tbody>\n"));
    TRY(write_row(out, "source", &r->teacher, false));
    for (int64_t i = 0; i < r->n_variant; i++) {
        const struct report_variant *v = &r->variants[i];
        bool bold = v == best;
        TRY(write_row(out, "converted", &v->converted, bold && !v->distilled.measured));
        if (v->trains || v->distilled.measured)
            TRY(write_row(out, "distilled", &v->distilled, bold && v->distilled.measured));
    }
    return text_puts(out, "</tbody></table></div>\n<p class=\"muted small\">± is one standard "
                          "error over windows. NLL and KL in nats per token. " REPORT_PARETO_NOTE
                          "</p></section>\n");
}

static enum status term(struct text *out, const char *name, const char *value) {
    TRY(element(out, "dt", NULL, name));
    return element(out, "dd", NULL, value);
}

/* Scalars of an object as a list of terms. */
static enum status write_terms(struct text *out, const struct json *o) {
    for (const struct json *j = json_first(o); j; j = json_next(j)) {
        char name[80], value[64];
        snprintf(name, sizeof name, "%s", json_key(j) ? json_key(j) : "");
        for (char *c = name; *c; c++)
            *c = *c == '_' ? ' ' : *c;
        if (json_is_string(j)) {
            TRY(term(out, name, json_string(j)));
        } else if (json_is_number(j)) {
            snprintf(value, sizeof value, "%.10g", json_number(j));
            bool bytes = strstr(name, "bytes");
            TRY(term(out, name, bytes ? report_bytes(json_number(j)).s : value));
        } else if (json_is_bool(j)) {
            TRY(term(out, name, json_true(j) ? "yes" : "no"));
        }
    }
    return STATUS_OK;
}

static enum status write_method(struct text *out, const struct report *r) {
    TRY(text_puts(out, "<section><h2>How it was measured</h2>\n"));
    if (!r->protocol && !r->environment)
        TRY(text_puts(out, "<p class=\"muted\">Not measured yet.</p>\n"));
    TRY(text_puts(out, "<dl>\n"));
    if (r->compute_dtype)
        TRY(term(out, "compute dtype", r->compute_dtype));
    if (r->protocol) {
        const char *name = json_string(json_get(r->protocol, "name"));
        const char *rule = json_string(json_get(r->protocol, "rule"));
        TRY(term(out, "protocol", name ? name : "?"));
        TRY(term(out, "counted", rule ? rule : "?"));
        TRY(term(out, "window (W)", report_count(json_number(json_get(r->protocol, "window"))).s));
        TRY(term(out, "stride (s)", report_count(json_number(json_get(r->protocol, "stride"))).s));
    }
    if (r->data) {
        const char *path = json_string(json_get(r->data, "path"));
        const char *hash = json_string(json_get(r->data, "hash_fnv1a64"));
        TRY(term(out, "data", path ? path : "?"));
        TRY(term(out, "hash of its tokens", hash ? hash : "?"));
        TRY(term(out, "tokens counted",
                 report_count(json_number(json_get(r->data, "tokens_counted"))).s));
        TRY(term(out, "windows", report_count(json_number(json_get(r->data, "windows"))).s));
    }
    TRY(text_puts(out, "</dl></section>\n"));
    if (!r->environment)
        return STATUS_OK;
    TRY(text_puts(out, "<section><h2>Environment</h2>\n<dl>\n"));
    TRY(write_terms(out, r->environment));
    return text_puts(out, "</dl></section>\n");
}

static enum status write_reproduce(struct text *out, const struct report *r) {
    struct text config = {0};
    enum status status;
    if (!r->config)
        return STATUS_OK;
    TRY(text_puts(out, "<section><h2>Configuration</h2>\n<p>To repeat this run, save the text "
                       "below as <code>config.json</code> and give it to the same version:</p>\n"
                       "<pre>regroup run config.json</pre>\n<pre>"));
    TRY_OUT(json_print(r->config, true, &config));
    TRY_OUT(report_escape(out, config.data));
    status = text_puts(out, "</pre></section>\n");
out:
    text_free(&config);
    return status;
}

enum status report_html(const struct report *r, struct text *out) {
    TRY(text_puts(out, "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">"
                       "\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" "
                       "content=\"width=device-width, initial-scale=1\"/>\n<title>"));
    TRY(report_escape(out, r->title));
    TRY(text_puts(out, "</title>\n<style>\n" REPORT_STYLE "</style>\n</head>\n<body><main>\n"));
    TRY(text_puts(out, "<header>\n"));
    TRY(element(out, "h1", NULL, r->title));
    char text[700];
    snprintf(text, sizeof text, "%s%.300s%s%.40s", r->source ? "Source model " : "",
             r->source ? r->source : "", r->source && r->created ? " · " : "",
             r->created ? r->created : "");
    if (*text)
        TRY(element(out, "p", "muted", text));
    TRY(write_lead(out, r));
    TRY(text_puts(out, "</header>\n"));
    if (r->run && r->n_variant) {
        TRY(text_puts(out, "<div class=\"cards\">\n"));
        for (int64_t i = 0; i < r->n_variant; i++)
            if (r->n_variant <= MANY_CARDS || report_best(&r->variants[i])->pareto)
                TRY(write_card(out, r, &r->variants[i]));
        TRY(text_puts(out, "</div>\n"));
    }
    if (r->run)
        TRY(write_quality(out, r));
    TRY(write_curves(out, r));
    if (r->run) {
        TRY(write_speed(out, r));
        TRY(write_table(out, r));
        TRY(write_method(out, r));
    }
    TRY(write_reproduce(out, r));
    TRY(text_puts(out, "<footer class=\"muted small\">Written by regroup "));
    TRY(report_escape(out, r->version ? r->version : REGROUP_VERSION));
    return text_puts(out, ". The same numbers are in report.md and report.json.</footer>\n"
                          "</main></body>\n</html>\n");
}
