/* Growable byte buffer. */
#include "core/text.h"

#include "core/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static enum status reserve(struct text *t, int64_t more) {
    int64_t need;
    if (!size_add(t->n, more, &need) || !size_add(need, 1, &need))
        return status_nomem("text", 9e18);
    return memory_grow(&t->data, &t->capacity, need, 1, "text");
}

enum status text_add(struct text *t, const void *bytes, int64_t n) {
    TRY(reserve(t, n));
    if (n)
        memcpy(t->data + t->n, bytes, (size_t)n);
    t->n += n;
    t->data[t->n] = 0;
    return STATUS_OK;
}

enum status text_puts(struct text *t, const char *s) {
    return text_add(t, s, (int64_t)strlen(s));
}

enum status text_printf(struct text *t, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    TRY(reserve(t, n));
    va_start(args, fmt);
    vsnprintf(t->data + t->n, (size_t)n + 1, fmt, args);
    va_end(args);
    t->n += n;
    return STATUS_OK;
}

void text_free(struct text *t) {
    memory_free(t->data);
    *t = (struct text){0};
}
