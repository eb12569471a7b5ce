/* Takes cuDNN's place in a test: records the graphs that are built and computes them on the host,
 * op by op in double, so that what a graph means can be checked where no GPU runs it. */
#ifndef REGROUP_TESTS_CUDNN_ON_HOST_H
#define REGROUP_TESTS_CUDNN_ON_HOST_H

#include <stdbool.h>
#include <stdint.h>

struct cudnn_on_host {
    int64_t n_live;         /* descriptors and handles not destroyed yet */
    int64_t n_plan;         /* plans made */
    int64_t n_run;          /* plans executed */
    int64_t workspace;      /* bytes every plan asks for (and overwrites) */
    bool missing;           /* the library is not there */
    bool no_engine;         /* the heuristic finds nothing */
    bool non_deterministic; /* every engine is marked so */
};
extern struct cudnn_on_host cudnn_on_host;

#endif
