/* "cuda": finds the device, fills the table. */
#include "core/memory.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status cuda_fail(const char *what, cudaError_t error) {
    (void)cudaGetLastError(); /* what is reported here must not be reported again */
    return status_fail(STATUS_FAILED, "cuda: %s: %s", what, cudaGetErrorString(error));
}

enum status cuda_launch_status(struct backend *be, const char *op) {
    (void)be;
    CUDA_TRY(cudaGetLastError(), op);
    return STATUS_OK;
}

/* Why there is no usable device; STATUS_OK when device 0 is one. */
static enum status find_device(struct cudaDeviceProp *prop) {
    int n = 0, driver = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return status_fail(STATUS_FAILED, "cuda: no device found: no NVIDIA driver is installed");
    if (error != cudaSuccess || n == 0)
        return status_fail(STATUS_FAILED, "cuda: no device found (driver for CUDA %d.%d): %s",
                           driver / 1000, driver % 1000 / 10,
                           error != cudaSuccess ? cudaGetErrorString(error)
                                                : "CUDA_VISIBLE_DEVICES may hide it");
    CUDA_TRY(cudaGetDeviceProperties(prop, 0), "reading the properties of device 0");
    if (10 * prop->major + prop->minor < REGROUP_CUDA_MIN_SM)
        return status_fail(STATUS_FAILED,
                           "cuda: built for %s; this GPU (%s) is sm_%d%d: "
                           "not supported",
                           REGROUP_CUDA_BUILT_FOR, prop->name, prop->major, prop->minor);
    return STATUS_OK;
}

bool cuda_usable(void) {
#ifdef REGROUP_CUDA_SIM
    return false;
#else
    struct cudaDeviceProp prop;
    return find_device(&prop) == STATUS_OK && cuda_matmul_load() == STATUS_OK;
#endif
}

static double gib(size_t bytes) {
    return (double)bytes / 0x1p30;
}

void cuda_describe(char *out, int64_t n_out) {
    struct cudaDeviceProp prop;
    if (find_device(&prop) != STATUS_OK)
        snprintf(out, (size_t)n_out, "cuda: built for %s; %s", REGROUP_CUDA_BUILT_FOR,
                 status_message() + strlen("cuda: "));
    else
        snprintf(out, (size_t)n_out, "cuda: built for %s; device 0: %s (sm_%d%d, %.1f GiB)",
                 REGROUP_CUDA_BUILT_FOR, prop.name, prop.major, prop.minor,
                 gib(prop.totalGlobalMem));
}

static enum status choose_attention(struct cuda_state *s) {
    static const char *const known[] = {"auto", "own", "cudnn"};
    const char *asked = getenv("REGROUP_ATTENTION");
    s->attention = asked && *asked ? NULL : known[0];
    for (size_t i = 0; !s->attention && i < sizeof known / sizeof *known; i++)
        if (!strcmp(asked, known[i]))
            s->attention = known[i];
    if (!s->attention)
        return status_fail(STATUS_USAGE, "REGROUP_ATTENTION is '%s'; expected own, cudnn or auto",
                           asked);
#ifndef REGROUP_CUDNN
    if (!strcmp(s->attention, "cudnn"))
        return status_fail(STATUS_USAGE, "attention by cudnn: this program was built without it");
#endif
    return STATUS_OK;
}

static enum status open_state(struct backend *be) {
    struct cuda_state *s = cuda_state_of(be);
    struct cudaDeviceProp prop;
    TRY(find_device(&prop));
    TRY(choose_attention(s));
    s->sm = 10 * prop.major + prop.minor;
    s->n_multiprocessor = prop.multiProcessorCount;
    s->shared_limit = (int)prop.sharedMemPerBlockOptin;
    CUDA_TRY(cudaSetDevice(s->device), "choosing device 0");
    for (int i = 0; i < 2; i++) {
        CUDA_TRY(cudaStreamCreateWithFlags(&s->stream[i], cudaStreamNonBlocking),
                 "making a stream");
        CUDA_TRY(cudaEventCreateWithFlags(&s->event[i], cudaEventDisableTiming), "making an event");
    }
    TRY(cuda_memory_open(s));
    TRY(cuda_matmul_open(s));
    snprintf(be->detail, sizeof be->detail, "%.100s, sm_%d, %.1f GiB, cuBLASLt %s", prop.name,
             s->sm, gib(prop.totalGlobalMem), cuda_matmul_version(s));
    return STATUS_OK;
}

static void cuda_close(struct backend *be) {
    struct cuda_state *s = cuda_state_of(be);
    if (s->stream[STREAM_COMPUTE])
        cuda_graph_drop(be);
    (void)cudaDeviceSynchronize();
    void (*const close[])(void *) = {s->matmul_close, s->attention_close, s->sdpa_close};
    void *const state[] = {s->matmul, s->attention_state, s->sdpa};
    for (int i = 0; i < 3; i++)
        if (close[i])
            close[i](state[i]);
    cuda_graph_close(s);
    cuda_memory_close(s);
    for (int i = 0; i < 2; i++) {
        if (s->event[i])
            (void)cudaEventDestroy(s->event[i]);
        if (s->stream[i])
            (void)cudaStreamDestroy(s->stream[i]);
    }
    memory_free(s);
    memory_free(be);
}

enum status cuda_open(struct backend **out) {
    struct backend *be;
    TRY(memory_alloc(1, sizeof *be, "backend", &be));
    if (memory_alloc(1, sizeof(struct cuda_state), "backend", &be->state) != STATUS_OK) {
        memory_free(be);
        return STATUS_FAILED;
    }
    be->name = "cuda";
    be->has_dtype[DTYPE_F32] = be->has_dtype[DTYPE_BF16] = true;
    be->close = cuda_close;
    cuda_fill_memory(be);
    be->graph_begin = cuda_graph_begin;
    be->graph_end = cuda_graph_end;
#define CUDA_FILL(op, args) be->op = cuda_##op;
    BACKEND_OPS(CUDA_FILL)
    enum status status = open_state(be);
    if (status != STATUS_OK) {
        cuda_close(be);
        return status;
    }
    *out = be;
    return STATUS_OK;
}
