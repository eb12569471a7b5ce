/* How many threads. */
#include "core/parallel.h"

#include <omp.h>

int parallel_threads(void) {
    return omp_get_max_threads();
}

void parallel_set_threads(int n) {
    omp_set_num_threads(n < 1 ? omp_get_num_procs() : n);
}

int parallel_id(void) {
    return omp_get_thread_num();
}
