/* stderr: lines and progress. */
#include "core/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool quiet;
static bool line_open; /* a progress line without its newline is on the terminal */

void log_set_quiet(bool q) {
    quiet = q;
}

static void line(const char *prefix, const char *fmt, va_list args) {
    if (line_open)
        fputs("\r\x1b[K", stderr);
    line_open = false;
    fputs(prefix, stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
}

void log_info(const char *fmt, ...) {
    if (quiet)
        return;
    va_list args;
    va_start(args, fmt);
    line("", fmt, args);
    va_end(args);
}

void log_warn(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    line("warning: ", fmt, args);
    va_end(args);
}

double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool on_terminal(void) {
    return isatty(STDERR_FILENO);
}

static bool as_lines(void) {
    const char *mode = getenv("REGROUP_PROGRESS");
    return mode && !strcmp(mode, "lines");
}

void progress_start(struct progress *p, const char *what, double total, const char *unit) {
    double now = clock_seconds();
    *p = (struct progress){.what = what, .unit = unit, .total = total, .started = now};
    p->shown = as_lines() && !on_terminal() ? now : 0;
}

static void duration(double s, char *out, size_t n) {
    if (!(s >= 0) || s > 359999)
        snprintf(out, n, "?");
    else if (s < 60)
        snprintf(out, n, "%.0f s", ceil(s));
    else if (s < 3600)
        snprintf(out, n, "%d:%02d min", (int)s / 60, (int)s % 60);
    else
        snprintf(out, n, "%d:%02d h", (int)s / 3600, (int)s / 60 % 60);
}

static void draw(struct progress *p, double done, const char *detail, bool terminal) {
    double now = clock_seconds(), elapsed = now - p->started;
    double rate = elapsed > 0 ? done / elapsed : 0;
    char left[32];
    duration(rate > 0 ? (p->total - done) / rate : NAN, left, sizeof left);
    fprintf(stderr, "%s%s %3.0f%%  %.0f/%.0f %s  %.*f %s/s  %s left%s%s%s", terminal ? "\r" : "",
            p->what, p->total > 0 ? 100 * done / p->total : 0, done, p->total, p->unit,
            rate < 10 ? 1 : 0, rate, p->unit, left, detail ? "  " : "", detail ? detail : "",
            terminal ? "\x1b[K" : "\n");
    fflush(stderr);
    line_open = terminal;
    p->shown = now;
    p->drawn = true;
}

void progress_update(struct progress *p, double done, const char *detail) {
    bool terminal = on_terminal();
    if (quiet || (!terminal && !as_lines()))
        return;
    if (clock_seconds() - p->shown >= (terminal ? 0.1 : 3.0))
        draw(p, done, detail, terminal);
}

void progress_end(struct progress *p) {
    if (p->drawn && line_open) {
        fputs("\r\x1b[K", stderr);
        line_open = false;
    }
    p->drawn = false;
}
