/* How many threads. */
#include "core/parallel.h"

#include <omp.h>
#include <stdlib.h>
#include <unistd.h>

int parallel_threads(void) {
    return omp_get_max_threads();
}

void parallel_set_threads(int n) {
    omp_set_num_threads(n < 1 ? omp_get_num_procs() : n);
}

int parallel_id(void) {
    return omp_get_thread_num();
}

void parallel_prepare(char **argv) {
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return; /* the user's choice, or ours the second time */
    /* A few microseconds of spinning cover the gaps between the loops of one step. */
    if (setenv("GOMP_SPINCOUNT", "2000", 1) == 0)
        execv("/proc/self/exe", argv);
}
