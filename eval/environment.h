/* Where a number was measured: program, machine, backend, time. */
#ifndef REGROUP_EVAL_ENVIRONMENT_H
#define REGROUP_EVAL_ENVIRONMENT_H

#include "core/json.h"
#include "kernels/backend.h"

/* {"version", "backend", "backend_detail", "threads", "cpu", "cpus", "memory_bytes", "system",
 * "compiler"}; `be` may be NULL. What the machine does not tell is left out. Caller frees. */
struct json *environment_json(const struct backend *be);
/* "2026-01-31T12:00:00Z" into out[32]; SOURCE_DATE_EPOCH is honoured. */
void environment_time(char out[32]);

#endif
