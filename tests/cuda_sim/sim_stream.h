/* Streams, events and captures: between sim_stream.cpp and sim_graph.cpp. */
#ifndef REGROUP_CUDA_SIM_STREAM_H
#define REGROUP_CUDA_SIM_STREAM_H

#include "sim_internal.h"

#include <deque>
#include <set>

namespace cuda_sim {

struct node { /* of a graph */
    const char *what;
    std::function<void()> run;
    std::set<size_t> after; /* nodes that come first */
};
struct capture {
    uint64_t id;
    cudaStream_t origin;
    enum cudaStreamCaptureMode mode;
    bool valid;
    std::vector<node> nodes;
};
struct event_state {
    uint64_t recorded, completed; /* how many records were asked for, are done */
    double seconds;
    bool timing;
    uint64_t capture_id;    /* its last record was in this capture (0: none) ... */
    std::set<size_t> after; /* ... behind these nodes */
};
struct queued {
    const char *what;
    std::function<void()> run;                   /* or: */
    std::shared_ptr<event_state> record, awaits; /* of `count` records */
    uint64_t count;
};
extern std::vector<capture *> captures; /* under way */
capture *capture_of(cudaStream_t stream);
void check_stream(const char *call, cudaStream_t stream);
void run_now(const char *what, const std::function<void()> &run);

} // namespace cuda_sim

struct CUstream_st {
    std::deque<cuda_sim::queued> queue;
    bool blocking; /* takes turns with the default stream */
    uint64_t capture_id;
    std::set<size_t> after; /* in a capture: the nodes that the next one comes behind */
};
struct CUevent_st {
    std::shared_ptr<cuda_sim::event_state> state;
};
struct CUgraph_st {
    std::vector<cuda_sim::node> nodes;
};
struct CUgraphExec_st {
    std::shared_ptr<std::vector<cuda_sim::node>> nodes;
};

#endif
