/* Inside convert/: one tensor from reader to writer, a few MiB at a time. */
#ifndef REGROUP_CONVERT_MERGE_H
#define REGROUP_CONVERT_MERGE_H

#include "convert/convert.h"
#include "core/log.h"

enum { MERGE_CHUNK = 1 << 20 }; /* elements in flight */

struct merge_buffers {
    void *in, *out; /* MERGE_CHUNK elements of any type */
    float *value;   /* [MERGE_CHUNK] */
    double *sum;    /* [MERGE_CHUNK] */
};
enum status merge_buffers_alloc(struct merge_buffers *b) MUST_USE;
void merge_buffers_free(struct merge_buffers *b);

/* Tensor i of the plan into the writer; fills its `found` and `n_overflow`. */
enum status merge_stream(struct convert_plan *p, int64_t i, struct checkpoint_writer *w,
                         struct merge_buffers *b) MUST_USE;

/* n values of type t to the writer as elements [at, at + n) of tensor i, in the type planned. */
enum status merge_put(struct convert_plan *p, int64_t i, int64_t at, int64_t n, const void *values,
                      enum dtype t, struct checkpoint_writer *w, struct merge_buffers *b) MUST_USE;

#endif
