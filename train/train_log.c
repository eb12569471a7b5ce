/* See train_log.h. Lines are formatted in memory kept from step to step. */
#include "train/train_log.h"

#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Keep the whole lines of steps up to `step`. */
static enum status trim(const char *path, int64_t step) {
    struct text old = {0}, kept = {0};
    enum status status;
    if (!path_exists(path))
        return STATUS_OK;
    TRY_OUT(file_read(path, 0, &old));
    for (int64_t first = 0; first < old.n;) {
        const char *line = old.data + first;
        const char *end = memchr(line, '\n', (size_t)(old.n - first));
        if (!end)
            break;
        int64_t n = end - line + 1;
        long long at;
        if (sscanf(line, "{\"step\":%lld,", &at) == 1 && at <= step)
            TRY_OUT(text_add(&kept, line, n));
        first += n;
    }
    TRY_OUT(file_write(path, kept.data ? kept.data : "", kept.n));
out:
    text_free(&old);
    text_free(&kept);
    return status;
}

enum status train_log_open(const char *out_dir, int64_t step, struct train_log *out) {
    out->fd = -1;
    int n = snprintf(out->path, sizeof out->path, "%s/log.jsonl", out_dir);
    if (n >= (int)sizeof out->path)
        return status_fail(STATUS_FAILED, "%s: the path is too long", out_dir);
    TRY(trim(out->path, step));
    out->fd = open(out->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return out->fd < 0 ? status_errno("cannot open %s", out->path) : STATUS_OK;
}

static enum status put(struct train_log *log, const char *line, int64_t n) {
    for (int64_t done = 0; done < n;) {
        ssize_t wrote = write(log->fd, line + done, (size_t)(n - done));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return status_errno("cannot write %s", log->path);
        done += wrote;
    }
    return STATUS_OK;
}

static const char *divergence(const struct loss_parts *p, bool has_teacher, char *out, size_t n) {
    *out = 0;
    if (has_teacher)
        snprintf(out, n, ",\"kl\":%.9g,\"agree\":%.9g", p->kl, p->agree);
    return out;
}

enum status train_log_step(struct train_log *log, const struct train_step *s, bool has_teacher,
                           int64_t tokens, double seconds) {
    struct text *line = &log->line;
    char kl[80];
    line->n = 0;
    TRY(text_printf(line, "{\"step\":%lld,\"loss\":%.9g", (long long)s->step, s->loss));
    for (int64_t l = 0; l < s->n_layer; l++)
        TRY(text_printf(line, "%s%.9g", l ? "," : ",\"layer_loss\":[", s->layer_loss[l]));
    if (s->layer_loss)
        TRY(text_puts(line, "]"));
    else
        TRY(text_printf(line, ",\"ce\":%.9g%s", s->parts.ce,
                        divergence(&s->parts, has_teacher, kl, sizeof kl)));
    TRY(text_printf(line,
                    ",\"grad_norm\":%.9g,\"lr\":%.9g,\"tokens\":%lld,\"tokens_per_s\":%.1f,"
                    "\"seconds\":%.4f}\n",
                    s->grad_norm, s->lr, (long long)(s->step * tokens),
                    (double)tokens / fmax(seconds, 1e-9), seconds));
    return put(log, line->data, line->n);
}

enum status train_log_eval(struct train_log *log, int64_t step, const struct loss_parts *e,
                           bool has_teacher) {
    char line[512], kl[80], ppl[40] = "null"; /* infinity is no JSON number */
    if (isfinite(exp(e->ce)))
        snprintf(ppl, sizeof ppl, "%.9g", exp(e->ce));
    int n = snprintf(line, sizeof line,
                     "{\"step\":%lld,\"eval\":{\"nll\":%.9g,\"ppl\":%s%s,\"tokens\":%lld}}\n",
                     (long long)step, e->ce, ppl, divergence(e, has_teacher, kl, sizeof kl),
                     (long long)e->n_token);
    return put(log, line, n);
}

enum status train_log_sync(struct train_log *log) {
    return fsync(log->fd) == 0 ? STATUS_OK : status_errno("cannot flush %s to disk", log->path);
}

void train_log_close(struct train_log *log) {
    if (log->fd >= 0)
        close(log->fd);
    text_free(&log->line);
    log->fd = -1;
}
