/* A run folder -> report.html (self-contained, inline SVG), report.md and report.json beside it. */
#ifndef REGROUP_EVAL_REPORT_H
#define REGROUP_EVAL_REPORT_H

#include "core/status.h"

/* `dir`: a folder written by `regroup run` (run.json), or one of `regroup train` (log.jsonl). What
 * is not measured yet is said in the report; what is there and cannot be read is an error. `title`
 * NULL: from the run's name. */
enum status report_write(const char *dir, const char *title) MUST_USE;

#endif
