/* A folder built aside and published by one rename, or exchanged with the one it replaces. */
#include "core/file.h"

#include "core/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status remove_at(int parent, const char *name, const char *shown) {
    struct stat st;
    if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? STATUS_OK : status_errno("cannot look at %s", shown);
    if (!S_ISDIR(st.st_mode))
        return unlinkat(parent, name, 0) == 0 ? STATUS_OK : status_errno("cannot remove %s", shown);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        enum status status = status_errno("cannot open folder %s", shown);
        if (fd >= 0)
            close(fd);
        return status;
    }
    enum status status = STATUS_OK;
    for (struct dirent *e; status == STATUS_OK && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
            status = remove_at(fd, e->d_name, e->d_name);
    closedir(d);
    if (status == STATUS_OK && unlinkat(parent, name, AT_REMOVEDIR) != 0)
        status = status_errno("cannot remove folder %s", shown);
    return status;
}

enum status dir_remove(const char *path) {
    return remove_at(AT_FDCWD, path, path);
}

/* May --force replace it? Only an empty folder or a model; many a folder has a config.json. */
static enum status replaceable(const char *path) {
    static const char *const marks[] = {"regroup.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    struct arena arena = {0};
    char **names;
    int64_t n;
    if (!path_is_dir(path))
        return status_fail(STATUS_FAILED, "%s exists and is not a folder; give another output",
                           path);
    enum status status = dir_list(&arena, path, &names, &n);
    bool ours = n == 0;
    for (int64_t i = 0; status == STATUS_OK && i < n; i++)
        for (size_t m = 0; m < sizeof marks / sizeof *marks; m++)
            ours |= !strcmp(names[i], marks[m]);
    if (status == STATUS_OK && !ours)
        status = status_fail(STATUS_FAILED,
                             "%s holds no model; refusing to replace it even with --force", path);
    arena_free(&arena);
    return status;
}

enum status leftovers_remove(const char *final_path) {
    struct arena arena = {0};
    enum status status;
    char *parent, *prefix, **names;
    int64_t n;
    TRY_OUT(path_parent(&arena, final_path, &parent));
    TRY_OUT(arena_printf(&arena, &prefix, "%s.partial-", path_base(final_path)));
    TRY_OUT(path_mkdirs(parent));
    TRY_OUT(dir_list(&arena, parent, &names, &n));
    for (int64_t i = 0; i < n; i++) {
        char *end, *path;
        if (strncmp(names[i], prefix, strlen(prefix)))
            continue;
        long pid = strtol(names[i] + strlen(prefix), &end, 10);
        if (*end || pid <= 0 || (kill((pid_t)pid, 0) == 0 && pid != (long)getpid()))
            continue;
        TRY_OUT(path_join(&arena, parent, names[i], &path));
        TRY_OUT(dir_remove(path));
    }
out:
    arena_free(&arena);
    return status;
}

enum status staging_open(const char *final_path, bool force, struct staging *out) {
    struct arena arena = {0};
    enum status status;
    char *path, *trimmed;
    *out = (struct staging){0};
    TRY_OUT(arena_strdup(&arena, final_path, &trimmed));
    for (size_t n = strlen(trimmed); n > 1 && trimmed[n - 1] == '/'; n--)
        trimmed[n - 1] = 0;
    if (!*trimmed) {
        status = status_fail(STATUS_USAGE, "the output's name is empty");
        goto out;
    }
    bool exists = path_exists(trimmed);
    char *target = exists && path_is_dir(trimmed) ? realpath(trimmed, NULL) : NULL;
    if (target) { /* a link to a folder stays: what it leads to is replaced */
        status = arena_strdup(&arena, target, &trimmed);
        free(target);
        TRY_OUT(status);
    }
    if (exists && !force) {
        status = status_fail(STATUS_FAILED, "%s exists; give another output or --force", trimmed);
        goto out;
    }
    if (exists)
        TRY_OUT(replaceable(trimmed));
    TRY_OUT(leftovers_remove(trimmed));
    TRY_OUT(arena_printf(&arena, &path, "%s.partial-%d", trimmed, (int)getpid()));
    if (mkdir(path, 0777) != 0) {
        status = status_errno("cannot create folder %s", path);
        goto out;
    }
    out->replace = exists;
    out->final_path = strdup(trimmed);
    out->path = strdup(path);
    if (!out->final_path || !out->path) {
        status = status_nomem("path", 4096);
        (void)rmdir(path);
        staging_abort(out);
    }
out:
    arena_free(&arena);
    return status;
}

static void release(struct staging *s) {
    free(s->final_path);
    free(s->path);
    *s = (struct staging){0};
}

/* Files written through checkpoint_writer or file_write are already on disk; fsync is then cheap,
 * and whoever wrote a file some other way is covered too. */
static enum status sync_tree(const char *path) {
    struct arena arena = {0};
    char **names, *child;
    int64_t n;
    enum status status = dir_list(&arena, path, &names, &n);
    for (int64_t i = 0; status == STATUS_OK && i < n; i++) {
        TRY_OUT(path_join(&arena, path, names[i], &child));
        struct stat st;
        if (lstat(child, &st) != 0)
            status = status_errno("cannot look at %s", child);
        else if (S_ISDIR(st.st_mode))
            status = sync_tree(child);
        else if (S_ISREG(st.st_mode)) {
            int fd = open(child, O_RDONLY | O_CLOEXEC);
            if (fd < 0 || fsync(fd) != 0)
                status = status_errno("cannot flush %s to disk", child);
            if (fd >= 0)
                close(fd);
        }
    }
    if (status == STATUS_OK)
        status = dir_sync(path);
out:
    arena_free(&arena);
    return status;
}

enum status staging_commit(struct staging *s) {
    TRY(sync_tree(s->path));
    unsigned flags = s->replace ? RENAME_EXCHANGE : RENAME_NOREPLACE;
    int failed = renameat2(AT_FDCWD, s->path, AT_FDCWD, s->final_path, flags);
    if (failed && !s->replace && (errno == EINVAL || errno == ENOSYS))
        failed = rename(s->path, s->final_path); /* a file system without renameat2's flags */
    if (failed && errno == EEXIST)
        return status_fail(STATUS_FAILED,
                           "%s appeared while it was being made here: another process wrote it; "
                           "give another output or run again",
                           s->final_path);
    if (failed)
        return status_errno("cannot move %s to %s", s->path, s->final_path);
    struct arena arena = {0};
    char *parent;
    enum status status = path_parent(&arena, s->final_path, &parent);
    if (status == STATUS_OK)
        status = dir_sync(parent);
    arena_free(&arena);
    /* After an exchange the old folder stands under the temporary name. */
    if (status == STATUS_OK && s->replace)
        status = dir_remove(s->path);
    release(s);
    return status;
}

void staging_abort(struct staging *s) {
    /* The message of the failure that led here is the one to keep. What cannot be removed now has
     * a name that says what it is, and the next run removes it. */
    char kept[2048];
    snprintf(kept, sizeof kept, "%s", status_message());
    if (s->path && dir_remove(s->path) != STATUS_OK)
        log_warn("%s", status_message());
    (void)!status_fail(STATUS_FAILED, "%s", kept);
    release(s);
}
