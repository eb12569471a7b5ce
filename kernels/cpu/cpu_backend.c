/* "cpu": the reference table, overridden by what this machine can do faster. */
#include "core/parallel.h"
#include "kernels/cpu/cpu_matmul.h"

#include <stdio.h>

enum status cpu_open(struct backend **out) {
    static const char *const isa_names[] = {"no SIMD", "AVX2", "AVX-512"};
    enum cpu_isa isa;
    TRY(cpu_choose_isa(&isa));
    TRY(cpu_ref_open(out));
    struct backend *be = *out;
    struct cpu_state *s = be->state;
    s->reference = *be;
    be->name = "cpu";
    cpu_fill_fast(be, isa);
    enum status status = cpu_matmul_open(be, isa == ISA_AVX512);
    if (status != STATUS_OK) {
        backend_close(be);
        *out = NULL;
        return status;
    }
    int version[3];
    cpu_matmul_version(version);
    snprintf(be->detail, sizeof be->detail, "%s, oneDNN %d.%d.%d, %d thread%s", isa_names[isa],
             version[0], version[1], version[2], parallel_threads(),
             parallel_threads() == 1 ? "" : "s");
    return STATUS_OK;
}
