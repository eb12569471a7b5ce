/* Sizes as people read and write them. */
#ifndef REGROUP_CLI_UNITS_H
#define REGROUP_CLI_UNITS_H

#include "core/status.h"

#include <stdint.h>

struct unit_text {
    char s[40];
};
struct unit_text unit_bytes(int64_t n); /* "512 B", "1.5 KiB", "4.00 GiB" */
struct unit_text unit_count(int64_t n); /* "260,032" */
/* "5GB", "500 MB", "1GiB", "4096": KB, MB, GB, TB are powers of 1000, KiB ... of 1024. `option` is
 * named in the message. */
enum status unit_parse_bytes(const char *text, const char *option, int64_t *out) MUST_USE;
/* "25%" is 0.25: above 0%, at most 100%. */
enum status unit_parse_percent(const char *text, const char *option, double *out) MUST_USE;

#endif
