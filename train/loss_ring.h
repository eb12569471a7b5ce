/* What steps leave behind on the device until the host reads it, some steps at a time, so that no
 * step waits for its loss: the row losses, the gradient's sum of squares, and further sums. Slot
 * n_step is where the step in progress writes. */
#ifndef REGROUP_TRAIN_LOSS_RING_H
#define REGROUP_TRAIN_LOSS_RING_H

#include "kernels/backend.h"

/* Parts of a loss, as means over the counted tokens. kl carries the factor temperature^2. */
struct loss_parts {
    double ce, kl, agree;
    int64_t n_token; /* counted */
};

enum { LOSS_PARTS = 3 }; /* rows of nll, kl, agree */
struct loss_ring {
    struct backend *be; /* borrowed */
    enum dtype dtype;   /* of the row losses: G */
    int64_t n_slot, n_step;
    int64_t n_part, n_row; /* 1 (nll) or LOSS_PARTS; rows of a whole step */
    int64_t n_sum;         /* further sums of a step */
    struct tensor rows;    /* [n_slot * n_part, n_row] on the device */
    struct tensor squares; /* [n_slot] F64, on the device */
    struct tensor sums;    /* [n_slot, n_sum] F64, on the device; data NULL: none */
    void *host_rows;       /* the same on the host, as of loss_ring_read */
    double *host_squares, *host_sums;
};
enum status loss_ring_open(struct backend *be, enum dtype dtype, int64_t n_slot, int64_t n_row,
                           bool has_teacher, int64_t n_sum, struct loss_ring *out) MUST_USE;
void loss_ring_close(struct loss_ring *r); /* {0} is fine */

/* Rows [first, first + n) of a part in the current slot; data NULL when there is no such part. */
struct tensor loss_ring_rows(const struct loss_ring *r, int part, int64_t first, int64_t n);
/* The gradient's sums of squares from slot 0 up to the current one: adamw's grad_square. */
struct tensor loss_ring_squares(const struct loss_ring *r);
/* [1] F64: a further sum in the current slot. */
struct tensor loss_ring_sum(const struct loss_ring *r, int64_t i);

/* Brings the first n slots to the host, and waits for all that was enqueued. */
enum status loss_ring_read(struct loss_ring *r, int64_t n) MUST_USE;
/* Adds up the first n rows of a slot that was read: in double, in row order. Rows that do not count
 * hold zero. */
void loss_ring_add(const struct loss_ring *r, int64_t slot, int64_t n, struct loss_parts *sum);

#endif
