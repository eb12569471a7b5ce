/* Backends by name. */
#include "kernels/backend.h"
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

static const struct {
    const char *name;
    enum status (*open)(struct backend **);
} known[] = {
    {"auto", cpu_open},
    {"cpu", cpu_open},
    {"cpu-ref", cpu_ref_open},
};

const char *backend_names(void) {
    return "auto|cpu|cpu-ref";
}

/* Every slot is required today; a fused slot that may be absent would be left out of this list and
 * have its fallback in the one place that calls it. */
static enum status check_slots(const struct backend *be) {
#define SLOT(op)                                                                                   \
    { #op, be->op != NULL }
    const struct {
        const char *name;
        bool filled;
    } slots[] = {
        SLOT(alloc),   SLOT(free),       SLOT(upload),    SLOT(download),    SLOT(copy),
        SLOT(zero),    SLOT(sync),       SLOT(wait),      SLOT(close),       SLOT(embed),
        SLOT(rmsnorm), SLOT(embed_bwd),  SLOT(matmul),    SLOT(bias_bwd),    SLOT(rope),
        SLOT(add),     SLOT(copy_heads), SLOT(swiglu),    SLOT(attention),   SLOT(attention_bwd),
        SLOT(adamw),   SLOT(swiglu_bwd), SLOT(head_loss), SLOT(sum_squares), SLOT(rmsnorm_bwd),
        SLOT(cast),    SLOT(difference),
    };
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

void backend_close(struct backend *be) {
    if (be)
        be->close(be);
}
