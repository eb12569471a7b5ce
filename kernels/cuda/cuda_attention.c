/* Which kernels compute a call of attention. Own: tiles on tensor cores for bf16, plain kernels for
 * the rest. cuDNN's, where it is there and takes the call: always ("cudnn"), or when it was faster
 * the first time the shape was seen ("auto"; measured once per shape and remembered, never while a
 * graph is recorded). A measured choice may differ from one run to the next; "own" and "cudnn" make
 * the same bits every time. */
#include "kernels/cuda/cuda_attention.h"

#include "core/memory.h"
#ifdef REGROUP_CUDNN
#include "kernels/cuda/sdpa_cudnn.h"
#endif

#include <limits.h>
#include <math.h>
#include <string.h>

enum { DECODE_QUERIES = 16, MOST_SPLITS = 128, BLOCKS_PER_MULTIPROCESSOR = 2 };

static enum status refuse(const char *op, const char *what, int64_t found, const char *expected) {
    return status_fail(STATUS_FAILED, "%s: %s is %lld; %s", op, what, (long long)found, expected);
}

/* Kernels count rows, positions and strides in int. */
static enum status check(const char *op, const struct attention_args *a) {
    if (a->dtype != DTYPE_F32 && a->dtype != DTYPE_BF16)
        return status_fail(STATUS_FAILED, "%s: cuda computes in F32 and BF16, not in %s", op,
                           dtype_name(a->dtype));
    if (a->kv_dtype != DTYPE_F32 && a->kv_dtype != DTYPE_BF16 && a->kv_dtype != DTYPE_F16)
        return status_fail(STATUS_FAILED, "%s: keys and values are %s; F32, BF16 and F16 are known",
                           op, dtype_name(a->kv_dtype));
    if (a->head_dim < 1 || a->head_dim > ATTENTION_PLAIN_MOST)
        return refuse(op, "head_dim", a->head_dim, "cuda takes 1 to 512");
    if (a->n_kv_head < 1 || a->n_head % a->n_kv_head)
        return refuse(op, "n_kv_head", a->n_kv_head, "it has to divide the number of heads");
    if (a->q_first + a->n_query > INT_MAX / 2 || a->n_key > INT_MAX / 2 ||
        a->n_query * a->n_head > INT_MAX / 2 ||
        a->n_query * (a->n_head / a->n_kv_head) * (a->n_head / a->n_kv_head) > UINT_MAX)
        return refuse(op, "n_query x n_head", a->n_query * a->n_head, "that is too many rows");
    const struct heads *all[] = {&a->q, &a->k, &a->v, &a->o};
    for (int i = 0; i < 4; i++)
        if (all[i]->row > INT_MAX / 64 || all[i]->head > INT_MAX)
            return refuse(op, "a stride", size_max(all[i]->row, all[i]->head), "that is too far");
    return STATUS_OK;
}

static bool whole_chunks(const struct heads *x) {
    return (uintptr_t)x->data % 16 == 0 && x->batch % 8 == 0 && x->row % 8 == 0 && x->head % 8 == 0;
}

static bool fits_tiles(const struct backend *be, const struct attention_args *a) {
    int64_t d = a->head_dim;
    return cuda_state_of(be)->shared_limit >= SHARED_MOST && a->dtype == DTYPE_BF16 &&
           a->kv_dtype == DTYPE_BF16 && isfinite(a->scale) && a->scale > 0 &&
           (d == 64 || d == 80 || d == 96 || d == 128 || d == 256) && whole_chunks(&a->q) &&
           whole_chunks(&a->k) && whole_chunks(&a->v) && whole_chunks(&a->o);
}

enum status attention_split_keys(struct backend *be, const struct attention_args *a,
                                 int64_t n_block, int unit, struct attention_split *out) {
    int64_t before = a->q_first - a->window + 1; /* keys that no query sees */
    int64_t first = a->window > 0 && before > 0 ? before : 0;
    int64_t end = size_min(a->n_key, a->q_first + a->n_query);
    int64_t n_unit = size_max(1, (end - first + unit - 1) / unit);
    int64_t busy = (int64_t)BLOCKS_PER_MULTIPROCESSOR * cuda_state_of(be)->n_multiprocessor;
    int64_t wanted = size_min(size_min(busy / n_block, n_unit), MOST_SPLITS);
    int64_t each = (n_unit + size_max(1, wanted) - 1) / size_max(1, wanted);
    *out = (struct attention_split){.n_split = (int)((n_unit + each - 1) / each),
                                    .first = (int)first,
                                    .n_key = (int)(each * unit)};
    if (out->n_split == 1)
        return STATUS_OK;
    int64_t rows = out->n_split * a->n_batch * a->n_head * a->n_query;
    TRY(cuda_scratch(be, CUDA_SCRATCH_ATTENTION, rows * (a->head_dim + 2) * (int64_t)sizeof(float),
                     &out->o));
    out->stats = out->o + rows * a->head_dim;
    return STATUS_OK;
}

static enum status own(struct backend *be, const struct attention_bwd_args *call, bool backward) {
    const struct attention_args *a = &call->fwd;
    if (backward)
        return fits_tiles(be, a) && whole_chunks(&call->d_o) && whole_chunks(&call->d_q) &&
                       whole_chunks(&call->d_k) && whole_chunks(&call->d_v)
                   ? attention_tile_backward(be, call)
                   : attention_plain_backward(be, call);
    if (!fits_tiles(be, a))
        return attention_plain_forward(be, a);
    return a->n_query <= DECODE_QUERIES ? attention_tile_decode(be, a)
                                        : attention_tile_forward(be, a);
}

#ifdef REGROUP_CUDNN
enum { MEASURED_MOST = 64, MEASURED_RUNS = 4 };

struct measured { /* of the first call of a shape */
    int64_t n_batch, n_query, n_key, n_head, n_kv_head, head_dim, q_first, window;
    int64_t q_row, kv_row, kv_head, o_row;
    bool backward, cudnn;
};
struct choices {
    cudaEvent_t begin, end;
    int64_t n;
    struct measured all[MEASURED_MOST];
};

static void close_choices(void *state) {
    struct choices *c = state;
    if (c->begin)
        (void)cudaEventDestroy(c->begin);
    if (c->end)
        (void)cudaEventDestroy(c->end);
    memory_free(c);
}

static enum status open_choices(struct cuda_state *s, struct choices **out) {
    if (!s->attention_state) {
        struct choices *c;
        TRY(memory_alloc(1, sizeof *c, "attention's measured choices", &c));
        s->attention_state = c;
        s->attention_close = close_choices;
        CUDA_TRY(cudaEventCreate(&c->begin), "making an event");
        CUDA_TRY(cudaEventCreate(&c->end), "making an event");
    }
    *out = s->attention_state;
    return STATUS_OK;
}

static enum status by(struct backend *be, const struct attention_bwd_args *call, bool backward,
                      bool cudnn) {
    if (!cudnn)
        return own(be, call, backward);
    return backward ? sdpa_cudnn_backward(be, call) : sdpa_cudnn_forward(be, &call->fwd);
}

/* The least time of a few runs: their results are the same and overwrite each other. */
static enum status measure(struct backend *be, const struct choices *c,
                           const struct attention_bwd_args *call, bool backward, bool cudnn,
                           float *least) {
    *least = INFINITY;
    for (int i = 0; i < MEASURED_RUNS; i++) {
        float ms;
        CUDA_TRY(cudaEventRecord(c->begin, cuda_stream(be)), "timing attention");
        TRY(by(be, call, backward, cudnn));
        CUDA_TRY(cudaEventRecord(c->end, cuda_stream(be)), "timing attention");
        CUDA_TRY(cudaEventSynchronize(c->end), "timing attention");
        CUDA_TRY(cudaEventElapsedTime(&ms, c->begin, c->end), "timing attention");
        *least = fminf(*least, ms);
    }
    return STATUS_OK;
}

/* Decoding reads the cache once at any key count: own kernels, nothing to measure. */
static enum status choose(struct backend *be, const struct attention_bwd_args *call, bool backward,
                          bool *cudnn) {
    struct cuda_state *s = cuda_state_of(be);
    const struct attention_args *a = &call->fwd;
    bool asked = !strcmp(s->attention, "cudnn");
    *cudnn = false;
    if (!strcmp(s->attention, "own") || (!asked && a->n_query <= DECODE_QUERIES))
        return STATUS_OK;
    if (asked) {
        *cudnn = sdpa_cudnn_can(be, a, backward);
        return STATUS_OK;
    }
    struct choices *c = NULL;
    TRY(open_choices(s, &c));
    struct measured m;
    memset(&m, 0, sizeof m);
    m.n_batch = a->n_batch, m.n_query = a->n_query, m.n_key = a->n_key, m.n_head = a->n_head;
    m.n_kv_head = a->n_kv_head, m.head_dim = a->head_dim, m.q_first = a->q_first;
    m.window = a->window, m.q_row = a->q.row, m.kv_row = a->k.row, m.kv_head = a->k.head;
    m.o_row = a->o.row, m.backward = backward;
    for (int64_t i = 0; i < c->n; i++) {
        m.cudnn = c->all[i].cudnn;
        if (!memcmp(&m, &c->all[i], sizeof m)) {
            *cudnn = m.cudnn && sdpa_cudnn_can(be, a, backward); /* this lse, these addresses */
            return STATUS_OK;
        }
    }
    if (c->n == MEASURED_MOST || cuda_capturing(be))
        return STATUS_OK;
    m.cudnn = false;
    if (a->dtype == DTYPE_BF16 && a->kv_dtype == DTYPE_BF16 && sdpa_cudnn_can(be, a, backward)) {
        float ours, theirs;
        TRY(measure(be, c, call, backward, false, &ours));
        TRY(measure(be, c, call, backward, true, &theirs));
        m.cudnn = theirs < 0.95F * ours; /* a tie must not depend on the day */
    }
    c->all[c->n++] = m;
    *cudnn = m.cudnn;
    return STATUS_OK;
}

static enum status attend(struct backend *be, const struct attention_bwd_args *call,
                          bool backward) {
    bool cudnn;
    TRY(choose(be, call, backward, &cudnn));
    return by(be, call, backward, cudnn);
}
#else
#define attend own
#endif

enum status cuda_attention(struct backend *be, const struct attention_args *a) {
    TRY(check("attention", a));
    if (!a->n_batch || !a->n_query)
        return STATUS_OK;
    const struct attention_bwd_args call = {.fwd = *a};
    return attend(be, &call, false);
}

enum status cuda_attention_bwd(struct backend *be, const struct attention_bwd_args *a) {
    TRY(check("attention_bwd", &a->fwd));
    if (a->fwd.kv_dtype != a->fwd.dtype || a->fwd.n_query != a->fwd.n_key || !a->fwd.lse)
        return status_fail(STATUS_FAILED, "attention_bwd: needs lse, keys of the compute dtype and "
                                          "as many keys as queries");
    if (!a->fwd.n_batch || !a->fwd.n_query)
        return STATUS_OK;
    return attend(be, a, true);
}
