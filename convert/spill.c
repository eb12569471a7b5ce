/* See spill.h. The file is mapped: the kernel moves pages, and the values are the same bit for
 * bit. */
#include "convert/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static enum status open_unlinked(const char *dir, int *out) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/.regroup-XXXXXX", dir) >= (int)sizeof path)
        return status_fail(STATUS_FAILED, "%s: the path is too long for a temporary file", dir);
    *out = mkostemp(path, O_CLOEXEC);
    if (*out < 0)
        return status_fail(STATUS_FAILED, "%s: a temporary file for residual streams: %s", dir,
                           strerror(errno));
    unlink(path);
    return STATUS_OK;
}

enum status spill_open(struct spill *s, int64_t n, const char *dir) {
    *s = (struct spill){.n = n, .in_file = dir != NULL};
    if (!dir)
        return memory_alloc(n, (int64_t)sizeof *s->data, "residual streams", &s->data);
    int64_t bytes;
    int file;
    if (!size_mul(n, (int64_t)sizeof *s->data, &bytes))
        return status_fail(STATUS_FAILED, "residual streams: too many calibration tokens");
    TRY(open_unlinked(dir, &file));
    int error = posix_fallocate(file, 0, (off_t)bytes);
    void *data =
        error ? MAP_FAILED : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    error = error ? error : data == MAP_FAILED ? errno : 0;
    close(file);
    if (error)
        return status_fail(STATUS_FAILED,
                           "%s: %lld MiB for residual streams: %s; free some space, or use fewer "
                           "--calib-tokens",
                           dir, (long long)(bytes >> 20), strerror(error));
    s->data = data;
    return STATUS_OK;
}

void spill_close(struct spill *s) {
    if (s->in_file && s->data)
        munmap(s->data, (size_t)s->n * sizeof *s->data);
    else
        memory_free(s->data);
    *s = (struct spill){0};
}

void spill_rest(const struct spill *s, int64_t first, int64_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!s->in_file)
        return;
    size_t start = (size_t)first * sizeof *s->data / page * page;
    size_t end = (size_t)(first + n) * sizeof *s->data / page * page;
    if (end > start)
        madvise((char *)s->data + start, end - start, MADV_DONTNEED);
}
