/* A model folder's tensors: model.safetensors, or shards with model.safetensors.index.json.
 * Headers are validated whole before anything is used: offsets inside the file, no overlap, no
 * gaps that lie, byte counts equal to shape x dtype, names unique over all shards. */
#ifndef REGROUP_CHECKPOINTS_CHECKPOINT_H
#define REGROUP_CHECKPOINTS_CHECKPOINT_H

#include "core/memory.h"
#include "core/tensor.h"

struct checkpoint_tensor {
    const char *name, *path; /* borrowed from the checkpoint; path: the shard's file */
    enum dtype dtype;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    int64_t n_byte, offset; /* offset: absolute in the file */
    int fd;
};

struct checkpoint;
/* `dir`: a model folder, or one .safetensors file. Nothing but headers is read. */
enum status checkpoint_open(const char *dir, struct checkpoint **out) MUST_USE;
void checkpoint_close(struct checkpoint *c);
int64_t checkpoint_count(const struct checkpoint *c);
int64_t checkpoint_total_bytes(const struct checkpoint *c); /* sum of n_byte */
/* In order of file, then offset. */
const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *c, int64_t i);
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c, const char *name);
/* As find, but a missing tensor is an error that names it and the folder. */
enum status checkpoint_need(const struct checkpoint *c, const char *name,
                            const struct checkpoint_tensor **out) MUST_USE;
/* Bytes [first, first + n) of a tensor. */
enum status checkpoint_read(const struct checkpoint_tensor *t, int64_t first, int64_t n,
                            void *dst) MUST_USE;
/* The value of __metadata__[key] of the first file, NULL if absent. */
const char *checkpoint_metadata(const struct checkpoint *c, const char *key);

/* NaN and infinities among n elements, added to *out; integer types have none. */
struct nonfinite {
    int64_t n_nan, n_inf;
};
void nonfinite_scan(const void *data, enum dtype t, int64_t n, struct nonfinite *out);
/* A whole tensor, through `buffer` of n_buffer (at least 8) bytes. */
enum status checkpoint_scan(const struct checkpoint_tensor *t, void *buffer, int64_t n_buffer,
                            struct nonfinite *out) MUST_USE;

/* Writing: every tensor is declared first, so headers are written before data and any shard can be
 * filled in any order. Files appear under their final names inside `dir`, which the caller stages
 * (core/file.h). */
struct tensor_spec {
    const char *name; /* borrowed until writer_open returns */
    enum dtype dtype;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
};
struct checkpoint_writer;
/* One file `stem`.safetensors when all fits max_shard_bytes (<= 0: no bound), else
 * `stem`-00001-of-0000N.safetensors and `stem`.safetensors.index.json with the right total_size.
 * `stem` is "model" for a model. __metadata__ is {"format": "pt"}. */
enum status checkpoint_writer_open(const char *dir, const char *stem,
                                   const struct tensor_spec *specs, int64_t n,
                                   int64_t max_shard_bytes,
                                   struct checkpoint_writer **out) MUST_USE;
/* Bytes [first, first + n) of tensor i (its index in `specs`). */
enum status checkpoint_writer_put(struct checkpoint_writer *w, int64_t i, int64_t first, int64_t n,
                                  const void *bytes) MUST_USE;
/* A whole tensor, unchanged, from an open checkpoint: copied in the kernel where it can be. */
enum status checkpoint_writer_copy(struct checkpoint_writer *w, int64_t i,
                                   const struct checkpoint_tensor *from) MUST_USE;
/* Fails if a declared tensor was not written in full. fsyncs, closes and frees in any case. */
enum status checkpoint_writer_close(struct checkpoint_writer *w) MUST_USE;
void checkpoint_writer_abort(struct checkpoint_writer *w); /* frees; leaves files to the staging */

#endif
