/* Threads: OpenMP inside kernels; this header only says how many. */
#ifndef REGROUP_CORE_PARALLEL_H
#define REGROUP_CORE_PARALLEL_H

int parallel_threads(void);       /* threads a parallel region will use */
void parallel_set_threads(int n); /* n < 1: the machine's */
/* First thing in main: libgomp's idle threads spin for milliseconds by default, which costs a
 * factor of several when anything else runs on the machine. Its setting is read before main, so
 * the program starts itself again with it set; returns when there is nothing to do. */
void parallel_prepare(char **argv);
int parallel_id(void); /* this thread's index inside a region, 0 outside */

#endif
