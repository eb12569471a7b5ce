/* Threads: OpenMP inside kernels; this header only says how many. */
#ifndef REGROUP_CORE_PARALLEL_H
#define REGROUP_CORE_PARALLEL_H

int parallel_threads(void);       /* threads a parallel region will use */
void parallel_set_threads(int n); /* n < 1: the machine's */
int parallel_id(void);            /* this thread's index inside a region, 0 outside */

#endif
