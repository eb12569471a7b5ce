/* How the cuda backend's tests begin: on the simulator the backend has to open; on a machine
 * without a GPU they are skipped, saying why. */
#ifndef REGROUP_TESTS_CUDA_SIM_CUDA_TEST_H
#define REGROUP_TESTS_CUDA_SIM_CUDA_TEST_H

#include "kernels/backend.h"

#include <stdio.h>

/* 0: *out is open. Otherwise main's exit code. */
static inline int cuda_test_open(struct backend **out) {
    if (backend_open("cuda", out) == STATUS_OK)
        return 0;
    fprintf(stderr, "%s\n", status_message());
#ifdef REGROUP_CUDA_SIM
    return 1;
#else
    return 77; /* no GPU here */
#endif
}

#endif
