/* The report's charts as inline SVG. Colours come from the page's style sheet (class names), so
 * light, dark and paper share one picture. */
#ifndef REGROUP_EVAL_REPORT_CHART_H
#define REGROUP_EVAL_REPORT_CHART_H

#include "eval/report_data.h"

/* Perplexity against KV-cache bytes per token, every model. `id` makes title ids unique: charts are
 * drawn once for wide screens and once for phones. */
enum status chart_quality(struct text *out, const struct report *r, double width, double height,
                          const char *id) MUST_USE;
/* Training loss and held-out NLL of one variant; `top` is the shared upper end of the axis. */
enum status chart_curve(struct text *out, const struct report *r, const struct report_variant *v,
                        double top, double width, double height, const char *id) MUST_USE;
double chart_curve_top(const struct report *r);
/* Bars of tokens/s per model at every context measured. */
enum status chart_speed(struct text *out, const struct report *r, bool decode, double width,
                        const char *id) MUST_USE;
bool chart_has_speed(const struct report *r);

#endif
