/* The regular expressions of tokenizer.json (Oniguruma's syntax there) on PCRE2. */
#ifndef REGROUP_DATA_REGEX_H
#define REGROUP_DATA_REGEX_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct regex;
/* `literal`: the pattern is plain text. What cannot be carried over is refused, naming `what`. */
enum status regex_compile(const char *pattern, bool literal, const char *what,
                          struct regex **out) MUST_USE;
void regex_free(struct regex *r);
/* The first match that begins at or after `from` in checked UTF-8; *start = -1: none. Never
 * empty. One thread at a time. */
enum status regex_next(struct regex *r, const char *text, int64_t n, int64_t from, int64_t *start,
                       int64_t *end) MUST_USE;

#endif
