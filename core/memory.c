/* Counted, aligned allocation and the arena. */
#include "core/memory.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t alloc_count;

bool size_mul(int64_t a, int64_t b, int64_t *out) {
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

bool size_add(int64_t a, int64_t b, int64_t *out) {
    return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, out);
}

enum status memory_alloc(int64_t count, int64_t size, const char *what, void *out) {
    int64_t bytes;
    if (!size_mul(count, size, &bytes) || bytes > INT64_MAX - 64)
        return status_nomem(what, (double)count * (double)size);
    int64_t rounded = size_align(size_max(bytes, 1), 64);
    void *p = aligned_alloc(64, (size_t)rounded);
    if (!p)
        return status_nomem(what, (double)bytes);
    memset(p, 0, (size_t)rounded);
    memory_count_alloc();
    memcpy(out, &p, sizeof p);
    return STATUS_OK;
}

void memory_free(void *p) {
    free(p);
}

enum status memory_grow(void *items, int64_t *capacity, int64_t need, int64_t size,
                        const char *what) {
    if (need <= *capacity)
        return STATUS_OK;
    int64_t target = size_max(size_max(need, 16), *capacity < INT64_MAX / 2 ? *capacity * 2 : need);
    void *fresh = NULL, *old = NULL;
    TRY(memory_alloc(target, size, what, &fresh));
    memcpy(&old, items, sizeof old);
    if (old)
        memcpy(fresh, old, (size_t)(*capacity * size));
    memory_free(old);
    memcpy(items, &fresh, sizeof fresh);
    *capacity = target;
    return STATUS_OK;
}

void memory_count_alloc(void) {
    atomic_fetch_add(&alloc_count, 1);
}

int64_t memory_alloc_count(void) {
    return atomic_load(&alloc_count);
}

struct arena_block {
    struct arena_block *next;
    int64_t used, size;
    _Alignas(16) unsigned char bytes[];
};

enum status arena_alloc(struct arena *a, int64_t count, int64_t size, void *out) {
    int64_t bytes;
    if (!size_mul(count, size, &bytes) || bytes > INT64_MAX / 2)
        return status_nomem("arena", (double)count * (double)size);
    bytes = size_align(size_max(bytes, 1), 16);
    struct arena_block *b = a->blocks;
    if (!b || b->size - b->used < bytes) {
        int64_t room = size_max(bytes, 64 * 1024);
        TRY(memory_alloc(1, (int64_t)sizeof *b + room, "arena", &b));
        b->size = room;
        b->next = a->blocks;
        a->blocks = b;
    }
    void *p = b->bytes + b->used;
    b->used += bytes;
    memcpy(out, &p, sizeof p);
    return STATUS_OK;
}

enum status arena_strndup(struct arena *a, const char *text, int64_t n, char **out) {
    TRY(arena_alloc(a, n + 1, 1, out));
    memcpy(*out, text, (size_t)n);
    return STATUS_OK;
}

enum status arena_strdup(struct arena *a, const char *text, char **out) {
    return arena_strndup(a, text, (int64_t)strlen(text), out);
}

enum status arena_printf(struct arena *a, char **out, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    TRY(arena_alloc(a, (int64_t)n + 1, 1, out));
    va_start(args, fmt);
    vsnprintf(*out, (size_t)n + 1, fmt, args);
    va_end(args);
    return STATUS_OK;
}

void arena_free(struct arena *a) {
    while (a->blocks) {
        struct arena_block *next = a->blocks->next;
        memory_free(a->blocks);
        a->blocks = next;
    }
}
