/* Backends by name. */
#include "kernels/backend.h"
#include "kernels/cpu/cpu_internal.h"
#ifdef REGROUP_CUDA
#include "kernels/cuda/cuda_open.h"
#endif

#include <stdio.h>
#include <string.h>

static enum status auto_open(struct backend **out) {
#ifdef REGROUP_CUDA
    if (cuda_usable())
        return cuda_open(out);
#endif
    return cpu_open(out);
}

static const struct {
    const char *name;
    enum status (*open)(struct backend **);
} known[] = {
    {"auto", auto_open},
    {"cpu", cpu_open},
    {"cpu-ref", cpu_ref_open},
#ifdef REGROUP_CUDA
    {"cuda", cuda_open},
#endif
};

const char *backend_names(void) {
#ifdef REGROUP_CUDA
    return "auto|cpu|cpu-ref|cuda";
#else
    return "auto|cpu|cpu-ref";
#endif
}

void backend_describe_cuda(char *out, int64_t n_out) {
#ifdef REGROUP_CUDA
    cuda_describe(out, n_out);
#else
    snprintf(out, (size_t)n_out, "cuda: not built in");
#endif
}

/* Every slot is required but graph_begin and graph_end, whose fallback is below. */
static enum status check_slots(const struct backend *be) {
#define SLOT(op) {#op, be->op != NULL},
#define OP_SLOT(op, args) SLOT(op)
    const struct {
        const char *name;
        bool filled;
    } slots[] = {SLOT(alloc) SLOT(free) SLOT(upload) SLOT(download) SLOT(copy) SLOT(zero) SLOT(sync)
                     SLOT(wait) SLOT(close) BACKEND_OPS(OP_SLOT)};
#undef OP_SLOT
#undef SLOT
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if (!slots[i].filled)
            return status_fail(STATUS_FAILED, "backend %s lacks the op %s", be->name,
                               slots[i].name);
    return STATUS_OK;
}

enum status backend_open(const char *name, struct backend **out) {
    *out = NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) {
            TRY(known[i].open(out));
            enum status status = check_slots(*out);
            if (status != STATUS_OK) {
                backend_close(*out);
                *out = NULL;
            }
            return status;
        }
    return status_fail(STATUS_USAGE, "unknown backend '%s'; known: %s", name, backend_names());
}

enum status backend_graph_begin(struct backend *be, int64_t key) {
    return be->graph_begin ? be->graph_begin(be, key) : STATUS_OK;
}

enum status backend_graph_end(struct backend *be, enum status status) {
    if (!be->graph_end)
        return status;
    if (status == STATUS_OK)
        return be->graph_end(be);
    char message[1024];
    snprintf(message, sizeof message, "%s", status_message());
    enum status end = be->graph_end(be);
    (void)end; /* one failure is reported: the first */
    return status_fail(status, "%s", message);
}

void backend_close(struct backend *be) {
    if (be)
        be->close(be);
}
