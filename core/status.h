/* How a fallible function answers. The code travels up through TRY; the one-line message is
 * built once, where the failure happened, and kept per thread. Only cli/main.c exits. */
#ifndef REGROUP_CORE_STATUS_H
#define REGROUP_CORE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum status {
    STATUS_OK = 0,
    STATUS_FAILED = 1,      /* bad input, I/O, out of memory: message says what to do; exit 1 */
    STATUS_USAGE = 2,       /* the command line or a configuration key is wrong; exit 2 */
    STATUS_INTERRUPTED = 3, /* SIGINT/SIGTERM honoured at a safe point; exit 1 */
};

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

/* Record the message (file, tensor or key; expected; found; what to do) and return `code`. */
enum status status_fail(enum status code, const char *fmt, ...) MUST_USE PRINTF_LIKE(2, 3);
/* As status_fail(STATUS_FAILED, ...), with ": " and strerror(errno) appended. */
enum status status_errno(const char *fmt, ...) MUST_USE PRINTF_LIKE(1, 2);
/* As status_fail(STATUS_FAILED, "out of memory ..."): what was asked for and how many bytes. */
enum status status_nomem(const char *what, double bytes) MUST_USE;
/* The message of the latest failure in this thread; "" if none. Borrowed. */
const char *status_message(void);

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        enum status try_status_ = (expr);                                                          \
        if (try_status_ != STATUS_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)

/* The same with `goto out`, for functions that hold more than one resource; needs `status`. */
#define TRY_OUT(expr)                                                                              \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status != STATUS_OK)                                                                   \
            goto out;                                                                              \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
