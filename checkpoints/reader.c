/* Opening a model folder's safetensors: one file, or the shards that an index names. */
#include "checkpoints/checkpoint.h"
#include "checkpoints/safetensors.h"

#include "core/file.h"
#include "core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct checkpoint {
    struct arena arena;
    char *path; /* as given, for messages */
    struct checkpoint_tensor *tensors;
    const struct checkpoint_tensor **by_name; /* [n], sorted */
    int64_t n, capacity, n_byte;
    int *fds;
    int64_t n_fd, fd_capacity;
    struct json *metadata; /* {"metadata": ...} of the first file */
};

static enum status add_file(struct checkpoint *c, const char *path) {
    enum status status;
    unsigned char first[8];
    int64_t n = 0;
    char *text = NULL;
    struct safetensors s = {0};
    struct stat st;
    TRY(memory_grow(&c->fds, &c->fd_capacity, c->n_fd + 1, (int64_t)sizeof *c->fds, "shards"));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return status_errno("cannot open %s", path);
    c->fds[c->n_fd++] = fd;
    if (fstat(fd, &st) != 0)
        return status_errno("cannot read %s", path);
    if (!S_ISREG(st.st_mode) || st.st_size < 8)
        return status_fail(STATUS_FAILED, "%s: not a safetensors file (%lld bytes)", path,
                           (long long)st.st_size);
    TRY(file_pread(fd, path, first, 8, 0));
    TRY(safetensors_header_size(first, st.st_size, path, &n));
    TRY_OUT(memory_alloc(n, 1, path, &text));
    TRY_OUT(file_pread(fd, path, text, n, 8));
    TRY_OUT(safetensors_parse(text, n, st.st_size, path, &c->arena, &s));
    if (c->n_fd == 1) {
        c->metadata = s.metadata;
        s.metadata = NULL;
    }
    TRY_OUT(memory_grow(&c->tensors, &c->capacity, c->n + s.n, (int64_t)sizeof *c->tensors,
                        "tensor table"));
    for (int64_t i = 0; i < s.n; i++) {
        s.tensors[i].fd = fd;
        c->tensors[c->n++] = s.tensors[i];
        c->n_byte += s.tensors[i].n_byte;
    }
out:
    json_free(s.metadata);
    memory_free(text);
    return status;
}

static int compare_names(const void *a, const void *b) {
    const struct checkpoint_tensor *x = *(const struct checkpoint_tensor *const *)a;
    const struct checkpoint_tensor *y = *(const struct checkpoint_tensor *const *)b;
    return strcmp(x->name, y->name);
}

static enum status index_names(struct checkpoint *c) {
    TRY(arena_alloc(&c->arena, c->n, (int64_t)sizeof *c->by_name, &c->by_name));
    for (int64_t i = 0; i < c->n; i++)
        c->by_name[i] = &c->tensors[i];
    if (c->n)
        qsort(c->by_name, (size_t)c->n, sizeof *c->by_name, compare_names);
    for (int64_t i = 1; i < c->n; i++)
        if (!strcmp(c->by_name[i - 1]->name, c->by_name[i]->name))
            return status_fail(STATUS_FAILED,
                               "tensor %s is in two shards, %s and %s; remove the stale one",
                               c->by_name[i]->name, path_base(c->by_name[i - 1]->path),
                               path_base(c->by_name[i]->path));
    return STATUS_OK;
}

static int compare_strings(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Open every shard that the index names, then hold the index and the shards to each other. */
static enum status open_shards(struct checkpoint *c, const char *dir, const char *index_path) {
    struct json *index = NULL;
    const char **files = NULL;
    int64_t n_file = 0;
    enum status status;
    TRY(json_load(index_path, &index));
    const struct json *map = json_get(index, "weight_map");
    if (!json_is_object(map) || json_len(map) == 0) {
        status = status_fail(STATUS_FAILED,
                             "%s: weight_map: expected an object from tensor names to shard files",
                             index_path);
        goto out;
    }
    TRY_OUT(memory_alloc(json_len(map), (int64_t)sizeof *files, "shard names", &files));
    for (const struct json *e = json_first(map); e; e = json_next(e)) {
        const char *file = json_string(e);
        if (!file || !*file || strchr(file, '/') || !strcmp(file, "..") || !strcmp(file, ".")) {
            status = status_fail(STATUS_FAILED,
                                 "%s: weight_map.%s: expected the name of a file in the same "
                                 "folder, found %s",
                                 index_path, json_key(e), file ? file : "no string");
            goto out;
        }
        files[n_file++] = file;
    }
    qsort(files, (size_t)n_file, sizeof *files, compare_strings);
    for (int64_t i = 0; i < n_file; i++) {
        char *path;
        if (i && !strcmp(files[i], files[i - 1]))
            continue;
        TRY_OUT(path_join(&c->arena, dir, files[i], &path));
        if (!path_exists(path)) {
            status = status_fail(STATUS_FAILED,
                                 "%s is missing, but %s names it; download the missing shard", path,
                                 path_base(index_path));
            goto out;
        }
        TRY_OUT(add_file(c, path));
    }
    TRY_OUT(index_names(c));
    for (const struct json *e = json_first(map); e; e = json_next(e)) {
        const struct checkpoint_tensor *t = checkpoint_find(c, json_key(e));
        if (!t || strcmp(path_base(t->path), json_string(e))) {
            status = status_fail(STATUS_FAILED,
                                 "%s: tensor %s is missing from %s, where the index says it is; "
                                 "the index or the shard is stale",
                                 index_path, json_key(e), json_string(e));
            goto out;
        }
    }
    if (c->n != n_file) { /* names are unique, so a shard holds more than the index lists */
        for (int64_t i = 0; i < c->n; i++)
            if (!json_get(map, c->tensors[i].name)) {
                status = status_fail(STATUS_FAILED,
                                     "%s: tensor %s of %s is not in the weight_map; the index or "
                                     "the shard is stale",
                                     index_path, c->tensors[i].name, path_base(c->tensors[i].path));
                goto out;
            }
        status = status_fail(STATUS_FAILED, "%s: weight_map lists a tensor twice", index_path);
    }
out:
    memory_free(files);
    json_free(index);
    return status;
}

static enum status no_weights(const char *dir) {
    struct arena arena = {0};
    char **names;
    int64_t n;
    const char *other = NULL;
    enum status status = dir_list(&arena, dir, &names, &n);
    for (int64_t i = 0; status == STATUS_OK && i < n; i++) {
        const char *dot = strrchr(names[i], '.');
        if (dot && (!strcmp(dot, ".bin") || !strcmp(dot, ".pth") || !strcmp(dot, ".gguf")))
            other = names[i];
    }
    if (status == STATUS_OK && other)
        status = status_fail(STATUS_FAILED,
                             "%s has no model.safetensors, only %s; save the model as safetensors",
                             dir, other);
    else if (status == STATUS_OK)
        status = status_fail(STATUS_FAILED,
                             "%s has neither model.safetensors nor model.safetensors.index.json; "
                             "give a model folder",
                             dir);
    arena_free(&arena);
    return status;
}

enum status checkpoint_open(const char *dir, struct checkpoint **out) {
    struct checkpoint *c = NULL;
    enum status status;
    char *single, *index;
    *out = NULL;
    TRY(memory_alloc(1, sizeof *c, "checkpoint", &c));
    TRY_OUT(arena_strdup(&c->arena, dir, &c->path));
    if (!path_exists(dir)) {
        status = status_fail(STATUS_FAILED, "%s does not exist; give a model folder", dir);
        goto out;
    }
    if (!path_is_dir(dir)) {
        TRY_OUT(add_file(c, c->path));
        TRY_OUT(index_names(c));
    } else {
        TRY_OUT(path_join(&c->arena, dir, "model.safetensors", &single));
        TRY_OUT(path_join(&c->arena, dir, "model.safetensors.index.json", &index));
        if (path_exists(single)) { /* the one transformers prefers */
            if (path_exists(index))
                log_warn("%s: both model.safetensors and an index are there; reading "
                         "model.safetensors",
                         dir);
            TRY_OUT(add_file(c, single));
            TRY_OUT(index_names(c));
        } else if (path_exists(index)) {
            TRY_OUT(open_shards(c, dir, index));
        } else {
            status = no_weights(dir);
        }
    }
out:
    if (status == STATUS_OK)
        *out = c;
    else
        checkpoint_close(c);
    return status;
}

void checkpoint_close(struct checkpoint *c) {
    if (!c)
        return;
    for (int64_t i = 0; i < c->n_fd; i++)
        close(c->fds[i]);
    json_free(c->metadata);
    memory_free(c->fds);
    memory_free(c->tensors);
    arena_free(&c->arena);
    memory_free(c);
}

int64_t checkpoint_count(const struct checkpoint *c) {
    return c->n;
}

int64_t checkpoint_total_bytes(const struct checkpoint *c) {
    return c->n_byte;
}

const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *c, int64_t i) {
    return &c->tensors[i];
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c, const char *name) {
    struct checkpoint_tensor key = {.name = name};
    const struct checkpoint_tensor *at = &key;
    if (!c->n)
        return NULL;
    const struct checkpoint_tensor **found =
        bsearch(&at, c->by_name, (size_t)c->n, sizeof *c->by_name, compare_names);
    return found ? *found : NULL;
}

enum status checkpoint_need(const struct checkpoint *c, const char *name,
                            const struct checkpoint_tensor **out) {
    *out = checkpoint_find(c, name);
    if (!*out)
        return status_fail(STATUS_FAILED,
                           "%s: tensor %s is missing; the weights do not fit config.json", c->path,
                           name);
    return STATUS_OK;
}

enum status checkpoint_read(const struct checkpoint_tensor *t, int64_t first, int64_t n,
                            void *dst) {
    if (first < 0 || n < 0 || first > t->n_byte || n > t->n_byte - first)
        return status_fail(STATUS_FAILED, "%s: tensor %s: bytes [%lld, +%lld) lie outside its %lld",
                           t->path, t->name, (long long)first, (long long)n, (long long)t->n_byte);
    return file_pread(t->fd, t->path, dst, n, t->offset + first);
}

const char *checkpoint_metadata(const struct checkpoint *c, const char *key) {
    return json_string(json_get(json_get(c->metadata, "metadata"), key));
}
