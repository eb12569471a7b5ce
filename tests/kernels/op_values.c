/* Values of a case on the host, and instances of it on a backend. */
#include "core/memory.h"
#include "core/rng.h"
#include "op_cases.h"

#include <math.h>
#include <string.h>

enum dtype op_buffer_dtype(const struct op_buffer *b, enum dtype dtype) {
    switch (b->kind) {
    case BUFFER_COMPUTE:
        return dtype;
    case BUFFER_GRAD:
        return dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    case BUFFER_BF16:
        return dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_BF16;
    case BUFFER_F16:
        return dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F16;
    case BUFFER_I32:
        return DTYPE_I32;
    case BUFFER_F32:
        return DTYPE_F32;
    default:
        return DTYPE_F64;
    }
}

int64_t op_buffer_find(const struct op_case *c, const char *name) {
    for (int i = 0; name && i < c->n_buffer; i++)
        if (!strcmp(c->buffer[i].name, name))
            return i;
    return -1;
}

double op_case_bytes(const struct op_case *c, enum dtype dtype) {
    double bytes = 0;
    for (int i = 0; i < c->n_buffer; i++) {
        const struct op_buffer *b = &c->buffer[i];
        double size = (double)(b->traffic * dtype_size(op_buffer_dtype(b, dtype)));
        bytes += b->role == ROLE_FORWARD ? 0 : b->role == ROLE_INOUT ? 2 * size : size;
    }
    return bytes;
}

enum status op_values_open(const struct op_case *c, struct op_values *out) {
    memset(out, 0, sizeof *out);
    for (int i = 0; i < c->n_buffer; i++)
        if (memory_alloc(c->buffer[i].count, sizeof(double), c->buffer[i].name, &out->v[i]) !=
            STATUS_OK) {
            op_values_close(out);
            return STATUS_FAILED;
        }
    return STATUS_OK;
}

void op_values_close(struct op_values *v) {
    for (int i = 0; i < CASE_BUFFERS; i++)
        memory_free(v->v[i]);
}

void op_values_fill(const struct op_case *c, uint64_t seed, struct op_values *v) {
    for (int i = 0; i < c->n_buffer; i++) {
        const struct op_buffer *b = &c->buffer[i];
        struct rng rng = rng_stream(seed, (uint64_t)i);
        for (int64_t k = 0; k < b->count; k++) {
            double x = b->low + (b->high - b->low) * rng_uniform(&rng);
            if (b->kind == BUFFER_I32)
                x = floor(x);
            v->v[i][k] = b->role == ROLE_IN || b->role == ROLE_INOUT ? x : (double)NAN;
        }
    }
}

static void to_bytes(const double *x, enum dtype t, void *out, int64_t n) {
    if (t == DTYPE_I32)
        for (int64_t i = 0; i < n; i++)
            ((int32_t *)out)[i] = (int32_t)x[i];
    else
        dtype_convert(x, DTYPE_F64, out, t, n);
}

static void from_bytes(const void *in, enum dtype t, double *x, int64_t n) {
    if (t == DTYPE_I32)
        for (int64_t i = 0; i < n; i++)
            x[i] = ((const int32_t *)in)[i];
    else
        dtype_convert(in, t, x, DTYPE_F64, n);
}

void op_values_round(const struct op_case *c, enum dtype dtype, struct op_values *v) {
    for (int i = 0; i < c->n_buffer; i++)
        for (int64_t k = 0; k < c->buffer[i].count; k++) {
            double cell;
            to_bytes(v->v[i] + k, op_buffer_dtype(&c->buffer[i], dtype), &cell, 1);
            from_bytes(&cell, op_buffer_dtype(&c->buffer[i], dtype), v->v[i] + k, 1);
        }
}

enum status op_instance_open(struct backend *be, const struct op_case *c, enum dtype dtype,
                             struct op_instance *out) {
    *out = (struct op_instance){.be = be, .c = c, .dtype = dtype};
    int64_t most = 1;
    enum status status = STATUS_OK;
    for (int i = 0; i < c->n_buffer && status == STATUS_OK; i++) {
        const struct op_buffer *b = &c->buffer[i];
        int64_t bytes = b->count * dtype_size(op_buffer_dtype(b, dtype));
        most = size_max(most, bytes);
        status = be->alloc(be, bytes, b->name, &out->data[i]);
    }
    if (status == STATUS_OK)
        status = memory_alloc(most, 1, "staging", &out->staging);
    if (status != STATUS_OK)
        op_instance_close(out);
    return status;
}

void op_instance_close(struct op_instance *x) {
    for (int i = 0; i < x->c->n_buffer; i++)
        x->be->free(x->be, x->data[i]);
    memory_free(x->staging);
}

enum status op_instance_write(struct op_instance *x, const struct op_values *v) {
    for (int i = 0; i < x->c->n_buffer; i++) {
        const struct op_buffer *b = &x->c->buffer[i];
        enum dtype t = op_buffer_dtype(b, x->dtype);
        to_bytes(v->v[i], t, x->staging, b->count);
        TRY(x->be->upload(x->be, STREAM_COMPUTE, x->data[i], x->staging, b->count * dtype_size(t)));
        TRY(x->be->sync(x->be, STREAM_COMPUTE));
    }
    return STATUS_OK;
}

enum status op_instance_read(struct op_instance *x, struct op_values *v) {
    for (int i = 0; i < x->c->n_buffer; i++) {
        const struct op_buffer *b = &x->c->buffer[i];
        enum dtype t = op_buffer_dtype(b, x->dtype);
        TRY(x->be->download(x->be, STREAM_COMPUTE, x->staging, x->data[i],
                            b->count * dtype_size(t)));
        TRY(x->be->sync(x->be, STREAM_COMPUTE));
        from_bytes(x->staging, t, v->v[i], b->count);
    }
    return STATUS_OK;
}

enum status op_call(struct backend *be, const struct op_case *c, enum dtype dtype, op_function *f,
                    struct op_values *v) {
    struct op_instance x;
    TRY(op_instance_open(be, c, dtype, &x));
    enum status status = op_instance_write(&x, v);
    if (status == STATUS_OK)
        status = f(be, c, dtype, x.data);
    if (status == STATUS_OK)
        status = op_instance_read(&x, v);
    op_instance_close(&x);
    return status;
}

/* kernels/cpu/ref_*.c compiled with REF_REAL float under other names. */
void yardstick_fill_ops(struct backend *be);
void yardstick_fill_attention(struct backend *be);
void yardstick_fill_loss(struct backend *be);
void yardstick_tensor_fill_attention(struct backend *be);

enum status op_yardstick_open(struct backend **out) {
    TRY(backend_open("cpu-ref", out));
    yardstick_fill_ops(*out);
    yardstick_fill_attention(*out);
    yardstick_fill_loss(*out);
    return STATUS_OK;
}

enum status op_yardstick_tensor_open(struct backend **out) {
    TRY(op_yardstick_open(out));
    yardstick_tensor_fill_attention(*out);
    return STATUS_OK;
}
