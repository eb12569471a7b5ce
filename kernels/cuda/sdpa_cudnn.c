/* Attention through cuDNN: which calls it takes, plans by shape, and running them.
 * Backward takes whole tiles of 128 positions only: cuDNN's kernels are known to give NaN where the
 * last tile of keys is half empty and lse < -88 (it scores the missing keys 0, and exp(0 - lse)
 * overflows). Padding would copy nine tensors; our own kernels take the other lengths.
 * It is run in slices of the batch, then of the KV heads, that keep the stored dS within bounds. */
#include "kernels/cuda/sdpa_cudnn.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/sdpa_cudnn_graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Training needs three shapes (teacher, student forward, student backward), scoring one more for
 * each length. Plans stay: a recorded CUDA graph may hold their kernels. Past the last one our own
 * kernels take what comes. */
enum { MAX_PLAN = 64, TILE = 128, ALIGNMENT = 16 };

struct sdpa_plan {
    struct sdpa_shape shape;
    bool usable; /* false: cuDNN has no engine, remembered too */
    struct sdpa_graph graph;
    cudnnBackendDescriptor_t plan;
    int64_t workspace_bytes;
};

struct sdpa_state {
    const struct cudnn_api *api;
    cudnnHandle_t handle;
    int64_t workspace_limit;
    int n_plan;
    struct sdpa_plan plans[MAX_PLAN];
};

static void state_close(void *p) {
    struct sdpa_state *s = p;
    for (int i = 0; i < s->n_plan; i++)
        if (s->plans[i].usable)
            sdpa_graph_close(&s->plans[i].graph);
    if (s->handle)
        s->api->destroy(s->handle);
    free(s);
}

static enum status state_open(const struct backend *be, struct sdpa_state **out) {
    struct cuda_state *cuda = cuda_state_of(be);
    if (cuda->sdpa) {
        *out = cuda->sdpa;
        return STATUS_OK;
    }
    const struct cudnn_api *api;
    size_t available, total;
    TRY(cudnn_api_get(&api));
    CUDA_TRY(cudaMemGetInfo(&available, &total), "memory of the device");
    struct sdpa_state *s = calloc(1, sizeof *s);
    if (!s)
        return status_nomem("cuDNN's plans", sizeof *s);
    s->api = api;
    s->workspace_limit = (int64_t)total / 32;
    enum status status = cudnn_status(api, api->create(&s->handle), "open");
    if (status == STATUS_OK)
        status = cudnn_status(api, api->set_stream(s->handle, cuda_stream(be)), "stream");
    if (status != STATUS_OK) {
        state_close(s);
        return status;
    }
    cuda->sdpa = *out = s;
    cuda->sdpa_close = state_close;
    return STATUS_OK;
}

/* ---- which calls ---- */

static const struct heads *heads_of(const struct attention_bwd_args *a, int id) {
    const struct heads *const heads[SDPA_TENSOR_COUNT] = {
        [SDPA_Q] = &a->fwd.q, [SDPA_K] = &a->fwd.k, [SDPA_V] = &a->fwd.v, [SDPA_O] = &a->fwd.o,
        [SDPA_D_O] = &a->d_o, [SDPA_D_Q] = &a->d_q, [SDPA_D_K] = &a->d_k, [SDPA_D_V] = &a->d_v};
    return heads[id];
}

/* Why this file does not take a call, or NULL. */
static const char *refusal(const struct attention_bwd_args *call, bool backward, int sm) {
    const struct attention_args *a = &call->fwd;
    if (a->dtype != DTYPE_BF16 || a->kv_dtype != DTYPE_BF16)
        return "only BF16";
    if (a->q_first != 0 || a->n_query != a->n_key)
        return "only whole sequences, not continuations of a cache";
    if (a->window > 0 && a->window < a->n_key)
        return "no windows";
    if (a->head_dim > 256)
        return "head_dim up to 256";
    if (a->n_query < 2)
        return "a single position is for the decode kernel";
    for (int id = 0; id < SDPA_TENSOR_COUNT; id++) {
        const struct heads *h = heads_of(call, id);
        if (!h || (id > SDPA_LSE && !backward))
            continue;
        if ((uintptr_t)h->data % ALIGNMENT || h->batch % 8 || h->row % 8 || h->head % 8)
            return "heads must start at multiples of 16 bytes";
    }
    if (backward && a->n_query % TILE != 0)
        return "backward only for multiples of 128 positions: NaN is known in partial tiles";
    if (backward && sm >= 100)
        return "backward is not known to be deterministic on this GPU";
    return NULL;
}

static struct sdpa_shape shape_of(const struct attention_bwd_args *call, bool backward) {
    const struct attention_args *a = &call->fwd;
    struct sdpa_shape s = {.n_batch = a->n_batch,
                           .n_head = a->n_head,
                           .n_kv_head = a->n_kv_head,
                           .n_seq = a->n_query,
                           .head_dim = a->head_dim,
                           .backward = backward,
                           .keep_lse = backward || a->lse};
    for (int id = 0; id < SDPA_TENSOR_COUNT; id++) {
        const struct heads *h = heads_of(call, id);
        if (h && (id <= SDPA_LSE || backward)) {
            s.stride[id][0] = h->batch;
            s.stride[id][1] = h->row;
            s.stride[id][2] = h->head;
        }
    }
    return s;
}

/* dS for every query head and, where heads share, dK and dV of each before they are summed. */
static int64_t backward_bytes(const struct sdpa_shape *s) {
    int64_t shared = s->n_head == s->n_kv_head ? 0 : 2 * s->head_dim;
    return s->n_batch * s->n_head * s->n_seq * (s->n_seq + shared) * 2;
}

/* Cuts the batch, then the KV heads of one sequence, into equal slices whose workspace stays
 * within the limit; false when one KV head alone needs more. */
static bool slice(struct sdpa_shape *s, int64_t limit) {
    if (!s->backward)
        return true;
    const int64_t n_batch = s->n_batch, n_kv_head = s->n_kv_head, group = s->n_head / n_kv_head;
    for (int64_t parts = 1; parts <= n_batch; parts++) {
        s->n_batch = n_batch / parts;
        if (n_batch % parts == 0 && backward_bytes(s) <= limit)
            return true;
    }
    for (int64_t parts = 2; parts <= n_kv_head; parts++) {
        s->n_kv_head = n_kv_head / parts;
        s->n_head = s->n_kv_head * group;
        if (n_kv_head % parts == 0 && backward_bytes(s) <= limit)
            return true;
    }
    return false;
}

/* ---- plans ---- */

static enum status plan_make(struct sdpa_state *s, const struct sdpa_shape *shape,
                             struct sdpa_plan *p) {
    TRY(sdpa_graph_open(s->api, s->handle, shape, &p->graph));
    enum status status = sdpa_graph_plan(&p->graph, s->handle, &p->plan, &p->workspace_bytes);
    p->workspace_bytes = (p->workspace_bytes + 255) / 256 * 256; /* delta lies behind it */
    if (status != STATUS_OK)
        sdpa_graph_close(&p->graph);
    return status;
}

static enum status plan_get(struct sdpa_state *s, const struct sdpa_shape *shape,
                            struct sdpa_plan **out) {
    for (int i = 0; i < s->n_plan; i++) {
        struct sdpa_plan *p = &s->plans[i];
        if (memcmp(&p->shape, shape, sizeof *shape) == 0) {
            *out = p;
            return p->usable ? STATUS_OK
                             : status_fail(STATUS_FAILED, "cudnn: no engine for this attention");
        }
    }
    if (s->n_plan == MAX_PLAN)
        return status_fail(STATUS_FAILED, "cudnn: attention: more than %d shapes", MAX_PLAN);
    struct sdpa_plan *p = &s->plans[s->n_plan++];
    *p = (struct sdpa_plan){.shape = *shape};
    enum status status = plan_make(s, shape, p);
    p->usable = status == STATUS_OK;
    *out = p;
    return status;
}

/* The plan for a call, or for each of its equal slices. */
static enum status plan_for(const struct backend *be, const struct attention_bwd_args *call,
                            bool backward, struct sdpa_state **state, struct sdpa_plan **out) {
    const char *why = refusal(call, backward, cuda_state_of(be)->sm);
    if (why)
        return status_fail(STATUS_FAILED, "cudnn: attention: %s", why);
    TRY(state_open(be, state));
    struct sdpa_shape shape = shape_of(call, backward);
    if (!slice(&shape, (*state)->workspace_limit))
        return status_fail(STATUS_FAILED,
                           "cudnn: attention: backward over %lld positions needs more than the "
                           "%.1f GB set aside for it",
                           (long long)shape.n_seq, (double)(*state)->workspace_limit / 1e9);
    return plan_get(*state, &shape, out);
}

/* ---- running ---- */

/* One slice: sequences from `batch`, KV heads from `kv_head`. */
static enum status execute(struct sdpa_state *s, struct sdpa_plan *p,
                           const struct attention_bwd_args *call, int64_t batch, int64_t kv_head,
                           char *scratch) {
    const struct attention_args *a = &call->fwd;
    const int64_t head = kv_head * (a->n_head / a->n_kv_head);
    float scale = (float)a->scale, masked = -INFINITY, one = 1.0f;
    int64_t id[SDPA_ID_COUNT], n = 0;
    void *at[SDPA_ID_COUNT];
    for (int i = 0; i < SDPA_TENSOR_COUNT; i++) {
        const struct heads *h = heads_of(call, i);
        if (!h || (i > SDPA_LSE && !p->shape.backward))
            continue;
        bool kv = i == SDPA_K || i == SDPA_V || i == SDPA_D_K || i == SDPA_D_V;
        id[n] = i;
        at[n++] = (uint16_t *)h->data + batch * h->batch + (kv ? kv_head : head) * h->head;
    }
    if (p->shape.keep_lse) {
        id[n] = SDPA_LSE;
        at[n++] = (float *)a->lse + (batch * a->n_head + head) * a->n_query;
    }
    id[n] = SDPA_SCALE, at[n++] = &scale;
    id[n] = SDPA_MASKED, at[n++] = &masked;
    if (p->shape.backward) {
        id[n] = SDPA_ONE, at[n++] = &one;
        id[n] = SDPA_DELTA, at[n++] = scratch + p->workspace_bytes;
    }
    return sdpa_graph_execute(s->api, s->handle, p->plan, id, at, n, scratch);
}

static enum status run(struct backend *be, const struct attention_bwd_args *call, bool backward) {
    const struct attention_args *a = &call->fwd;
    struct sdpa_state *s;
    struct sdpa_plan *p;
    char *scratch = NULL;
    TRY(plan_for(be, call, backward, &s, &p));
    const struct sdpa_shape *part = &p->shape;
    int64_t delta = backward ? part->n_batch * part->n_head * part->n_seq * 4 : 0;
    if (p->workspace_bytes + delta > 0)
        TRY(cuda_scratch(be, CUDA_SCRATCH_SDPA, p->workspace_bytes + delta, &scratch));
    for (int64_t b = 0; b < a->n_batch; b += part->n_batch)
        for (int64_t h = 0; h < a->n_kv_head; h += part->n_kv_head)
            TRY(execute(s, p, call, b, h, scratch));
    return STATUS_OK;
}

bool sdpa_cudnn_can(const struct backend *be, const struct attention_args *a, bool backward) {
    const struct attention_bwd_args call = {
        .fwd = *a, .d_o = a->o, .d_q = a->q, .d_k = a->k, .d_v = a->v};
    struct sdpa_state *s;
    struct sdpa_plan *p;
    return plan_for(be, &call, backward, &s, &p) == STATUS_OK;
}

enum status sdpa_cudnn_forward(struct backend *be, const struct attention_args *a) {
    const struct attention_bwd_args call = {.fwd = *a};
    return run(be, &call, false);
}

enum status sdpa_cudnn_backward(struct backend *be, const struct attention_bwd_args *a) {
    return run(be, a, true);
}
