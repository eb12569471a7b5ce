/* Linear and logarithmic axes. */
#include "eval/chart_axis.h"

#include <math.h>

double axis_at(const struct axis *a, double value) {
    double t = a->log ? log(value / a->from) / log(a->to / a->from)
                      : (value - a->from) / (a->to - a->from);
    return a->pixel + t * (a->pixel_end - a->pixel);
}

static int linear_ticks(const struct axis *a, int wanted, double *out) {
    double rough = (a->to - a->from) / wanted, ten = pow(10, floor(log10(rough)));
    if (!(ten > 0) || !isfinite(ten))
        return 0;
    double step = rough <= ten       ? ten
                  : rough <= 2 * ten ? 2 * ten
                  : rough <= 5 * ten ? 5 * ten
                                     : 10 * ten;
    int n = 0;
    for (double i = ceil(a->from / step - 1e-9); i * step <= a->to * (1 + 1e-9); i++)
        if (n < AXIS_MAX_TICK)
            out[n++] = i * step + 0.0; /* no -0 */
    return n;
}

/* 1, 2, 5 a decade, or fewer over many decades; linear ones when the axis is too short for that. */
static int log_ticks(const struct axis *a, int wanted, double *out) {
    static const double steps[3][4] = {{1, 2, 5, 0}, {1, 3, 0}, {1, 0}};
    for (int pick = 0; pick < 3; pick++) {
        int n = 0, kept = 0;
        for (double ten = floor(log10(a->from)); ten <= ceil(log10(a->to)); ten++)
            for (int s = 0; steps[pick][s] > 0; s++) {
                double v = steps[pick][s] * pow(10, ten);
                if (v < a->from * (1 - 1e-9) || v > a->to * (1 + 1e-9))
                    continue;
                n++;
                if (kept < AXIS_MAX_TICK)
                    out[kept++] = v;
            }
        if (pick == 0 && n < 3)
            return linear_ticks(a, wanted, out);
        if (n <= wanted + 2 || pick == 2)
            return kept;
    }
    return 0;
}

int axis_ticks(const struct axis *a, int wanted, double out[AXIS_MAX_TICK]) {
    return a->log ? log_ticks(a, wanted, out) : linear_ticks(a, wanted, out);
}
