/* cuBLASLt on the CPU: everything a call says is checked (shapes, leading dimensions, types, that
 * each matrix lies in one live allocation and is aligned as the algorithm was chosen for), then it
 * is queued like a kernel and computed in single precision. */
#include "core/tensor.h"
#include "sim_internal.h"

#include "cublasLt.h"

#include <set>

using namespace cuda_sim;

struct cublasLtContext {
    char unused;
};
struct cublasLtMatmulDescSim {
    cublasComputeType_t compute;
    cudaDataType_t scale, bias_type;
    bool trans_a, trans_b, has_bias, has_bias_type;
    const void *bias;
};
struct cublasLtMatrixLayoutSim {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};
struct cublasLtMatmulPreferenceSim {
    uint64_t workspace;
    uint32_t align[4];
};

namespace {
using layout = cublasLtMatrixLayoutSim;
auto &alive = *new std::set<const void *>; /* handles, descriptors, layouts, preferences */

void check_alive(const char *call, const void *p) {
    if (!alive.count(p))
        die("%s: %p was not created, or is destroyed already", call, p);
}
template <class T> cublasStatus_t create(T **out, const T &value) {
    SIM_LOCK;
    *out = new T(value);
    alive.insert(*out);
    return CUBLAS_STATUS_SUCCESS;
}
template <class T> cublasStatus_t destroy(const char *call, T *p) {
    SIM_LOCK;
    check_alive(call, p);
    alive.erase(p);
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

size_t size_of(cudaDataType_t type) {
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}
size_t bytes_of(const layout &l) { /* column-major */
    return l.rows && l.columns ? ((l.columns - 1) * (uint64_t)l.ld + l.rows) * size_of(l.type) : 0;
}
uint64_t mix(uint64_t hash, uint64_t v) {
    return (hash ^ v) * 0x9e3779b97f4a7c15u + (hash >> 29);
}

struct product { /* everything but the addresses */
    bool trans_a, trans_b, bias;
    layout a, b, c, d;
    uint64_t m, n, k;

    uint64_t hash() const {
        uint64_t h = mix(trans_a + 2u * trans_b + 4u * bias, m);
        for (const layout *l : {&a, &b, &c, &d})
            h = mix(mix(mix(mix(h, l->type), l->rows), l->columns), (uint64_t)l->ld);
        return h;
    }
};

/* Dies on what the library refuses. */
product describe(const char *call, cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                 const layout *a, const layout *b, const layout *c, const layout *d) {
    for (const void *p : {(const void *)handle, (const void *)desc, (const void *)a,
                          (const void *)b, (const void *)c, (const void *)d})
        check_alive(call, p);
    product p = {desc->trans_a, desc->trans_b, desc->has_bias, *a, *b, *c, *d, 0, 0, 0};
    p.m = p.trans_a ? a->columns : a->rows;
    p.k = p.trans_a ? a->rows : a->columns;
    p.n = p.trans_b ? b->rows : b->columns;
    uint64_t k = p.trans_b ? b->columns : b->rows;
    if (p.k != k)
        die("%s: op(a) has %llu columns, op(b) %llu rows", call, (unsigned long long)p.k,
            (unsigned long long)k);
    for (const layout *l : {c, d})
        if (l->rows != p.m || l->columns != p.n)
            die("%s: the product is %llu x %llu, c or d %llu x %llu", call, (unsigned long long)p.m,
                (unsigned long long)p.n, (unsigned long long)l->rows,
                (unsigned long long)l->columns);
    bool known = (a->type == CUDA_R_32F && d->type == CUDA_R_32F) ||
                 (a->type == CUDA_R_16BF && (d->type == CUDA_R_16BF || d->type == CUDA_R_32F));
    if (!known || a->type != b->type || c->type != d->type || desc->compute != CUBLAS_COMPUTE_32F ||
        desc->scale != CUDA_R_32F)
        die("%s: types a %d, b %d, c %d, d %d, compute %d, scale %d go not together (or are not "
            "simulated)",
            call, a->type, b->type, c->type, d->type, desc->compute, desc->scale);
    if (desc->has_bias && desc->has_bias_type && desc->bias_type != d->type)
        die("%s: the bias has type %d, d %d", call, desc->bias_type, d->type);
    return p;
}

float element(const void *p, cudaDataType_t type, uint64_t i) {
    return type == CUDA_R_32F ? static_cast<const float *>(p)[i]
                              : bf16_to_f32(static_cast<const uint16_t *>(p)[i]);
}

/* c[j][i] = sum over k of a[k][i] b[j][k], a block of 4 x 64 sums at a time. */
__attribute__((target_clones("avx512f", "avx2", "default"))) void
block_product(const float *a, const float *b, float *c, uint64_t m, uint64_t n, uint64_t k) {
    enum { I = 64, J = 4 };
    for (uint64_t i0 = 0; i0 < m; i0 += I)
        for (uint64_t j0 = 0; j0 < n; j0 += J) {
            float sum[J][I] = {};
            uint64_t ni = std::min<uint64_t>(I, m - i0), nj = std::min<uint64_t>(J, n - j0);
            for (uint64_t l = 0; l < k; l++)
                for (uint64_t j = 0; j < nj; j++) {
                    float x = b[(j0 + j) * k + l];
                    const float *row = a + l * m + i0;
                    if (ni == I)
                        for (int i = 0; i < I; i++)
                            sum[j][i] += row[i] * x;
                    else
                        for (uint64_t i = 0; i < ni; i++)
                            sum[j][i] += row[i] * x;
                }
            for (uint64_t j = 0; j < nj; j++)
                memcpy(c + (j0 + j) * m + i0, sum[j], ni * sizeof(float));
        }
}

void compute(const product &p, float alpha, float beta, const void *a, const void *b, const void *c,
             void *d, const void *bias) {
    std::vector<float> wide_a(p.m * p.k), wide_b(p.k * p.n), sum(p.m * p.n);
    for (uint64_t k = 0; k < p.k; k++)
        for (uint64_t i = 0; i < p.m; i++)
            wide_a[k * p.m + i] = element(
                a, p.a.type, p.trans_a ? i * (uint64_t)p.a.ld + k : k * (uint64_t)p.a.ld + i);
    for (uint64_t j = 0; j < p.n; j++)
        for (uint64_t k = 0; k < p.k; k++)
            wide_b[j * p.k + k] = element(
                b, p.b.type, p.trans_b ? k * (uint64_t)p.b.ld + j : j * (uint64_t)p.b.ld + k);
    constexpr uint64_t STRIP = 16;
#pragma omp parallel for schedule(static) if (p.m * p.n * p.k > 1 << 18)
    for (uint64_t j = 0; j < (p.n + STRIP - 1) / STRIP; j++)
        block_product(wide_a.data(), wide_b.data() + j * STRIP * p.k, sum.data() + j * STRIP * p.m,
                      p.m, std::min(STRIP, p.n - j * STRIP), p.k);
    for (uint64_t j = 0; j < p.n; j++)
        for (uint64_t i = 0; i < p.m; i++) {
            float v = alpha * sum[j * p.m + i];
            if (beta != 0)
                v += beta * element(c, p.c.type, j * (uint64_t)p.c.ld + i);
            if (bias)
                v += element(bias, p.d.type, i);
            uint64_t at = j * (uint64_t)p.d.ld + i;
            if (p.d.type == CUDA_R_32F)
                static_cast<float *>(d)[at] = v;
            else
                static_cast<uint16_t *>(d)[at] = f32_to_bf16(v);
        }
}

struct operand {
    const char *name;
    const void *data;
    size_t bytes;
};
void check_operands(const char *call, const std::vector<operand> &all) {
    for (const operand &o : all)
        if (o.bytes)
            check_range(call, o.name, o.data, o.bytes, space::device);
}
bool overlap(const operand &x, const operand &y) {
    const char *a = static_cast<const char *>(x.data), *b = static_cast<const char *>(y.data);
    return a < b + y.bytes && b < a + x.bytes;
}
} // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    return create(handle, cublasLtContext{0});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return destroy("cublasLtDestroy", handle);
}
const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                   : "CUBLAS_STATUS_INVALID_VALUE";
}
size_t cublasLtGetVersion(void) {
    return 130000;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    return create(desc, cublasLtMatmulDescSim{compute, scale, CUDA_R_32F, false, false, false,
                                              false, nullptr});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    return destroy("cublasLtMatmulDescDestroy", desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size) {
    SIM_LOCK;
    const char *call = "cublasLtMatmulDescSetAttribute";
    check_alive(call, desc);
    int32_t number = 0;
    if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER) {
        if (size != sizeof desc->bias)
            die("%s: %zu bytes for a pointer", call, size);
        memcpy(&desc->bias, value, size);
        return CUBLAS_STATUS_SUCCESS;
    }
    if (size != sizeof number)
        die("%s: attribute %d takes 4 bytes, got %zu", call, (int)attribute, size);
    memcpy(&number, value, size);
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB:
        if (number != CUBLAS_OP_N && number != CUBLAS_OP_T)
            die("%s: operation %d is not simulated", call, number);
        (attribute == CUBLASLT_MATMUL_DESC_TRANSA ? desc->trans_a : desc->trans_b) =
            number == CUBLAS_OP_T;
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        if (number != CUBLASLT_EPILOGUE_DEFAULT && number != CUBLASLT_EPILOGUE_BIAS)
            die("%s: epilogue %d is not simulated", call, number);
        desc->has_bias = number == CUBLASLT_EPILOGUE_BIAS;
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        desc->bias_type = (cudaDataType_t)number;
        desc->has_bias_type = true;
        break;
    default:
        die("%s: attribute %d is not simulated", call, (int)attribute);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
    if (!rows || !columns || ld < (int64_t)rows || !size_of(type))
        die("cublasLtMatrixLayoutCreate: %llu x %llu elements of type %d, columns %lld apart: the "
            "leading dimension is at least the rows, none is 0",
            (unsigned long long)rows, (unsigned long long)columns, type, (long long)ld);
    return create(out, layout{type, rows, columns, ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    return destroy("cublasLtMatrixLayoutDestroy", l);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    return create(out, cublasLtMatmulPreferenceSim{0, {256, 256, 256, 256}});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy("cublasLtMatmulPreferenceDestroy", preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size) {
    SIM_LOCK;
    const char *call = "cublasLtMatmulPreferenceSetAttribute";
    check_alive(call, preference);
    bool is_workspace = attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    if (size != (is_workspace ? 8u : 4u))
        die("%s: attribute %d in %zu bytes", call, (int)attribute, size);
    if (is_workspace)
        memcpy(&preference->workspace, value, size);
    else if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
        memcpy(&preference->align[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
               size);
    return CUBLAS_STATUS_SUCCESS;
}

/* One algorithm; it remembers what it was chosen for and wants some of the workspace. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *found) {
    SIM_LOCK;
    const char *call = "cublasLtMatmulAlgoGetHeuristic";
    check_alive(call, preference);
    if (wanted < 1)
        die("%s: %d results wanted", call, wanted);
    product p = describe(call, handle, desc, a, b, c, d);
    if (p.bias && !desc->bias)
        die("%s: a bias without its address, for which the library may find nothing", call);
    results[0] = {};
    results[0].workspaceSize = std::min<size_t>(preference->workspace, 64 << 10);
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].algo.data[0] = p.hash();
    results[0].algo.data[1] = results[0].workspaceSize;
    for (int i = 0; i < 4; i++)
        results[0].algo.data[2 + i] = preference->align[i];
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    SIM_LOCK;
    const char *call = "cublasLtMatmul";
    product p = describe(call, handle, desc, a_layout, b_layout, c_layout, d_layout);
    if (!algo || algo->data[0] != p.hash())
        die("%s: the algorithm was chosen for another product", call);
    if (workspace_bytes < algo->data[1])
        die("%s: a workspace of %zu bytes, the algorithm takes %llu", call, workspace_bytes,
            (unsigned long long)algo->data[1]);
    if (c == d && (p.c.ld != p.d.ld || p.c.type != p.d.type))
        die("%s: c is d, but not of the same layout", call);
    std::vector<operand> all = {{"a", a, bytes_of(p.a)},
                                {"b", b, bytes_of(p.b)},
                                {"c", c, bytes_of(p.c)},
                                {"d", d, bytes_of(p.d)},
                                {"workspace", workspace, workspace_bytes},
                                {"bias", desc->bias, p.bias ? p.m * size_of(p.d.type) : 0}};
    check_operands(call, all);
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)all[(size_t)i].data % algo->data[2 + i])
            die("%s: %s at %p, the algorithm was chosen for addresses aligned to %llu bytes", call,
                all[(size_t)i].name, all[(size_t)i].data, (unsigned long long)algo->data[2 + i]);
    if (workspace_bytes && (uintptr_t)workspace % 16)
        die("%s: the workspace at %p is not 16-byte aligned", call, workspace);
    for (size_t i : {0, 1, 4, 5})
        if (all[i].bytes && overlap(all[i], all[3]))
            die("%s: %s and d overlap", call, all[i].name);
    float x = *static_cast<const float *>(alpha), y = *static_cast<const float *>(beta);
    const void *bias = p.bias ? desc->bias : nullptr;
    cudaError_t error = enqueue(stream, call, [=] {
        check_operands("cublasLtMatmul (as it runs)", all);
        memset(workspace, 0xff, workspace_bytes);
        compute(p, x, y, a, b, c, d, bias);
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

} /* extern "C" */
