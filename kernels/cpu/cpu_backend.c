/* "cpu": the reference table, overridden by what this machine can do faster. */
#include "core/parallel.h"
#include "kernels/cpu/cpu_matmul.h"

#include <stdio.h>

enum status cpu_open(struct backend **out) {
    TRY(cpu_ref_open(out));
    struct backend *be = *out;
    struct cpu_state *s = be->state;
    s->reference = *be;
    be->name = "cpu";
    bool avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
    enum status status = cpu_matmul_open(be, avx512);
    if (status != STATUS_OK) {
        backend_close(be);
        *out = NULL;
        return status;
    }
    int version[3];
    cpu_matmul_version(version);
    snprintf(be->detail, sizeof be->detail, "oneDNN %d.%d.%d, %d threads", version[0], version[1],
             version[2], parallel_threads());
    return STATUS_OK;
}
