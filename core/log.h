/* Everything that is not a result goes to stderr through here. */
#ifndef REGROUP_CORE_LOG_H
#define REGROUP_CORE_LOG_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

void log_set_quiet(bool quiet);                        /* drops log_info and progress */
void log_info(const char *fmt, ...) PRINTF_LIKE(1, 2); /* one line */
void log_warn(const char *fmt, ...) PRINTF_LIKE(1, 2); /* "warning: ..." */

double clock_seconds(void); /* monotonic */

/* Progress with rate and time left: rewritten in place on a terminal (10 a second at most), a
 * plain line every few seconds when QUICK watchers pipe it (environment REGROUP_PROGRESS=lines),
 * otherwise silent. */
struct progress {
    const char *what, *unit; /* borrowed: "convert", "MiB" */
    double total, started, shown;
    bool drawn;
};
void progress_start(struct progress *p, const char *what, double total, const char *unit);
/* `detail` may be NULL: a short text after the bar, e.g. "loss 1.53". */
void progress_update(struct progress *p, double done, const char *detail);
void progress_end(struct progress *p);

#endif
