/* Writing safetensors: all tensors are declared first, so the headers are written before the data
 * and space is reserved before time is spent. Dirty pages are pushed out while we go on. */
#include "checkpoints/checkpoint.h"
#include "checkpoints/safetensors.h"

#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WRITE_BEHIND = 32 << 20, COPY_CHUNK = 8 << 20 };

struct slot { /* one declared tensor: where it goes and how much of it is there */
    struct checkpoint_tensor tensor;
    int64_t shard, written;
};

struct shard {
    char *path;
    int fd;
    int64_t pushed, end; /* bytes handed to the disk; end of what was written last */
};

struct checkpoint_writer {
    struct arena arena;
    struct slot *slots;
    struct shard *shards;
    int64_t n, n_shard, n_byte;
    char *dir, *index_path; /* index_path NULL: one file, no index */
    void *buffer;           /* for copies that the kernel cannot do; allocated on first use */
};

static enum status declare(struct checkpoint_writer *w, const struct tensor_spec *specs,
                           int64_t max_shard) {
    int64_t filled = 0;
    w->n_shard = w->n ? 1 : 0;
    for (int64_t i = 0; i < w->n; i++) {
        struct slot *s = &w->slots[i];
        struct checkpoint_tensor *t = &s->tensor;
        char *name;
        TRY(arena_strdup(&w->arena, specs[i].name, &name));
        *t = (struct checkpoint_tensor){
            .name = name, .dtype = specs[i].dtype, .rank = specs[i].rank, .fd = -1};
        memcpy(t->shape, specs[i].shape, sizeof t->shape);
        t->n_byte = dtype_size(t->dtype);
        for (int d = 0; d < t->rank; d++)
            if (!size_mul(t->n_byte, t->shape[d], &t->n_byte))
                return status_fail(STATUS_FAILED, "tensor %s: its shape is too large to write",
                                   name);
        if (max_shard > 0 && filled > 0 && t->n_byte > max_shard - filled) {
            w->n_shard++;
            filled = 0;
        }
        s->shard = w->n_shard - 1;
        filled += t->n_byte;
        if (!size_add(w->n_byte, t->n_byte, &w->n_byte))
            return status_fail(STATUS_FAILED, "tensor %s: the whole is too large to write", name);
    }
    if (w->n_shard == 0)
        w->n_shard = 1;
    return STATUS_OK;
}

/* Lay out one shard (wide elements first, so that each tensor is aligned) and write its header. */
static enum status open_shard(struct checkpoint_writer *w, int64_t k) {
    struct shard *shard = &w->shards[k];
    struct text header = {0};
    struct checkpoint_tensor *list = NULL;
    int64_t at = 0, n = 0;
    enum status status;
    TRY_OUT(memory_alloc(w->n, (int64_t)sizeof *list, "tensor list", &list));
    for (int64_t size = 8; size >= 1; size /= 2)
        for (int64_t i = 0; i < w->n; i++) {
            struct checkpoint_tensor *t = &w->slots[i].tensor;
            if (w->slots[i].shard != k || dtype_size(t->dtype) != size)
                continue;
            t->offset = at;
            at += t->n_byte;
            list[n++] = *t;
        }
    TRY_OUT(safetensors_print(list, n, &header));
    shard->fd = open(shard->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (shard->fd < 0) {
        status = status_errno("cannot create %s", shard->path);
        goto out;
    }
    for (int64_t i = 0; i < w->n; i++)
        if (w->slots[i].shard == k)
            w->slots[i].tensor.offset += 8 + header.n;
    at += 8 + header.n;
    /* Where space can be reserved, a full disk shows now and not after an hour. */
    if (fallocate(shard->fd, 0, 0, at) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
        status = status_errno("cannot reserve %lld bytes for %s", (long long)at, shard->path);
        goto out;
    }
    unsigned char first[8];
    for (int i = 0; i < 8; i++)
        first[i] = (unsigned char)((uint64_t)header.n >> (8 * i));
    TRY_OUT(file_pwrite(shard->fd, shard->path, first, 8, 0));
    TRY_OUT(file_pwrite(shard->fd, shard->path, header.data, header.n, 8));
out:
    memory_free(list);
    text_free(&header);
    return status;
}

static void release(struct checkpoint_writer *w) {
    for (int64_t k = 0; w->shards && k < w->n_shard; k++)
        if (w->shards[k].fd >= 0)
            close(w->shards[k].fd);
    memory_free(w->buffer);
    memory_free(w->slots);
    memory_free(w->shards);
    arena_free(&w->arena);
    memory_free(w);
}

enum status checkpoint_writer_open(const char *dir, const char *stem,
                                   const struct tensor_spec *specs, int64_t n,
                                   int64_t max_shard_bytes, struct checkpoint_writer **out) {
    struct checkpoint_writer *w = NULL;
    enum status status;
    *out = NULL;
    TRY(memory_alloc(1, sizeof *w, "checkpoint writer", &w));
    w->n = n;
    TRY_OUT(memory_alloc(n, (int64_t)sizeof *w->slots, "tensor table", &w->slots));
    TRY_OUT(arena_strdup(&w->arena, dir, &w->dir));
    TRY_OUT(declare(w, specs, max_shard_bytes));
    TRY_OUT(memory_alloc(w->n_shard, (int64_t)sizeof *w->shards, "shards", &w->shards));
    for (int64_t k = 0; k < w->n_shard; k++)
        w->shards[k].fd = -1;
    if (w->n_shard > 1)
        TRY_OUT(arena_printf(&w->arena, &w->index_path, "%s/%s.safetensors.index.json", dir, stem));
    for (int64_t k = 0; k < w->n_shard; k++) {
        if (w->n_shard == 1)
            TRY_OUT(arena_printf(&w->arena, &w->shards[k].path, "%s/%s.safetensors", dir, stem));
        else
            TRY_OUT(arena_printf(&w->arena, &w->shards[k].path,
                                 "%s/%s-%05lld-of-%05lld.safetensors", dir, stem,
                                 (long long)(k + 1), (long long)w->n_shard));
        TRY_OUT(open_shard(w, k));
    }
out:
    if (status == STATUS_OK)
        *out = w;
    else
        release(w);
    return status;
}

static enum status check_span(const struct slot *s, int64_t first, int64_t n) {
    if (first < 0 || n < 0 || first > s->tensor.n_byte || n > s->tensor.n_byte - first)
        return status_fail(STATUS_FAILED, "tensor %s: bytes [%lld, +%lld) lie outside its %lld",
                           s->tensor.name, (long long)first, (long long)n,
                           (long long)s->tensor.n_byte);
    return STATUS_OK;
}

/* Start write-out of what lies behind, so that the final fsync has little left to wait for. */
static void push_out(struct shard *shard, int64_t end) {
    shard->end = end;
    if (shard->end < shard->pushed) /* somebody fills backwards: nothing to gain */
        shard->pushed = shard->end;
    if (shard->end - shard->pushed >= WRITE_BEHIND) {
        (void)sync_file_range(shard->fd, shard->pushed, shard->end - shard->pushed,
                              SYNC_FILE_RANGE_WRITE);
        shard->pushed = shard->end;
    }
}

enum status checkpoint_writer_put(struct checkpoint_writer *w, int64_t i, int64_t first, int64_t n,
                                  const void *bytes) {
    struct slot *s = &w->slots[i];
    struct shard *shard = &w->shards[s->shard];
    TRY(check_span(s, first, n));
    TRY(file_pwrite(shard->fd, shard->path, bytes, n, s->tensor.offset + first));
    s->written += n;
    push_out(shard, s->tensor.offset + first + n);
    return STATUS_OK;
}

enum status checkpoint_writer_copy(struct checkpoint_writer *w, int64_t i,
                                   const struct checkpoint_tensor *from) {
    struct slot *s = &w->slots[i];
    struct shard *shard = &w->shards[s->shard];
    if (s->tensor.n_byte != from->n_byte)
        return status_fail(STATUS_FAILED, "tensor %s: declared with %lld bytes, copied from %lld",
                           s->tensor.name, (long long)s->tensor.n_byte, (long long)from->n_byte);
    bool in_kernel = true;
    for (int64_t done = 0; done < from->n_byte;) {
        int64_t n = size_min(from->n_byte - done, COPY_CHUNK);
        if (in_kernel) {
            off_t in = from->offset + done, to = s->tensor.offset + done;
            ssize_t got = copy_file_range(from->fd, &in, shard->fd, &to, (size_t)n, 0);
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0 && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT || errno == EIO))
                return status_errno("cannot write %s", shard->path);
            if (got <= 0) { /* another file system, or a kernel that cannot */
                in_kernel = false;
                continue;
            }
            done += got;
            s->written += got;
            push_out(shard, s->tensor.offset + done);
        } else {
            if (!w->buffer)
                TRY(memory_alloc(COPY_CHUNK, 1, "copy buffer", &w->buffer));
            TRY(checkpoint_read(from, done, n, w->buffer));
            TRY(checkpoint_writer_put(w, i, done, n, w->buffer));
            done += n;
        }
    }
    return STATUS_OK;
}

static enum status write_index(const struct checkpoint_writer *w) {
    struct json *index = json_object();
    json_set_int(json_set_object(index, "metadata"), "total_size", w->n_byte);
    struct json *map = json_set_object(index, "weight_map");
    for (int64_t i = 0; i < w->n; i++)
        json_set_string(map, w->slots[i].tensor.name, path_base(w->shards[w->slots[i].shard].path));
    enum status status = json_save(index, w->index_path);
    json_free(index);
    return status;
}

enum status checkpoint_writer_close(struct checkpoint_writer *w) {
    enum status status = STATUS_OK;
    if (!w)
        return STATUS_OK;
    for (int64_t i = 0; i < w->n; i++) {
        const struct slot *s = &w->slots[i];
        if (s->written != s->tensor.n_byte) {
            status =
                status_fail(STATUS_FAILED, "tensor %s: %lld of %lld bytes written", s->tensor.name,
                            (long long)s->written, (long long)s->tensor.n_byte);
            goto out;
        }
    }
    for (int64_t k = 0; k < w->n_shard; k++) {
        struct shard *shard = &w->shards[k];
        int fd = shard->fd;
        shard->fd = -1;
        int failed = fsync(fd);
        int error = errno;
        if (close(fd) != 0 || failed) {
            errno = failed ? error : errno;
            status = status_errno("cannot flush %s to disk", shard->path);
            goto out;
        }
    }
    if (w->index_path)
        TRY_OUT(write_index(w));
    status = dir_sync(w->dir);
out:
    release(w);
    return status;
}

void checkpoint_writer_abort(struct checkpoint_writer *w) {
    if (w)
        release(w);
}
