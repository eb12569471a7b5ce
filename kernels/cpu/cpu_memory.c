/* Memory, streams and state of a backend that lives on the host: the streams are the calling
 * thread, so every op has run when it returns. */
#include "core/memory.h"
#include "kernels/cpu/ref.h"

#include <stdio.h>
#include <string.h>

static enum status host_alloc(struct backend *be, int64_t bytes, const char *what, void **out) {
    (void)be;
    return memory_alloc(bytes, 1, what, out);
}

static void host_free(struct backend *be, void *p) {
    (void)be;
    memory_free(p);
}

static enum status host_transfer(struct backend *be, enum stream_id stream, void *dst,
                                 const void *src, int64_t bytes) {
    (void)be, (void)stream;
    memmove(dst, src, (size_t)bytes);
    return STATUS_OK;
}

static enum status host_copy(struct backend *be, void *dst, const void *src, int64_t bytes) {
    return host_transfer(be, STREAM_COMPUTE, dst, src, bytes);
}

static enum status host_zero(struct backend *be, void *dst, int64_t bytes) {
    (void)be;
    memset(dst, 0, (size_t)bytes);
    return STATUS_OK;
}

static enum status host_sync(struct backend *be, enum stream_id stream) {
    (void)be, (void)stream;
    return STATUS_OK;
}

static enum status host_wait(struct backend *be, enum stream_id waiter, enum stream_id on) {
    (void)be, (void)waiter, (void)on;
    return STATUS_OK;
}

static void host_close(struct backend *be) {
    cpu_state_free(be->state);
    memory_free(be);
}

enum status cpu_scratch(struct backend *be, enum cpu_scratch_use use, int64_t bytes, void *out) {
    struct cpu_state *s = be->state;
    if (bytes > s->scratch_bytes[use]) {
        memory_free(s->scratch[use]);
        s->scratch[use] = NULL;
        s->scratch_bytes[use] = 0;
        TRY(memory_alloc(bytes, 1, "kernel scratch", &s->scratch[use]));
        s->scratch_bytes[use] = bytes;
    }
    memcpy(out, &s->scratch[use], sizeof s->scratch[use]);
    return STATUS_OK;
}

void cpu_state_free(struct cpu_state *s) {
    if (!s)
        return;
    if (s->matmul_close)
        s->matmul_close(s->matmul);
    for (int i = 0; i < SCRATCH_COUNT; i++)
        memory_free(s->scratch[i]);
    memory_free(s);
}

enum status cpu_ref_open(struct backend **out) {
    struct backend *be;
    TRY(memory_alloc(1, sizeof *be, "backend", &be));
    if (memory_alloc(1, sizeof(struct cpu_state), "backend", &be->state) != STATUS_OK) {
        memory_free(be);
        return STATUS_FAILED;
    }
    be->name = "cpu-ref";
    snprintf(be->detail, sizeof be->detail, "plain loops in double precision, 1 thread");
    be->host_memory = true;
    be->has_dtype[DTYPE_F64] = be->has_dtype[DTYPE_F32] = true;
    be->has_dtype[DTYPE_BF16] = be->has_dtype[DTYPE_F16] = true;
    be->alloc = host_alloc;
    be->free = host_free;
    be->upload = host_transfer;
    be->download = host_transfer;
    be->copy = host_copy;
    be->zero = host_zero;
    be->sync = host_sync;
    be->wait = host_wait;
    be->close = host_close;
    ref_fill_ops(be);
    ref_fill_attention(be);
    ref_fill_loss(be);
    *out = be;
    return STATUS_OK;
}
