/* A scale from values to pixels and round numbers to label it with. */
#ifndef REGROUP_EVAL_CHART_AXIS_H
#define REGROUP_EVAL_CHART_AXIS_H

#include <stdbool.h>

enum { AXIS_MAX_TICK = 16 };
struct axis {
    bool log;
    double from, to;         /* values */
    double pixel, pixel_end; /* where they stand */
};
double axis_at(const struct axis *a, double value);
/* Round values inside the axis, at most about `wanted`; returns how many. */
int axis_ticks(const struct axis *a, int wanted, double out[AXIS_MAX_TICK]);

#endif
