/* Stream capture and graphs: the nodes of a launched graph run in a drawn order that respects
 * what each of them comes behind. Calls that a capture forbids are refused and void it. */
#include "sim_stream.h"

namespace cuda_sim {

std::vector<capture *> captures;

namespace {
uint64_t n_capture;
auto &graphs = *new std::set<CUgraph_st *>;
auto &executables = *new std::set<CUgraphExec_st *>;

void run_graph(const std::vector<node> &nodes) {
    std::vector<bool> done(nodes.size());
    for (size_t left = nodes.size(); left > 0; left--) {
        std::vector<size_t> able;
        for (size_t i = 0; i < nodes.size(); i++) {
            bool free = !done[i];
            for (size_t before : nodes[i].after)
                free = free && done[before];
            if (free)
                able.push_back(i);
        }
        size_t i = able[random_below((uint32_t)able.size())];
        run_now(nodes[i].what, nodes[i].run);
        done[i] = true;
    }
}
} // namespace

capture *capture_of(cudaStream_t stream) {
    if (!stream || stream == cudaStreamLegacy)
        return nullptr;
    for (capture *c : captures)
        if (c->id == stream->capture_id)
            return c;
    return nullptr;
}

bool capture_refuses(const char *call) {
    bool refused = false;
    for (capture *c : captures)
        if (c->mode != cudaStreamCaptureModeRelaxed || !strstr(call, "Malloc")) {
            c->valid = false;
            refused = true;
        }
    return refused;
}

} // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    SIM_LOCK;
    check_stream("cudaStreamBeginCapture", stream);
    if (!stream || stream == cudaStreamLegacy)
        return set_error(cudaErrorStreamCaptureUnsupported);
    if (capture_of(stream))
        die("cudaStreamBeginCapture: the stream is being captured already");
    captures.push_back(new capture{++n_capture, stream, mode, true, {}});
    stream->capture_id = n_capture;
    stream->after.clear();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    SIM_LOCK;
    check_stream("cudaStreamEndCapture", stream);
    capture *c = capture_of(stream);
    *graph = nullptr;
    if (!c || c->origin != stream)
        die("cudaStreamEndCapture: no capture was begun on this stream");
    std::set<size_t> ends; /* nodes that nothing comes behind */
    for (size_t i = 0; i < c->nodes.size(); i++)
        ends.insert(i);
    for (const node &n : c->nodes)
        for (size_t before : n.after)
            ends.erase(before);
    bool joined = true;
    for (size_t end : ends)
        joined = joined && stream->after.count(end);
    cudaError_t error = !c->valid ? cudaErrorStreamCaptureInvalidated
                        : joined  ? cudaSuccess
                                  : cudaErrorStreamCaptureUnjoined;
    if (error == cudaSuccess) {
        *graph = new CUgraph_st{std::move(c->nodes)};
        graphs.insert(*graph);
    }
    captures.erase(std::find(captures.begin(), captures.end(), c));
    delete c;
    return set_error(error);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    SIM_LOCK;
    check_stream("cudaStreamIsCapturing", stream);
    const capture *c = capture_of(stream);
    *status = !c         ? cudaStreamCaptureStatusNone
              : c->valid ? cudaStreamCaptureStatusActive
                         : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
}

static void check_graph(const char *call, cudaGraph_t graph) {
    if (!graphs.count(graph))
        die("%s: %p is no live graph", call, (void *)graph);
}
static void check_executable(const char *call, cudaGraphExec_t exec) {
    if (!executables.count(exec))
        die("%s: %p is no live executable graph", call, (void *)exec);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n) {
    SIM_LOCK;
    check_graph("cudaGraphGetNodes", graph);
    if (nodes)
        die("cudaGraphGetNodes: only their number is simulated");
    *n = graph->nodes.size();
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    SIM_LOCK;
    check_graph("cudaGraphInstantiate", graph);
    *exec = new CUgraphExec_st{std::make_shared<std::vector<node>>(graph->nodes)};
    executables.insert(*exec);
    return cudaSuccess;
}
/* The same nodes behind the same ones: only their arguments may be others. */
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *result) {
    SIM_LOCK;
    check_graph("cudaGraphExecUpdate", graph);
    check_executable("cudaGraphExecUpdate", exec);
    *result = {cudaGraphExecUpdateSuccess, nullptr, nullptr};
    bool same = exec->nodes->size() == graph->nodes.size();
    for (size_t i = 0; same && i < graph->nodes.size(); i++)
        same = !strcmp((*exec->nodes)[i].what, graph->nodes[i].what) &&
               (*exec->nodes)[i].after == graph->nodes[i].after;
    if (!same) {
        result->result = cudaGraphExecUpdateErrorTopologyChanged;
        return set_error(cudaErrorGraphExecUpdateFailure);
    }
    exec->nodes = std::make_shared<std::vector<node>>(graph->nodes); /* launched ones keep theirs */
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
    SIM_LOCK;
    check_executable("cudaGraphUpload", exec);
    check_stream("cudaGraphUpload", stream);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    SIM_LOCK;
    check_executable("cudaGraphLaunch", exec);
    if (capture_of(stream))
        die("cudaGraphLaunch: into a capture, which is not simulated");
    auto nodes = exec->nodes;
    return enqueue(stream, "cudaGraphLaunch", [nodes] { run_graph(*nodes); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    SIM_LOCK;
    check_graph("cudaGraphDestroy", graph);
    graphs.erase(graph);
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    SIM_LOCK;
    check_executable("cudaGraphExecDestroy", exec);
    executables.erase(exec);
    delete exec;
    return cudaSuccess;
}

} /* extern "C" */
