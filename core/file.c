/* Paths, whole-file I/O, atomic file writes. Folder staging is in staging.c. */
#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum status path_join(struct arena *a, const char *dir, const char *name, char **out) {
    size_t n = strlen(dir);
    return arena_printf(a, out, !n || dir[n - 1] == '/' ? "%s%s" : "%s/%s", dir, name);
}

const char *path_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool path_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

bool path_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum status path_mkdirs(const char *path) {
    struct arena arena = {0};
    char *p;
    enum status status = arena_strdup(&arena, path, &p);
    for (char *c = p; status == STATUS_OK && *c; c++) {
        if (c == p || (c[0] != '/' && c[1]))
            continue;
        char saved = c[0] == '/' ? '/' : 0;
        if (saved)
            *c = 0;
        if (mkdir(p, 0777) != 0 && errno != EEXIST)
            status = status_errno("cannot create folder %s", p);
        else if (!path_is_dir(p))
            status = status_fail(STATUS_FAILED, "cannot create folder %s: a file has that name", p);
        if (saved)
            *c = saved;
    }
    /* A one-character path never enters the loop's body. */
    if (status == STATUS_OK && !path_is_dir(path) && mkdir(path, 0777) != 0)
        status = status_errno("cannot create folder %s", path);
    arena_free(&arena);
    return status;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum status dir_list(struct arena *a, const char *dir, char ***names, int64_t *n) {
    enum status status = STATUS_OK;
    char **found = NULL;
    int64_t count = 0, capacity = 0;
    DIR *d = opendir(dir);
    if (!d)
        return status_errno("cannot read folder %s", dir);
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(d);
        if (!entry && errno)
            status = status_errno("cannot read folder %s", dir);
        if (!entry)
            break;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        TRY_OUT(memory_grow(&found, &capacity, count + 1, (int64_t)sizeof *found, "folder list"));
        TRY_OUT(arena_strdup(a, entry->d_name, &found[count]));
        count++;
    }
    if (status != STATUS_OK)
        goto out;
    TRY_OUT(arena_alloc(a, count, (int64_t)sizeof **names, names));
    if (count) {
        memcpy(*names, found, (size_t)count * sizeof *found);
        qsort(*names, (size_t)count, sizeof **names, by_name);
    }
    *n = count;
out:
    memory_free(found);
    closedir(d);
    return status;
}

enum status file_size(const char *path, int64_t *out) {
    struct stat st;
    if (stat(path, &st) != 0)
        return status_errno("cannot read %s", path);
    *out = st.st_size;
    return STATUS_OK;
}

enum status file_read(const char *path, int64_t max_bytes, struct text *out) {
    enum status status = STATUS_OK;
    char *buffer = NULL;
    enum { CHUNK = 1 << 18 };
    int64_t start = out->n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return status_errno("cannot open %s", path);
    TRY_OUT(memory_alloc(CHUNK, 1, path, &buffer));
    for (;;) {
        ssize_t got = read(fd, buffer, CHUNK);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = status_errno("cannot read %s", path);
            goto out;
        }
        if (got == 0)
            break;
        if (max_bytes > 0 && out->n - start + got > max_bytes) {
            status = status_fail(STATUS_FAILED, "%s: larger than the %lld bytes expected at most",
                                 path, (long long)max_bytes);
            goto out;
        }
        TRY_OUT(text_add(out, buffer, got));
    }
out:
    memory_free(buffer);
    close(fd);
    return status;
}

enum status file_pread(int fd, const char *path, void *dst, int64_t n, int64_t offset) {
    char *p = dst;
    while (n > 0) {
        ssize_t got = pread(fd, p, (size_t)size_min(n, 1 << 30), offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_errno("cannot read %s", path);
        if (got == 0)
            return status_fail(STATUS_FAILED,
                               "%s: ends at byte %lld, %lld bytes early; is it still being "
                               "written or was the download cut?",
                               path, (long long)offset, (long long)n);
        p += got;
        n -= got;
        offset += got;
    }
    return STATUS_OK;
}

enum status file_pwrite(int fd, const char *path, const void *src, int64_t n, int64_t offset) {
    const char *p = src;
    while (n > 0) {
        ssize_t put = pwrite(fd, p, (size_t)size_min(n, 1 << 30), offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return status_errno("cannot write %s", path);
        p += put;
        n -= put;
        offset += put;
    }
    return STATUS_OK;
}

enum status path_parent(struct arena *a, const char *path, char **out) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n ? arena_strndup(a, path, (int64_t)n, out) : arena_strdup(a, ".", out);
}

enum status dir_sync(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return status_errno("cannot open folder %s", dir);
    enum status status =
        fsync(fd) == 0 ? STATUS_OK : status_errno("cannot flush folder %s to disk", dir);
    close(fd);
    return status;
}

/* Writes bytes, or the content of `from` when it is not NULL, under a temporary name first. */
static enum status write_aside(const char *path, const void *bytes, int64_t n, const char *from) {
    struct arena arena = {0};
    enum status status;
    char *temporary = NULL, *parent, *buffer = NULL;
    enum { CHUNK = 1 << 20 };
    int fd = -1, source = -1;
    TRY_OUT(leftovers_remove(path));
    TRY_OUT(arena_printf(&arena, &temporary, "%s.partial-%d", path, (int)getpid()));
    TRY_OUT(path_parent(&arena, path, &parent));
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = status_errno("cannot create %s", temporary);
        temporary = NULL;
        goto out;
    }
    if (from) {
        source = open(from, O_RDONLY | O_CLOEXEC);
        if (source < 0) {
            status = status_errno("cannot open %s", from);
            goto out;
        }
        TRY_OUT(memory_alloc(CHUNK, 1, from, &buffer));
        for (int64_t at = 0;;) {
            ssize_t got = pread(source, buffer, CHUNK, at);
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0) {
                status = status_errno("cannot read %s", from);
                goto out;
            }
            if (got == 0)
                break;
            TRY_OUT(file_pwrite(fd, path, buffer, got, at));
            at += got;
        }
    } else {
        TRY_OUT(file_pwrite(fd, path, bytes, n, 0));
    }
    int closing = fd;
    if (fsync(fd) != 0) {
        status = status_errno("cannot flush %s to disk", path);
        goto out;
    }
    fd = -1;
    if (close(closing) != 0) {
        status = status_errno("cannot write %s", path);
        goto out;
    }
    if (rename(temporary, path) != 0) {
        status = status_errno("cannot rename %s to %s", temporary, path);
        goto out;
    }
    temporary = NULL;
    status = dir_sync(parent);
out:
    if (fd >= 0)
        close(fd);
    if (source >= 0)
        close(source);
    if (temporary)
        unlink(temporary);
    memory_free(buffer);
    arena_free(&arena);
    return status;
}

/* A device or pipe is written to; a file of that name in its place would destroy it. */
static enum status write_through(const char *path, const char *bytes, int64_t n) {
    enum status status = STATUS_OK;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return status_errno("cannot open %s", path);
    while (n > 0 && status == STATUS_OK) {
        ssize_t put = write(fd, bytes, (size_t)size_min(n, 1 << 30));
        if (put >= 0) {
            bytes += put;
            n -= put;
        } else if (errno != EINTR) {
            status = status_errno("cannot write %s", path);
        }
    }
    if (close(fd) != 0 && status == STATUS_OK)
        status = status_errno("cannot write %s", path);
    return status;
}

enum status file_write(const char *path, const void *bytes, int64_t n) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return write_through(path, bytes, n);
    char *target = lstat(path, &st) == 0 && S_ISLNK(st.st_mode) ? realpath(path, NULL) : NULL;
    enum status status = write_aside(target ? target : path, bytes, n, NULL);
    free(target);
    return status;
}

enum status file_copy(const char *from, const char *to) {
    return write_aside(to, NULL, 0, from);
}
