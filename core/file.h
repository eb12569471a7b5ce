/* Files and folders that are complete or absent: written under a temporary name in the same
 * folder, fsync, rename. Nothing is deleted that we did not write. */
#ifndef REGROUP_CORE_FILE_H
#define REGROUP_CORE_FILE_H

#include "core/memory.h"
#include "core/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* dir + "/" + name, in the arena. */
enum status path_join(struct arena *a, const char *dir, const char *name, char **out) MUST_USE;
const char *path_base(const char *path); /* after the last '/', borrowed */
/* The folder that holds `path` ("." when it names none), in the arena. */
enum status path_parent(struct arena *a, const char *path, char **out) MUST_USE;
bool path_exists(const char *path);
bool path_is_dir(const char *path);
enum status path_mkdirs(const char *path) MUST_USE; /* like mkdir -p */
/* Names (not paths) in a folder, sorted, without "." and "..", in the arena. */
enum status dir_list(struct arena *a, const char *dir, char ***names, int64_t *n) MUST_USE;

enum status file_size(const char *path, int64_t *out) MUST_USE;
/* Whole file appended to *out. Fails beyond max_bytes (0: no bound), naming the file. */
enum status file_read(const char *path, int64_t max_bytes, struct text *out) MUST_USE;
/* Exactly n bytes at offset (loops over short reads; a short file is an error naming `path`). */
enum status file_pread(int fd, const char *path, void *dst, int64_t n, int64_t offset) MUST_USE;
enum status file_pwrite(int fd, const char *path, const void *src, int64_t n,
                        int64_t offset) MUST_USE;
/* Temporary name, write, fsync, rename, fsync of the folder. A link stays and its target is
 * replaced; a device or pipe is written to. */
enum status file_write(const char *path, const void *bytes, int64_t n) MUST_USE;
enum status file_copy(const char *from, const char *to) MUST_USE; /* the same guarantees */
/* Remove the "<final_path>.partial-PID" that killed processes left; the next write of the same
 * file or folder does it too. Creates the parent folder when it is not there. */
enum status leftovers_remove(const char *final_path) MUST_USE;
enum status dir_sync(const char *dir) MUST_USE; /* fsync of a folder */

/* A folder built aside ("OUT.partial-PID") and published by one rename. An existing `final` is
 * refused unless `force`; then the two are exchanged atomically (renameat2) and the old one, if
 * it is a folder with a model in it or is empty, removed. A leftover
 * .partial-* of a dead process is removed when the same `final` is staged again. */
struct staging {
    char *final_path, *path; /* owned; write into `path` */
    bool replace;
};
enum status staging_open(const char *final_path, bool force, struct staging *out) MUST_USE;
enum status staging_commit(struct staging *s) MUST_USE; /* fsyncs files and folder, publishes */
void staging_abort(struct staging *s); /* removes the staged files; safe after commit, on {0} */
/* Remove a folder tree (not following links). Only for what we wrote ourselves. */
enum status dir_remove(const char *path) MUST_USE;

#endif
