/* What lies between graph_begin and graph_end, launched as one graph: a step of a thousand kernels
 * costs the host one launch. Arguments change from step to step, so the work is recorded each
 * time, and the graph made before for the same key takes the new arguments over. */
#include "core/memory.h"
#include "kernels/cuda/cuda_memory.h"

enum { GRAPHS = 16 };

struct cuda_graphs {
    struct {
        int64_t key;
        bool warm; /* ran once as plain launches: scratch, plans and choices are made */
        cudaGraphExec_t graph;
    } entry[GRAPHS];
    int n, oldest;
    int current; /* what graph_begin was given; -1: outside */
    bool capturing;
};

bool cuda_capturing(const struct backend *be) {
    const struct cuda_graphs *g = cuda_state_of(be)->graphs;
    return g && g->capturing;
}

static int find_entry(struct cuda_graphs *g, int64_t key) {
    for (int i = 0; i < g->n; i++)
        if (g->entry[i].key == key)
            return i;
    int i = g->n < GRAPHS ? g->n++ : g->oldest++ % GRAPHS;
    if (g->entry[i].graph)
        (void)cudaGraphExecDestroy(g->entry[i].graph);
    g->entry[i].key = key;
    g->entry[i].warm = false;
    g->entry[i].graph = NULL;
    return i;
}

enum status cuda_graph_begin(struct backend *be, int64_t key) {
    struct cuda_state *s = cuda_state_of(be);
    if (!s->graphs) {
        TRY(memory_alloc(1, sizeof *s->graphs, "graphs", &s->graphs));
        s->graphs->current = -1;
    }
    struct cuda_graphs *g = s->graphs;
    cuda_graph_drop(be);
    g->current = find_entry(g, key);
    if (!g->entry[g->current].warm)
        return STATUS_OK;
    /* Relaxed: scratch may grow meanwhile. Refused: plain launches. */
    g->capturing =
        cudaStreamBeginCapture(cuda_stream(be), cudaStreamCaptureModeRelaxed) == cudaSuccess;
    (void)cudaGetLastError();
    return STATUS_OK;
}

static enum status launch(struct backend *be, cudaGraph_t recorded, cudaGraphExec_t *graph) {
    cudaGraphExecUpdateResultInfo info;
    if (*graph && cudaGraphExecUpdate(*graph, recorded, &info) != cudaSuccess) {
        (void)cudaGetLastError(); /* another shape under this key */
        (void)cudaGraphExecDestroy(*graph);
        *graph = NULL;
    }
    if (!*graph)
        CUDA_TRY(cudaGraphInstantiate(graph, recorded, 0), "making a graph of the step");
    CUDA_TRY(cudaGraphLaunch(*graph, cuda_stream(be)), "launching the step's graph");
    return STATUS_OK;
}

enum status cuda_graph_end(struct backend *be) {
    struct cuda_graphs *g = cuda_state_of(be)->graphs;
    if (!g || g->current < 0)
        return status_fail(STATUS_FAILED, "cuda: graph_end without graph_begin");
    int i = g->current;
    g->current = -1;
    if (!g->capturing) {
        g->entry[i].warm = true;
        return STATUS_OK;
    }
    cudaGraph_t recorded = NULL;
    g->capturing = false;
    CUDA_TRY(cudaStreamEndCapture(cuda_stream(be), &recorded), "recording the step");
    enum status status = launch(be, recorded, &g->entry[i].graph);
    (void)cudaGraphDestroy(recorded);
    cuda_free_retired(cuda_state_of(be));
    return status;
}

void cuda_graph_drop(struct backend *be) {
    struct cuda_graphs *g = cuda_state_of(be)->graphs;
    cudaGraph_t recorded = NULL;
    if (!g)
        return;
    if (g->capturing && cudaStreamEndCapture(cuda_stream(be), &recorded) == cudaSuccess && recorded)
        (void)cudaGraphDestroy(recorded);
    (void)cudaGetLastError();
    g->capturing = false;
    g->current = -1;
}

void cuda_graph_close(struct cuda_state *s) {
    for (int i = 0; s->graphs && i < s->graphs->n; i++)
        if (s->graphs->entry[i].graph)
            (void)cudaGraphExecDestroy(s->graphs->entry[i].graph);
    memory_free(s->graphs);
}
