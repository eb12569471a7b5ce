/* What the rest of kernels/ sees of the CUDA backend: no header of the toolkit. */
#ifndef REGROUP_KERNELS_CUDA_CUDA_OPEN_H
#define REGROUP_KERNELS_CUDA_CUDA_OPEN_H

#include "kernels/backend.h"

/* The first device of CUDA_VISIBLE_DEVICES. Fails saying what was built for and what is there. */
enum status cuda_open(struct backend **out) MUST_USE;
/* cuda_open will find a device ("auto" takes it then). Never true of the simulator. */
bool cuda_usable(void);
/* One line for people: "cuda: built for sm_80, sm_90; device 0: NVIDIA H200 (sm_90, 139 GiB)". */
void cuda_describe(char *out, int64_t n_out);

#endif
