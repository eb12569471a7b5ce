/* Device memory, the two streams, and the scratch. Transfers go through pinned slots, so that they
 * run while the host goes on: an upload's bytes are copied into a slot at once; a download's stay
 * in its slot until sync, or until the ring comes round to that slot, and are then handed over. */
#include "kernels/cuda/cuda_memory.h"
#include "core/memory.h"

#include <string.h>

enum { SLOTS = 8 };
static const int64_t slot_bytes = 4 << 20;

struct cuda_staging {
    char *memory; /* SLOTS * slot_bytes, pinned */
    struct {
        cudaEvent_t done;
        bool used;
        void *host; /* where a download goes; NULL: nothing to hand over */
        int64_t bytes;
    } slot[SLOTS];
    int next; /* the slot used longest ago */
};

/* What cannot be recorded into a graph, and would wait or run at the wrong time. */
static enum status refuse_capture(const struct backend *be, const char *what) {
    if (cuda_capturing(be))
        return status_fail(STATUS_FAILED, "cuda: %s between graph_begin and graph_end", what);
    return STATUS_OK;
}

static enum status device_alloc(int64_t bytes, const char *what, void **out) {
    cudaError_t error = cudaMalloc(out, (size_t)size_max(bytes, 16));
    if (error == cudaErrorMemoryAllocation) {
        size_t free = 0, total = 0;
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free, &total);
        return status_fail(STATUS_FAILED,
                           "cuda: out of device memory: %s needs %.1f MiB; %.1f of %.1f MiB are "
                           "free. A smaller batch or a shorter sequence needs less",
                           what, (double)bytes / 0x1p20, (double)free / 0x1p20,
                           (double)total / 0x1p20);
    }
    CUDA_TRY(error, what);
    memory_count_alloc();
    return STATUS_OK;
}

/* What is on its way may still use the memory. */
static void device_free(void *p) {
    if (p) {
        (void)cudaDeviceSynchronize();
        (void)cudaFree(p);
    }
}

static enum status memory_op_alloc(struct backend *be, int64_t bytes, const char *what,
                                   void **out) {
    TRY(refuse_capture(be, "alloc"));
    TRY(device_alloc(bytes, what, out));
    CUDA_TRY(cudaMemsetAsync(*out, 0, (size_t)bytes, cuda_stream(be)), what);
    CUDA_TRY(cudaStreamSynchronize(cuda_stream(be)), what); /* either stream may use it now */
    return STATUS_OK;
}

static void memory_op_free(struct backend *be, void *p) {
    (void)be;
    device_free(p);
}

static void hand_over(struct cuda_staging *g, int i) {
    if (g->slot[i].host)
        memcpy(g->slot[i].host, g->memory + i * slot_bytes, (size_t)g->slot[i].bytes);
    g->slot[i].host = NULL;
}

/* The next slot, when what it was last used for is over. */
static enum status take_slot(struct cuda_staging *g, int *out) {
    int i = g->next;
    g->next = (i + 1) % SLOTS;
    if (g->slot[i].used)
        CUDA_TRY(cudaEventSynchronize(g->slot[i].done), "waiting for a transfer");
    hand_over(g, i);
    g->slot[i].used = true;
    *out = i;
    return STATUS_OK;
}

/* dst or src is `host`; in pieces of a slot. */
static enum status transfer(struct backend *be, enum stream_id id, void *device, void *host,
                            const void *source, int64_t bytes) {
    struct cuda_state *s = cuda_state_of(be);
    struct cuda_staging *g = s->staging[id];
    TRY(refuse_capture(be, host ? "download" : "upload"));
    for (int64_t at = 0; at < bytes; at += slot_bytes) {
        int64_t n = size_min(bytes - at, slot_bytes);
        int i = 0;
        TRY(take_slot(g, &i));
        char *slot = g->memory + i * slot_bytes;
        if (host) {
            CUDA_TRY(cudaMemcpyAsync(slot, (const char *)device + at, (size_t)n,
                                     cudaMemcpyDeviceToHost, s->stream[id]),
                     "download");
            g->slot[i].host = (char *)host + at;
            g->slot[i].bytes = n;
        } else {
            memcpy(slot, (const char *)source + at, (size_t)n);
            CUDA_TRY(cudaMemcpyAsync((char *)device + at, slot, (size_t)n, cudaMemcpyHostToDevice,
                                     s->stream[id]),
                     "upload");
        }
        CUDA_TRY(cudaEventRecord(g->slot[i].done, s->stream[id]), "recording a transfer");
    }
    return STATUS_OK;
}

static enum status memory_op_upload(struct backend *be, enum stream_id id, void *dst,
                                    const void *host, int64_t bytes) {
    return transfer(be, id, dst, NULL, host, bytes);
}

static enum status memory_op_download(struct backend *be, enum stream_id id, void *host,
                                      const void *src, int64_t bytes) {
    void *device;
    memcpy(&device, &src, sizeof device);
    return transfer(be, id, device, host, NULL, bytes);
}

static enum status memory_op_copy(struct backend *be, void *dst, const void *src, int64_t bytes) {
    CUDA_TRY(cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDeviceToDevice, cuda_stream(be)),
             "copy");
    return STATUS_OK;
}

static enum status memory_op_zero(struct backend *be, void *dst, int64_t bytes) {
    CUDA_TRY(cudaMemsetAsync(dst, 0, (size_t)bytes, cuda_stream(be)), "zero");
    return STATUS_OK;
}

static enum status memory_op_sync(struct backend *be, enum stream_id id) {
    struct cuda_state *s = cuda_state_of(be);
    struct cuda_staging *g = s->staging[id];
    TRY(refuse_capture(be, "sync"));
    CUDA_TRY(cudaStreamSynchronize(s->stream[id]), "waiting for the device");
    for (int n = 0; n < SLOTS; n++) /* oldest first: the later of two downloads stays */
        hand_over(g, (g->next + n) % SLOTS);
    return STATUS_OK;
}

static enum status memory_op_wait(struct backend *be, enum stream_id waiter, enum stream_id on) {
    struct cuda_state *s = cuda_state_of(be);
    TRY(refuse_capture(be, "wait"));
    if (waiter == on)
        return STATUS_OK;
    CUDA_TRY(cudaEventRecord(s->event[on], s->stream[on]), "recording an event");
    CUDA_TRY(cudaStreamWaitEvent(s->stream[waiter], s->event[on], 0), "ordering the streams");
    return STATUS_OK;
}

void cuda_fill_memory(struct backend *be) {
    be->alloc = memory_op_alloc;
    be->free = memory_op_free;
    be->upload = memory_op_upload;
    be->download = memory_op_download;
    be->copy = memory_op_copy;
    be->zero = memory_op_zero;
    be->sync = memory_op_sync;
    be->wait = memory_op_wait;
}

/* A region outgrown while a graph is recorded is still named by what was recorded before. */
enum status cuda_scratch(struct backend *be, enum cuda_scratch_use use, int64_t bytes, void *out) {
    struct cuda_state *s = cuda_state_of(be);
    if (bytes > s->scratch_bytes[use]) {
        if (cuda_capturing(be) && s->scratch[use]) {
            if (s->n_retired == CUDA_RETIRED)
                return status_fail(STATUS_FAILED, "cuda: scratch grew too often in one graph");
            s->retired[s->n_retired++] = s->scratch[use];
        } else {
            device_free(s->scratch[use]);
        }
        s->scratch[use] = NULL;
        s->scratch_bytes[use] = 0;
        TRY(device_alloc(bytes, "kernel scratch", &s->scratch[use]));
        s->scratch_bytes[use] = bytes;
    }
    memcpy(out, &s->scratch[use], sizeof s->scratch[use]);
    return STATUS_OK;
}

void cuda_free_retired(struct cuda_state *s) {
    while (s->n_retired > 0)
        device_free(s->retired[--s->n_retired]);
}

enum status cuda_memory_open(struct cuda_state *s) {
    for (int id = 0; id < 2; id++) {
        TRY(memory_alloc(1, sizeof *s->staging[id], "staging", &s->staging[id]));
        CUDA_TRY(cudaMallocHost((void **)&s->staging[id]->memory, (size_t)(SLOTS * slot_bytes)),
                 "pinning 32 MiB for transfers");
        for (int i = 0; i < SLOTS; i++)
            CUDA_TRY(
                cudaEventCreateWithFlags(&s->staging[id]->slot[i].done, cudaEventDisableTiming),
                "making an event");
    }
    return STATUS_OK;
}

void cuda_memory_close(struct cuda_state *s) {
    for (int id = 0; id < 2; id++) {
        struct cuda_staging *g = s->staging[id];
        if (!g)
            continue;
        for (int i = 0; i < SLOTS; i++)
            if (g->slot[i].done)
                (void)cudaEventDestroy(g->slot[i].done);
        if (g->memory)
            (void)cudaFreeHost(g->memory);
        memory_free(g);
    }
    cuda_free_retired(s);
    for (int use = 0; use < CUDA_SCRATCH_COUNT; use++)
        device_free(s->scratch[use]);
}
