/* A growable byte buffer for building text; always NUL-terminated once anything was added. */
#ifndef REGROUP_CORE_TEXT_H
#define REGROUP_CORE_TEXT_H

#include "core/status.h"

#include <stdint.h>

struct text {
    char *data; /* owned; NULL while empty. Zero-initialise, text_free when done. */
    int64_t n, capacity;
};
enum status text_add(struct text *t, const void *bytes, int64_t n) MUST_USE;
enum status text_puts(struct text *t, const char *s) MUST_USE;
enum status text_printf(struct text *t, const char *fmt, ...) MUST_USE PRINTF_LIKE(2, 3);
void text_free(struct text *t);

#endif
