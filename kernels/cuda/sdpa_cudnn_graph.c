/* cuDNN's engines know attention by its shape as a graph: the ops below, in this order, are the
 * pattern they look for (cuDNN's graph API guide, "scaled dot product attention"). Before 9.21 the
 * one-op form takes no causal mask, hence the long form: the mask is made of row and column index.
 * Backward is deterministic by its form: dQ is one product with dS, which cuDNN then stores
 * (n_seq^2 bf16 for each query head). The other form sums dQ with fp32 atomics, and 9.19 has no
 * note on it. */
#include "kernels/cuda/sdpa_cudnn_graph.h"

#include <assert.h>

/* ---- descriptors ---- */

enum status cudnn_status(const struct cudnn_api *api, cudnnStatus_t status, const char *what) {
    if (status == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    char words[512] = "";
    api->last_error(words, sizeof words);
    return status_fail(STATUS_FAILED, "cudnn: %s: status %d: %s", what, (int)status, words);
}

static enum status hold(struct sdpa_graph *g, cudnnBackendDescriptorType_t type,
                        cudnnBackendDescriptor_t *out) {
    assert(g->n_held < (int)(sizeof g->held / sizeof *g->held));
    TRY(cudnn_status(g->api, g->api->descriptor_create(type, out), "descriptor"));
    g->held[g->n_held++] = *out;
    return STATUS_OK;
}

static enum status set(struct sdpa_graph *g, cudnnBackendDescriptor_t d,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t count, const void *value) {
    return cudnn_status(g->api, g->api->set(d, name, type, count, value), "attribute");
}

static enum status set_descriptor(struct sdpa_graph *g, cudnnBackendDescriptor_t d,
                                  cudnnBackendAttributeName_t name,
                                  cudnnBackendDescriptor_t value) {
    return set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* Dimensions batch, head, row, column. */
struct extent {
    int64_t dim[4], stride[4];
};

static struct extent packed(int64_t batch, int64_t head, int64_t row, int64_t column) {
    return (struct extent){{batch, head, row, column},
                           {head * row * column, row * column, column, 1}};
}

static struct extent transposed(struct extent e) {
    return (struct extent){{e.dim[0], e.dim[1], e.dim[3], e.dim[2]},
                           {e.stride[0], e.stride[1], e.stride[3], e.stride[2]}};
}

enum tensor_kind { IN_MEMORY, VIRTUAL, ON_HOST };

static enum status tensor(struct sdpa_graph *g, int64_t id, enum tensor_kind kind,
                          cudnnDataType_t type, struct extent e, cudnnBackendDescriptor_t *out) {
    const int64_t alignment = 16;
    const bool yes = true;
    TRY(hold(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, out));
    TRY(set(g, *out, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    TRY(set(g, *out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    TRY(set(g, *out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
    TRY(set(g, *out, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, e.dim));
    TRY(set(g, *out, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, e.stride));
    if (kind == VIRTUAL)
        TRY(set(g, *out, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes));
    if (kind == ON_HOST)
        TRY(set(g, *out, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes));
    return cudnn_status(g->api, g->api->finalize(*out), "tensor");
}

static enum status between(struct sdpa_graph *g, cudnnDataType_t type, struct extent e,
                           cudnnBackendDescriptor_t *out) {
    return tensor(g, g->next_id++, VIRTUAL, type, e, out);
}

static enum status on_host(struct sdpa_graph *g, enum sdpa_tensor id,
                           cudnnBackendDescriptor_t *out) {
    return tensor(g, id, ON_HOST, CUDNN_DATA_FLOAT, packed(1, 1, 1, 1), out);
}

/* ---- ops ---- */

static enum status op_close(struct sdpa_graph *g, cudnnBackendDescriptor_t op, const char *what) {
    assert(g->n_op < (int)(sizeof g->op / sizeof *g->op));
    g->op[g->n_op++] = op;
    return cudnn_status(g->api, g->api->finalize(op), what);
}

static enum status matmul(struct sdpa_graph *g, cudnnBackendDescriptor_t a,
                          cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t c) {
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how, op;
    TRY(hold(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &how));
    TRY(set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TRY(cudnn_status(g->api, g->api->finalize(how), "matmul"));
    TRY(hold(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &op));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how));
    return op_close(g, op, "matmul");
}

static enum status reduce(struct sdpa_graph *g, cudnnReduceTensorOp_t mode,
                          cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y) {
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how, op;
    TRY(hold(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, &how));
    TRY(set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode));
    TRY(set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    TRY(cudnn_status(g->api, g->api->finalize(how), "reduction"));
    TRY(hold(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, &op));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how));
    return op_close(g, op, "reduction");
}

static enum status reshape(struct sdpa_graph *g, cudnnBackendDescriptor_t x,
                           cudnnBackendDescriptor_t y) {
    cudnnBackendDescriptor_t op;
    TRY(hold(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, &op));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y));
    return op_close(g, op, "reshape");
}

/* y = mode(x, b, t); b, t NULL where the mode has no such operand; axis of an index. */
static enum status pointwise_into(struct sdpa_graph *g, cudnnPointwiseMode_t mode,
                                  cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                                  cudnnBackendDescriptor_t t, int64_t axis,
                                  cudnnBackendDescriptor_t y) {
    const cudnnDataType_t compute = mode == CUDNN_POINTWISE_GEN_INDEX ? CUDNN_DATA_INT32
                                    : mode == CUDNN_POINTWISE_CMP_GE  ? CUDNN_DATA_BOOLEAN
                                                                      : CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how, op;
    TRY(hold(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &how));
    TRY(set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode));
    TRY(set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute));
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        TRY(set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis));
    TRY(cudnn_status(g->api, g->api->finalize(how), "pointwise"));
    TRY(hold(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &op));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x));
    if (b)
        TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b));
    if (t)
        TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t));
    TRY(set_descriptor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
    return op_close(g, op, "pointwise");
}

/* The same into a new fp32 tensor that is never stored. */
static enum status pointwise(struct sdpa_graph *g, cudnnPointwiseMode_t mode,
                             cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                             struct extent e, cudnnBackendDescriptor_t *y) {
    TRY(between(g, CUDNN_DATA_FLOAT, e, y));
    return pointwise_into(g, mode, x, b, NULL, 0, *y);
}

/* ---- attention ---- */

/* What both directions start from. */
struct parts {
    struct extent q, k, scores, rows; /* scores [B, H, T, T], rows [B, H, T, 1] */
    cudnnBackendDescriptor_t in[SDPA_ID_COUNT];
};

static struct extent heads(const struct sdpa_shape *s, enum sdpa_tensor id) {
    bool kv = id == SDPA_K || id == SDPA_V || id == SDPA_D_K || id == SDPA_D_V;
    const int64_t *stride = s->stride[id];
    return (struct extent){{s->n_batch, kv ? s->n_kv_head : s->n_head, s->n_seq, s->head_dim},
                           {stride[0], stride[2], stride[1], 1}};
}

static enum status heads_in_memory(struct sdpa_graph *g, const struct sdpa_shape *s, int id,
                                   struct parts *p) {
    return tensor(g, id, IN_MEMORY, CUDNN_DATA_BFLOAT16, heads(s, id), &p->in[id]);
}

/* scale * q k^T */
static enum status scores_open(struct sdpa_graph *g, const struct sdpa_shape *s, struct parts *p,
                               cudnnBackendDescriptor_t *out) {
    cudnnBackendDescriptor_t product;
    p->q = heads(s, SDPA_Q);
    p->k = transposed(heads(s, SDPA_K));
    p->scores = packed(s->n_batch, s->n_head, s->n_seq, s->n_seq);
    p->rows = packed(s->n_batch, s->n_head, s->n_seq, 1);
    TRY(heads_in_memory(g, s, SDPA_Q, p));
    TRY(tensor(g, SDPA_K, IN_MEMORY, CUDNN_DATA_BFLOAT16, p->k, &p->in[SDPA_K]));
    TRY(on_host(g, SDPA_SCALE, &p->in[SDPA_SCALE]));
    TRY(on_host(g, SDPA_MASKED, &p->in[SDPA_MASKED]));
    TRY(between(g, CUDNN_DATA_FLOAT, p->scores, &product));
    TRY(matmul(g, p->in[SDPA_Q], p->in[SDPA_K], product));
    return pointwise(g, CUDNN_POINTWISE_MUL, product, p->in[SDPA_SCALE], p->scores, out);
}

/* x where row >= column, else -infinity. */
static enum status causal(struct sdpa_graph *g, const struct parts *p, cudnnBackendDescriptor_t x,
                          cudnnBackendDescriptor_t *out) {
    cudnnBackendDescriptor_t row, column, seen;
    TRY(between(g, CUDNN_DATA_INT32, p->scores, &row));
    TRY(pointwise_into(g, CUDNN_POINTWISE_GEN_INDEX, x, NULL, NULL, 2, row));
    TRY(between(g, CUDNN_DATA_INT32, p->scores, &column));
    TRY(pointwise_into(g, CUDNN_POINTWISE_GEN_INDEX, x, NULL, NULL, 3, column));
    TRY(between(g, CUDNN_DATA_BOOLEAN, p->scores, &seen));
    TRY(pointwise_into(g, CUDNN_POINTWISE_CMP_GE, row, column, NULL, 0, seen));
    TRY(between(g, CUDNN_DATA_FLOAT, p->scores, out));
    return pointwise_into(g, CUDNN_POINTWISE_BINARY_SELECT, x, p->in[SDPA_MASKED], seen, 0, *out);
}

static enum status forward(struct sdpa_graph *g, const struct sdpa_shape *s) {
    struct parts p = {0};
    cudnnBackendDescriptor_t x, max, sum, log_sum, prob;
    TRY(scores_open(g, s, &p, &x));
    TRY(causal(g, &p, x, &x));
    TRY(between(g, CUDNN_DATA_FLOAT, p.rows, &max));
    TRY(reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, max));
    TRY(pointwise(g, CUDNN_POINTWISE_SUB, x, max, p.scores, &x));
    TRY(pointwise(g, CUDNN_POINTWISE_EXP, x, NULL, p.scores, &x));
    TRY(between(g, CUDNN_DATA_FLOAT, p.rows, &sum));
    TRY(reduce(g, CUDNN_REDUCE_TENSOR_ADD, x, sum));
    TRY(pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, p.rows, &log_sum));
    TRY(tensor(g, SDPA_LSE, s->keep_lse ? IN_MEMORY : VIRTUAL, CUDNN_DATA_FLOAT, p.rows,
               &p.in[SDPA_LSE]));
    TRY(pointwise_into(g, CUDNN_POINTWISE_ADD, max, log_sum, NULL, 0, p.in[SDPA_LSE]));
    TRY(between(g, CUDNN_DATA_BFLOAT16, p.scores, &prob));
    TRY(pointwise_into(g, CUDNN_POINTWISE_DIV, x, sum, NULL, 0, prob));
    TRY(heads_in_memory(g, s, SDPA_V, &p));
    TRY(heads_in_memory(g, s, SDPA_O, &p));
    return matmul(g, prob, p.in[SDPA_V], p.in[SDPA_O]);
}

/* out [B, G, T, d] = x^T y, x [B, H, T, T], y [B, H, T, d], summed over the heads of a group. */
static enum status group_product(struct sdpa_graph *g, const struct sdpa_shape *s,
                                 const struct parts *p, cudnnBackendDescriptor_t x,
                                 cudnnBackendDescriptor_t y, cudnnBackendDescriptor_t out) {
    cudnnBackendDescriptor_t x_t, every_head;
    TRY(between(g, CUDNN_DATA_BFLOAT16, transposed(p->scores), &x_t));
    TRY(reshape(g, x, x_t));
    if (s->n_head == s->n_kv_head)
        return matmul(g, x_t, y, out);
    TRY(between(g, CUDNN_DATA_BFLOAT16, packed(s->n_batch, s->n_head, s->n_seq, s->head_dim),
                &every_head));
    TRY(matmul(g, x_t, y, every_head));
    return reduce(g, CUDNN_REDUCE_TENSOR_ADD, every_head, out);
}

static enum status backward(struct sdpa_graph *g, const struct sdpa_shape *s) {
    struct parts p = {0};
    cudnnBackendDescriptor_t x, prob, d_prob, v_t, k_plain;
    for (int id = SDPA_O; id < SDPA_DELTA; id++)
        if (id != SDPA_LSE)
            TRY(heads_in_memory(g, s, id, &p));

    /* delta = rowsum(dO * O) */
    TRY(pointwise(g, CUDNN_POINTWISE_MUL, p.in[SDPA_D_O], p.in[SDPA_O],
                  packed(s->n_batch, s->n_head, s->n_seq, s->head_dim), &x));
    cudnnBackendDescriptor_t row_sum;
    struct extent rows = packed(s->n_batch, s->n_head, s->n_seq, 1);
    TRY(between(g, CUDNN_DATA_FLOAT, rows, &row_sum));
    TRY(reduce(g, CUDNN_REDUCE_TENSOR_ADD, x, row_sum));
    TRY(on_host(g, SDPA_ONE, &p.in[SDPA_ONE]));
    TRY(tensor(g, SDPA_DELTA, IN_MEMORY, CUDNN_DATA_FLOAT, rows, &p.in[SDPA_DELTA]));
    TRY(pointwise_into(g, CUDNN_POINTWISE_MUL, row_sum, p.in[SDPA_ONE], NULL, 0, p.in[SDPA_DELTA]));

    /* P = exp(scale q k^T - lse), dV = P^T dO */
    TRY(scores_open(g, s, &p, &x));
    TRY(tensor(g, SDPA_LSE, IN_MEMORY, CUDNN_DATA_FLOAT, p.rows, &p.in[SDPA_LSE]));
    TRY(pointwise(g, CUDNN_POINTWISE_SUB, x, p.in[SDPA_LSE], p.scores, &x));
    TRY(causal(g, &p, x, &x));
    TRY(pointwise(g, CUDNN_POINTWISE_EXP, x, NULL, p.scores, &prob));
    TRY(group_product(g, s, &p, prob, p.in[SDPA_D_O], p.in[SDPA_D_V]));

    /* dS = scale P (dO V^T - delta), dK = dS^T Q, dQ = dS K */
    TRY(tensor(g, SDPA_V, IN_MEMORY, CUDNN_DATA_BFLOAT16, transposed(heads(s, SDPA_V)), &v_t));
    TRY(between(g, CUDNN_DATA_FLOAT, p.scores, &d_prob));
    TRY(matmul(g, p.in[SDPA_D_O], v_t, d_prob));
    TRY(pointwise(g, CUDNN_POINTWISE_SUB, d_prob, p.in[SDPA_DELTA], p.scores, &x));
    TRY(pointwise(g, CUDNN_POINTWISE_MUL, x, prob, p.scores, &x));
    TRY(pointwise(g, CUDNN_POINTWISE_MUL, x, p.in[SDPA_SCALE], p.scores, &x));
    TRY(group_product(g, s, &p, x, p.in[SDPA_Q], p.in[SDPA_D_K]));
    TRY(between(g, CUDNN_DATA_BFLOAT16, transposed(p.k), &k_plain));
    TRY(reshape(g, p.in[SDPA_K], k_plain));
    return matmul(g, x, k_plain, p.in[SDPA_D_Q]);
}

enum status sdpa_graph_open(const struct cudnn_api *api, cudnnHandle_t handle,
                            const struct sdpa_shape *s, struct sdpa_graph *out) {
    struct sdpa_graph *g = out;
    enum status status;
    *g = (struct sdpa_graph){.api = api, .next_id = SDPA_ID_COUNT};
    TRY_OUT(s->backward ? backward(g, s) : forward(g, s));
    TRY_OUT(hold(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &g->graph));
    TRY_OUT(set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_op,
                g->op));
    if (handle)
        TRY_OUT(set(g, g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle));
    TRY_OUT(cudnn_status(api, api->finalize(g->graph), "attention graph"));
    return STATUS_OK;
out:
    sdpa_graph_close(g);
    return status;
}

void sdpa_graph_close(struct sdpa_graph *g) {
    while (g->n_held > 0)
        g->api->descriptor_destroy(g->held[--g->n_held]);
}

/* ---- engines ---- */

static enum status get(struct sdpa_graph *g, cudnnBackendDescriptor_t d,
                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                       int64_t asked, int64_t *count, void *out) {
    return cudnn_status(g->api, g->api->get(d, name, type, asked, count, out), "query");
}

static enum status is_deterministic(struct sdpa_graph *g, cudnnBackendDescriptor_t config,
                                    bool *out) {
    cudnnBackendDescriptor_t engine;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n;
    TRY(hold(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    TRY(get(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine));
    TRY(get(g, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes));
    *out = true;
    for (int64_t i = 0; i < n; i++)
        *out = *out && notes[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    return STATUS_OK;
}

enum status sdpa_graph_configs(struct sdpa_graph *g, cudnnBackendDescriptor_t device,
                               struct sdpa_configs *out) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t heuristic, config[SDPA_MAX_CONFIG];
    int64_t n = 0;
    *out = (struct sdpa_configs){0};
    TRY(hold(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristic));
    TRY(set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, g->graph));
    TRY(set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
    if (device)
        TRY(set_descriptor(g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device));
    TRY(cudnn_status(g->api, g->api->finalize(heuristic), "no engine for this attention"));
    for (int i = 0; i < SDPA_MAX_CONFIG; i++)
        TRY(hold(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]));
    TRY(get(g, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            SDPA_MAX_CONFIG, &n, config));
    for (int64_t i = 0; i < n; i++) {
        bool deterministic;
        TRY(is_deterministic(g, config[i], &deterministic));
        if (deterministic)
            out->config[out->n++] = config[i];
    }
    if (out->n == 0)
        return status_fail(STATUS_FAILED, "cudnn: no %sengine for this attention",
                           n > 0 ? "deterministic " : "");
    return STATUS_OK;
}

enum status sdpa_graph_plan(struct sdpa_graph *g, cudnnHandle_t handle,
                            cudnnBackendDescriptor_t *out, int64_t *workspace_bytes) {
    struct sdpa_configs configs;
    int64_t n;
    TRY(sdpa_graph_configs(g, NULL, &configs));
    enum status status = STATUS_FAILED;
    for (int i = 0; i < configs.n && status != STATUS_OK; i++) {
        TRY(hold(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, out));
        TRY(set(g, *out, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle));
        TRY(set_descriptor(g, *out, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs.config[i]));
        status = cudnn_status(g->api, g->api->finalize(*out), "attention plan");
    }
    TRY(status);
    return get(g, *out, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n,
               workspace_bytes);
}

enum status sdpa_graph_execute(const struct cudnn_api *api, cudnnHandle_t handle,
                               cudnnBackendDescriptor_t plan, const int64_t *id, void *const *at,
                               int64_t n, void *workspace) {
    struct sdpa_graph g = {.api = api};
    cudnnBackendDescriptor_t pack;
    enum status status;
    TRY_OUT(hold(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    TRY_OUT(set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, id));
    TRY_OUT(set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, at));
    TRY_OUT(set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace));
    TRY_OUT(cudnn_status(api, api->finalize(pack), "attention's arguments"));
    status = cudnn_status(api, api->execute(handle, plan, pack), "attention");
out:
    sdpa_graph_close(&g);
    return status;
}
