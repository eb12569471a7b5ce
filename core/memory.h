/* Checked sizes, counted allocation, and the arena: one per lifetime, freed as a whole. */
#ifndef REGROUP_CORE_MEMORY_H
#define REGROUP_CORE_MEMORY_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* a * b and a + b for non-negative sizes; false on overflow or a negative operand. */
bool size_mul(int64_t a, int64_t b, int64_t *out) MUST_USE;
bool size_add(int64_t a, int64_t b, int64_t *out) MUST_USE;
static inline int64_t size_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t size_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}
/* Smallest multiple of `to` (a power of two) that is >= n. */
static inline int64_t size_align(int64_t n, int64_t to) {
    return (n + to - 1) & ~(to - 1);
}

/* `count * size` bytes, 64-byte aligned, zeroed, stored in *(void **)out; `what` names it in the
 * message. The caller frees with memory_free. NULL is fine to free. */
enum status memory_alloc(int64_t count, int64_t size, const char *what, void *out) MUST_USE;
void memory_free(void *p);
/* Grow *(void **)items (owned through memory_alloc) so that it holds at least `need` items of
 * `size` bytes; *capacity is updated. Amortised doubling; contents kept. */
enum status memory_grow(void *items, int64_t *capacity, int64_t need, int64_t size,
                        const char *what) MUST_USE;
/* Allocations made by memory_alloc, memory_grow and arenas so far, in all threads, and those of
 * device memory, which memory_count_alloc adds. A training or decode step must leave it unchanged.
 */
int64_t memory_alloc_count(void);
void memory_count_alloc(void);

struct arena_block;
struct arena {
    struct arena_block *blocks; /* zero-initialise: struct arena a = {0}; */
};
/* Zeroed, 16-byte aligned, lives until arena_free. *(void **)out receives the pointer. */
enum status arena_alloc(struct arena *a, int64_t count, int64_t size, void *out) MUST_USE;
enum status arena_strdup(struct arena *a, const char *text, char **out) MUST_USE;
enum status arena_strndup(struct arena *a, const char *text, int64_t n, char **out) MUST_USE;
enum status arena_printf(struct arena *a, char **out, const char *fmt, ...) MUST_USE
    PRINTF_LIKE(3, 4);
void arena_free(struct arena *a);

#ifdef __cplusplus
}
#endif

#endif
