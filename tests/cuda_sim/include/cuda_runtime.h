/* Stand-in for the CUDA toolkit's header: the language of device code as plain C++. A kernel is an
 * ordinary function; threadIdx and its like are what the scheduler (sim_schedule.cpp) says they
 * are for the thread that runs. */
#ifndef REGROUP_CUDA_SIM_CUDA_RUNTIME_H
#define REGROUP_CUDA_SIM_CUDA_RUNTIME_H

#include "cuda_runtime_api.h"
#include "device_functions.h"

#endif
