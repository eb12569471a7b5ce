/* See cudnn_on_host.h. A descriptor is its type and the attributes it was given. Tensors of four
 * dimensions; every tensor is addressed through its own strides, which gives reshape its meaning:
 * the same elements seen with other dimensions. */
#include "cudnn_on_host.h"
#include "core/tensor.h"
#include "kernels/cuda/sdpa_cudnn_graph.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct cudnn_on_host cudnn_on_host;

struct attribute {
    cudnnBackendAttributeName_t name;
    int64_t count;
    void *value;
};
struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    int n;
    struct attribute attribute[16];
    struct descriptor *from; /* what a query filled it from */
    /* A tensor's, looked up once: */
    const int64_t *dim, *stride;
    bool bf16;
    double *values; /* of a virtual one */
    void *memory;   /* of any other, in the run under way */
    struct descriptor *alias;
};

static size_t width(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
        return sizeof(int64_t);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default:
        return sizeof(int); /* the enums */
    }
}

static const struct attribute *find(const struct descriptor *d, cudnnBackendAttributeName_t name) {
    for (int i = 0; i < d->n; i++)
        if (d->attribute[i].name == name)
            return &d->attribute[i];
    return NULL;
}
static struct descriptor *linked(const struct descriptor *d, cudnnBackendAttributeName_t name) {
    const struct attribute *a = find(d, name);
    return a ? *(struct descriptor **)a->value : NULL;
}
static int enumerated(const struct descriptor *d, cudnnBackendAttributeName_t name) {
    return *(const int *)find(d, name)->value;
}

/* ---- computing ---- */

static const struct descriptor *running; /* the variant pack */

static void *address(const struct descriptor *t) {
    const struct attribute *ids = find(running, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct attribute *at = find(running, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    assert(ids->count == at->count);
    for (int64_t i = 0; i < ids->count; i++)
        if (((const int64_t *)ids->value)[i] ==
            *(const int64_t *)find(t, CUDNN_ATTR_TENSOR_UNIQUE_ID)->value)
            return ((void **)at->value)[i];
    assert(!"a tensor in memory has no address");
    return NULL;
}

/* The tensor that an op names so, NULL if none, ready for load and store. */
static struct descriptor *operand(const struct descriptor *op, cudnnBackendAttributeName_t name) {
    struct descriptor *t = linked(op, name);
    if (!t)
        return NULL;
    t->dim = find(t, CUDNN_ATTR_TENSOR_DIMENSIONS)->value;
    t->stride = find(t, CUDNN_ATTR_TENSOR_STRIDES)->value;
    t->bf16 = enumerated(t, CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_BFLOAT16;
    if (!find(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL)) {
        t->memory = address(t);
    } else if (!t->values) {
        int64_t n = 1;
        for (int k = 0; k < 4; k++)
            n += (t->dim[k] - 1) * t->stride[k];
        t->values = malloc((size_t)n * sizeof *t->values);
        for (int64_t k = 0; k < n; k++)
            t->values[k] = NAN;
    }
    return t;
}

/* Where index i lies in t's memory; a dimension of 1 is spread over what the other operand has,
 * fewer heads over groups of heads. */
static int64_t offset(const struct descriptor *t, const int64_t i[4], const int64_t whole[4]) {
    int64_t at = 0;
    for (int k = 0; k < 4; k++) {
        int64_t d = t->dim[k];
        assert(d == whole[k] || d == 1 || (k == 1 && whole[1] % d == 0));
        at += (d == whole[k] ? i[k] : d == 1 ? 0 : i[k] / (whole[k] / d)) * t->stride[k];
    }
    return at;
}

static double load(const struct descriptor *t, int64_t at) {
    if (t->alias)
        t = t->alias;
    if (t->values)
        return t->values[at];
    return (double)(t->bf16 ? bf16_to_f32(((uint16_t *)t->memory)[at]) : ((float *)t->memory)[at]);
}

static void store(const struct descriptor *t, int64_t at, double v) {
    assert(!t->alias && !find(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE));
    if (t->values)
        t->values[at] = v;
    else if (t->bf16)
        ((uint16_t *)t->memory)[at] = f32_to_bf16((float)v);
    else
        ((float *)t->memory)[at] = (float)v;
}

static bool next(int64_t i[4], const int64_t d[4]) {
    for (int k = 3; k >= 0; k--) {
        if (++i[k] < d[k])
            return true;
        i[k] = 0;
    }
    return false;
}

static void run_matmul(const struct descriptor *op) {
    struct descriptor *a = operand(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    struct descriptor *b = operand(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    struct descriptor *c = operand(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const int64_t *d = c->dim, inner = a->dim[3];
    assert(b->dim[2] == inner);
    int64_t i[4] = {0};
    do {
        double sum = 0;
        for (int64_t k = 0; k < inner; k++)
            sum += load(a, offset(a, (int64_t[]){i[0], i[1], i[2], k},
                                  (int64_t[]){d[0], d[1], d[2], inner})) *
                   load(b, offset(b, (int64_t[]){i[0], i[1], k, i[3]},
                                  (int64_t[]){d[0], d[1], inner, d[3]}));
        store(c, offset(c, i, d), sum);
    } while (next(i, d));
}

static void run_reduction(const struct descriptor *op) {
    struct descriptor *x = operand(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    struct descriptor *y = operand(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    struct descriptor *how = linked(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    bool max = enumerated(how, CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const int64_t *from = x->dim, *to = y->dim;
    int64_t i[4] = {0}, n = from[0] * from[1] * from[2] * from[3],
            n_y = to[0] * to[1] * to[2] * to[3];
    double *sum = malloc((size_t)n_y * sizeof *sum);
    for (int64_t k = 0; k < n_y; k++)
        sum[k] = max ? -INFINITY : 0;
    for (int64_t k = 0; k < n; k++, next(i, from)) {
        int64_t at = 0;
        for (int j = 0; j < 4; j++)
            at = at * to[j] + i[j] / (from[j] / to[j]);
        double v = load(x, offset(x, i, from));
        sum[at] = !max ? sum[at] + v : v > sum[at] ? v : sum[at];
    }
    int64_t j[4] = {0};
    for (int64_t k = 0; k < n_y; k++, next(j, to))
        store(y, offset(y, j, to), sum[k]);
    free(sum);
}

static double point(cudnnPointwiseMode_t mode, double x, double b, double t) {
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    default:
        assert(!"a pointwise mode that attention does not need");
        return NAN;
    }
}

static void run_pointwise(const struct descriptor *op) {
    struct descriptor *x = operand(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    struct descriptor *b = operand(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    struct descriptor *t = operand(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    struct descriptor *y = operand(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    struct descriptor *how = linked(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    cudnnPointwiseMode_t mode = (cudnnPointwiseMode_t)enumerated(how, CUDNN_ATTR_POINTWISE_MODE);
    const struct attribute *axis = find(how, CUDNN_ATTR_POINTWISE_AXIS);
    const int64_t *d = y->dim;
    int64_t i[4] = {0};
    do {
        double v = mode == CUDNN_POINTWISE_GEN_INDEX
                       ? (double)i[*(const int64_t *)axis->value]
                       : point(mode, load(x, offset(x, i, d)), b ? load(b, offset(b, i, d)) : NAN,
                               t ? load(t, offset(t, i, d)) : NAN);
        store(y, offset(y, i, d), v);
    } while (next(i, d));
}

static void run_graph(const struct descriptor *graph) {
    const struct attribute *ops = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; i < ops->count; i++) {
        const struct descriptor *op = ((struct descriptor **)ops->value)[i];
        switch (op->type) {
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
            run_matmul(op);
            break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
            run_reduction(op);
            break;
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
            run_pointwise(op);
            break;
        case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
            operand(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC)->alias =
                operand(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
            break;
        default:
            assert(!"an op that attention does not need");
        }
        if (cudnn_on_host.workspace)
            memset(linked(running, CUDNN_ATTR_VARIANT_PACK_WORKSPACE), 0xff,
                   (size_t)cudnn_on_host.workspace);
    }
}

/* ---- the functions ---- */

static size_t version(void) {
    return SDPA_CUDNN_OLDEST;
}
static void last_error(char *message, size_t max_size) {
    strncpy(message, "refused on the host", max_size);
}
static cudnnStatus_t create(cudnnHandle_t *out) {
    cudnn_on_host.n_live++;
    *out = malloc(1);
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t destroy(cudnnHandle_t handle) {
    cudnn_on_host.n_live--;
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
    (void)handle, (void)stream;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t descriptor_create(cudnnBackendDescriptorType_t type,
                                       cudnnBackendDescriptor_t *out) {
    struct descriptor *d = calloc(1, sizeof *d);
    d->type = type;
    cudnn_on_host.n_live++;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t descriptor_destroy(cudnnBackendDescriptor_t p) {
    struct descriptor *d = p;
    for (int i = 0; i < d->n; i++)
        free(d->attribute[i].value);
    free(d->values);
    free(d);
    cudnn_on_host.n_live--;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set(cudnnBackendDescriptor_t p, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t count, const void *value) {
    struct descriptor *d = p;
    assert(!d->final && !find(d, name) && d->n < 16);
    struct attribute *a = &d->attribute[d->n++];
    *a = (struct attribute){name, count, malloc((size_t)count * width(type))};
    memcpy(a->value, value, (size_t)count * width(type));
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++)
            assert(((struct descriptor **)a->value)[i]->final ||
                   ((struct descriptor **)a->value)[i]->from);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize(cudnnBackendDescriptor_t p) {
    struct descriptor *d = p;
    assert(!d->final);
    d->final = true;
    cudnn_on_host.n_plan += d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get(cudnnBackendDescriptor_t p, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, int64_t asked, int64_t *count,
                         void *out) {
    struct descriptor *d = p;
    (void)type;
    assert(asked >= 1);
    *count = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *count = !cudnn_on_host.no_engine;
        (*(struct descriptor **)out)->from = linked(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        break;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        (*(struct descriptor **)out)->from = d->from;
        break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *count = cudnn_on_host.non_deterministic;
        *(int *)out = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        break;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)out = cudnn_on_host.workspace;
        break;
    default:
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t p,
                             cudnnBackendDescriptor_t pack) {
    struct descriptor *plan = p;
    assert(handle && plan->final && ((struct descriptor *)pack)->final);
    running = pack;
    const struct descriptor *graph = linked(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->from;
    run_graph(graph);
    cudnn_on_host.n_run++;
    return CUDNN_STATUS_SUCCESS;
}

static const struct cudnn_api api = {
    .version = version,
    .last_error = last_error,
    .create = create,
    .destroy = destroy,
    .set_stream = set_stream,
    .descriptor_create = descriptor_create,
    .descriptor_destroy = descriptor_destroy,
    .finalize = finalize,
    .set = set,
    .get = get,
    .execute = execute,
};

enum status cudnn_api_get(const struct cudnn_api **out) {
    if (cudnn_on_host.missing)
        return status_fail(STATUS_FAILED, "cudnn: not on the host");
    *out = &api;
    return STATUS_OK;
}
