/* cuDNN loaded at run time: the program starts, and says what is missing, where it is not
 * installed. libcudnn.so.9 finds its own parts beside itself. */
#include "kernels/cuda/sdpa_cudnn_graph.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static struct cudnn_api table;
static const char *table_problem; /* NULL: the table is usable */
static char problem_text[256];

static void table_load(void) {
    static const struct {
        const char *name;
        size_t offset;
    } entries[] = {
        {"cudnnGetVersion", offsetof(struct cudnn_api, version)},
        {"cudnnGetLastErrorString", offsetof(struct cudnn_api, last_error)},
        {"cudnnCreate", offsetof(struct cudnn_api, create)},
        {"cudnnDestroy", offsetof(struct cudnn_api, destroy)},
        {"cudnnSetStream", offsetof(struct cudnn_api, set_stream)},
        {"cudnnBackendCreateDescriptor", offsetof(struct cudnn_api, descriptor_create)},
        {"cudnnBackendDestroyDescriptor", offsetof(struct cudnn_api, descriptor_destroy)},
        {"cudnnBackendFinalize", offsetof(struct cudnn_api, finalize)},
        {"cudnnBackendSetAttribute", offsetof(struct cudnn_api, set)},
        {"cudnnBackendGetAttribute", offsetof(struct cudnn_api, get)},
        {"cudnnBackendExecute", offsetof(struct cudnn_api, execute)},
    };
    table_problem = problem_text;
    void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(problem_text, sizeof problem_text, "%s", dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *function = dlsym(library, entries[i].name);
        if (!function) {
            snprintf(problem_text, sizeof problem_text, "libcudnn.so.9 has no %s", entries[i].name);
            return;
        }
        memcpy((char *)&table + entries[i].offset, &function, sizeof function);
    }
    if (table.version() < SDPA_CUDNN_OLDEST) {
        snprintf(problem_text, sizeof problem_text,
                 "libcudnn.so.9 is version %zu, attention needs %d or newer", table.version(),
                 SDPA_CUDNN_OLDEST);
        return;
    }
    table_problem = NULL;
}

enum status cudnn_api_get(const struct cudnn_api **out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, table_load);
    if (table_problem)
        return status_fail(STATUS_FAILED, "cudnn: %s", table_problem);
    *out = &table;
    return STATUS_OK;
}
