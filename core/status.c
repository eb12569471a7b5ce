/* Per-thread message of the latest failure. */
#include "core/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[2048];

enum status status_fail(enum status code, const char *fmt, ...) {
    /* Formatted aside first: an argument may be the old message itself. */
    char fresh[sizeof message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(fresh, sizeof fresh, fmt, args);
    va_end(args);
    memcpy(message, fresh, sizeof message);
    for (char *c = message; *c; c++) /* one plain line, whatever a name or key contains */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = ' ';
    return code;
}

enum status status_errno(const char *fmt, ...) {
    int saved = errno;
    char detail[1600];
    va_list args;
    va_start(args, fmt);
    vsnprintf(detail, sizeof detail, fmt, args);
    va_end(args);
    return status_fail(STATUS_FAILED, "%s: %s", detail, strerror(saved));
}

enum status status_nomem(const char *what, double bytes) {
    return status_fail(STATUS_FAILED,
                       "out of memory: %s needs %.1f MiB; free memory or use a "
                       "smaller batch, context or model",
                       what, bytes / 1048576.0);
}

const char *status_message(void) {
    return message;
}
