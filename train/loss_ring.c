/* See loss_ring.h. */
#include "train/loss_ring.h"

#include "core/memory.h"

static enum status device(struct loss_ring *r, struct tensor *t) {
    return r->be->alloc(r->be, tensor_bytes(t), "losses", &t->data);
}

static enum status allocate(struct loss_ring *r) {
    int64_t rows = r->n_slot * r->n_part; /* of one step's rows each, which fit several times */
    r->rows = tensor_2d(r->dtype, NULL, rows, r->n_row);
    r->squares = tensor_1d(DTYPE_F64, NULL, r->n_slot);
    r->sums = tensor_2d(DTYPE_F64, NULL, r->n_slot, r->n_sum);
    TRY(memory_alloc(rows * r->n_row, dtype_size(r->dtype), "losses", &r->host_rows));
    TRY(memory_alloc(r->n_slot, sizeof(double), "losses", &r->host_squares));
    TRY(memory_alloc(r->n_slot * r->n_sum, sizeof(double), "losses", &r->host_sums));
    TRY(device(r, &r->rows));
    TRY(device(r, &r->squares));
    return r->n_sum ? device(r, &r->sums) : STATUS_OK;
}

enum status loss_ring_open(struct backend *be, enum dtype dtype, int64_t n_slot, int64_t n_row,
                           bool has_teacher, int64_t n_sum, struct loss_ring *out) {
    *out = (struct loss_ring){.be = be,
                              .dtype = dtype,
                              .n_slot = n_slot,
                              .n_part = has_teacher ? LOSS_PARTS : 1,
                              .n_row = n_row,
                              .n_sum = n_sum};
    enum status status = allocate(out);
    if (status != STATUS_OK)
        loss_ring_close(out);
    return status;
}

void loss_ring_close(struct loss_ring *r) {
    void *on_device[] = {r->rows.data, r->squares.data, r->sums.data};
    for (int i = 0; i < 3; i++)
        if (on_device[i])
            r->be->free(r->be, on_device[i]);
    memory_free(r->host_rows);
    memory_free(r->host_squares);
    memory_free(r->host_sums);
    *r = (struct loss_ring){0};
}

struct tensor loss_ring_rows(const struct loss_ring *r, int part, int64_t first, int64_t n) {
    if (part >= r->n_part)
        return (struct tensor){0};
    struct tensor row = tensor_rows(r->rows, r->n_step * r->n_part + part, 1);
    return tensor_rows(tensor_1d(r->dtype, row.data, r->n_row), first, n);
}

struct tensor loss_ring_squares(const struct loss_ring *r) {
    return tensor_rows(r->squares, 0, r->n_step + 1);
}

struct tensor loss_ring_sum(const struct loss_ring *r, int64_t i) {
    struct tensor all = tensor_1d(DTYPE_F64, r->sums.data, r->n_slot * r->n_sum);
    return tensor_rows(all, r->n_step * r->n_sum + i, 1);
}

static enum status download(const struct loss_ring *r, void *host, const struct tensor *from,
                            int64_t n) {
    struct tensor first = tensor_rows(*from, 0, n);
    return r->be->download(r->be, STREAM_COMPUTE, host, first.data, tensor_bytes(&first));
}

enum status loss_ring_read(struct loss_ring *r, int64_t n) {
    TRY(download(r, r->host_rows, &r->rows, n * r->n_part));
    TRY(download(r, r->host_squares, &r->squares, n));
    if (r->n_sum)
        TRY(download(r, r->host_sums, &r->sums, n));
    return r->be->sync(r->be, STREAM_COMPUTE);
}

void loss_ring_add(const struct loss_ring *r, int64_t slot, int64_t n, struct loss_parts *sum) {
    double *sums[LOSS_PARTS] = {&sum->ce, &sum->kl, &sum->agree};
    for (int64_t k = 0; k < r->n_part; k++) {
        int64_t first = (slot * r->n_part + k) * r->n_row;
        for (int64_t i = first; i < first + n; i++)
            *sums[k] += r->dtype == DTYPE_F64 ? ((const double *)r->host_rows)[i]
                                              : ((const float *)r->host_rows)[i];
    }
}
