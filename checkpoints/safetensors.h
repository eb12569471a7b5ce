/* The header of one safetensors file: 8 bytes little-endian length, a JSON object, then the data.
 * Inside this room only; the rest of the program sees checkpoint.h. */
#ifndef REGROUP_CHECKPOINTS_SAFETENSORS_H
#define REGROUP_CHECKPOINTS_SAFETENSORS_H

#include "checkpoints/checkpoint.h"
#include "core/json.h"

enum { SAFETENSORS_MAX_HEADER = 100000000 }; /* the format's own bound */

struct safetensors {
    struct checkpoint_tensor *tensors; /* in the arena, by offset; fd is -1 */
    int64_t n;
    struct json *metadata; /* owned; NULL when absent */
};

/* The JSON's length from the file's first 8 bytes, checked against the file's size. */
enum status safetensors_header_size(const unsigned char first[8], int64_t file_size,
                                    const char *path, int64_t *out) MUST_USE;
/* Parse and validate the JSON `text` [n] of a file of `file_size` bytes: known dtypes, byte counts
 * equal to shape x dtype, data that fills the file without gaps or overlap, unique names. `path`
 * is kept (borrowed) in the tensors. */
enum status safetensors_parse(const char *text, int64_t n, int64_t file_size, const char *path,
                              struct arena *arena, struct safetensors *out) MUST_USE;
/* The header's JSON text for tensors that will lie at their `offset` (relative to the data),
 * padded with spaces so that the data starts at a multiple of 8. */
enum status safetensors_print(const struct checkpoint_tensor *tensors, int64_t n,
                              struct text *out) MUST_USE;

#endif
