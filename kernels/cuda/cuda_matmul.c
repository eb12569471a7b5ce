/* Matmul through cuBLASLt. Row-major C = op(A) op(B) is column-major C^T = op(B)^T op(A)^T: the
 * same bytes with the two factors exchanged, so that no matrix is ever turned. Descriptors and the
 * heuristic's choice are kept by shape in a bounded table. cuBLASLt is loaded at run time: without
 * it the program still starts, and computes on the CPU. */
#include "core/memory.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cuda/cuda_memory.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { PLANS = 512, PROBES = 8 };
static const size_t workspace_bytes = 32 << 20; /* what NVIDIA recommends for Hopper */

#define LT_CALLS(X)                                                                                \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(GetStatusString)                                                                             \
    X(GetVersion)                                                                                  \
    X(Matmul)                                                                                      \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)
static struct {
#define LT_POINTER(call) __typeof__(cublasLt##call) *call;
    LT_CALLS(LT_POINTER)
} lt;

struct key { /* compared as bytes: no padding */
    int64_t m, n, k;
    int32_t align_a, align_b, align_c, align_bias; /* bytes; align_bias 0: no bias */
    uint8_t dtype, c_dtype, trans_a, trans_b, beta, unused[3];
};
struct plan {
    struct key key;
    cublasLtMatmulDesc_t desc;      /* NULL: the entry is free */
    cublasLtMatrixLayout_t a, b, c; /* a, b as cuBLASLt counts: our b and our a */
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
};
struct matmul_state {
    cublasLtHandle_t handle;
    char version[32];
    struct plan plan[PLANS];
};

static enum status lt_fail(const char *what, cublasStatus_t error) {
    return status_fail(STATUS_FAILED, "cuda: %s: cuBLASLt: %s", what, lt.GetStatusString(error));
}
#define LT_TRY(call, what)                                                                         \
    do {                                                                                           \
        cublasStatus_t lt_try_error_ = (call);                                                     \
        if (lt_try_error_ != CUBLAS_STATUS_SUCCESS)                                                \
            return lt_fail(what, lt_try_error_);                                                   \
    } while (0)

#ifdef REGROUP_CUDA_SIM
enum status cuda_matmul_load(void) {
#define LT_LINKED(call) lt.call = cublasLt##call;
    LT_CALLS(LT_LINKED)
    return STATUS_OK;
}
#else
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
enum status cuda_matmul_load(void) {
    static const char *const name = "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR);
    if (lt.Create)
        return STATUS_OK;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return status_fail(STATUS_FAILED,
                           "cuda: %s cannot be loaded (%s): install cuBLAS of CUDA %d, or put its "
                           "folder into LD_LIBRARY_PATH",
                           name, dlerror(), CUBLAS_VER_MAJOR);
    void *found;
#define LT_FIND(call)                                                                              \
    found = dlsym(library, "cublasLt" #call);                                                      \
    if (!found)                                                                                    \
        return status_fail(STATUS_FAILED, "cuda: %s lacks cublasLt" #call, name);                  \
    memcpy(&lt.call, &found, sizeof found);
    LT_CALLS(LT_FIND)
    return STATUS_OK;
}
#endif

static void plan_close(struct plan *p) {
    if (p->a)
        (void)lt.MatrixLayoutDestroy(p->a);
    if (p->b)
        (void)lt.MatrixLayoutDestroy(p->b);
    if (p->c)
        (void)lt.MatrixLayoutDestroy(p->c);
    if (p->desc)
        (void)lt.MatmulDescDestroy(p->desc);
    memset(p, 0, sizeof *p);
}

static void matmul_close(void *state) {
    struct matmul_state *s = state;
    for (int i = 0; i < PLANS; i++)
        plan_close(&s->plan[i]);
    (void)lt.Destroy(s->handle);
    memory_free(s);
}

enum status cuda_matmul_open(struct cuda_state *state) {
    struct matmul_state *s;
    TRY(cuda_matmul_load());
    TRY(memory_alloc(1, sizeof *s, "matmul plans", &s));
    cublasStatus_t error = lt.Create(&s->handle);
    if (error != CUBLAS_STATUS_SUCCESS) {
        memory_free(s);
        return lt_fail("starting", error);
    }
    int version = (int)lt.GetVersion();
    snprintf(s->version, sizeof s->version, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    state->matmul = s;
    state->matmul_close = matmul_close;
    return STATUS_OK;
}

const char *cuda_matmul_version(const struct cuda_state *s) {
    return ((const struct matmul_state *)s->matmul)->version;
}

/* Largest power of two, up to 256, that divides the address. */
static int32_t alignment(const void *p) {
    uintptr_t at = (uintptr_t)p | 256;
    return (int32_t)(at & -at);
}

static struct key key_of(const struct matmul_args *a) {
    return (struct key){.m = a->c.shape[0],
                        .n = a->c.shape[1],
                        .k = a->a.shape[!a->trans_a],
                        .align_a = alignment(a->a.data),
                        .align_b = alignment(a->b.data),
                        .align_c = alignment(a->c.data),
                        .align_bias = a->bias.data ? alignment(a->bias.data) : 0,
                        .dtype = (uint8_t)a->a.dtype,
                        .c_dtype = (uint8_t)a->c.dtype,
                        .trans_a = a->trans_a,
                        .trans_b = a->trans_b,
                        .beta = a->beta != 0};
}

static struct plan *find_plan(struct matmul_state *s, const struct key *key) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ ((const unsigned char *)key)[i]) * 0x100000001b3u;
    for (int i = 0; i < PROBES; i++) {
        struct plan *p = &s->plan[(hash + (uint64_t)i) % PLANS];
        if (!p->desc || !memcmp(&p->key, key, sizeof *key))
            return p;
    }
    struct plan *home = &s->plan[hash % PLANS];
    plan_close(home);
    return home;
}

static cudaDataType lt_type(enum dtype t) {
    return t == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static enum status layout(cublasLtMatrixLayout_t *out, const struct tensor *t) {
    LT_TRY(lt.MatrixLayoutCreate(out, lt_type(t->dtype), (uint64_t)t->shape[1],
                                 (uint64_t)t->shape[0], t->shape[1]),
           "matmul");
    return STATUS_OK;
}

static enum status choose_algorithm(struct matmul_state *s, struct plan *p,
                                    cublasLtMatmulPreference_t wish) {
    /* Partial sums of a split k stay in single precision. */
    const uint32_t reduction =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t align[3] = {(uint32_t)p->key.align_b, (uint32_t)p->key.align_a,
                               (uint32_t)p->key.align_c};
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t size;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align[0], sizeof *align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align[1], sizeof *align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align[2], sizeof *align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[2], sizeof *align},
    };
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        LT_TRY(
            lt.MatmulPreferenceSetAttribute(wish, wishes[i].name, wishes[i].value, wishes[i].size),
            "matmul");
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    LT_TRY(lt.MatmulAlgoGetHeuristic(s->handle, p->desc, p->a, p->b, p->c, p->c, wish, 1, &result,
                                     &found),
           "matmul");
    if (found == 0)
        return lt_fail("matmul", CUBLAS_STATUS_NOT_SUPPORTED);
    p->algo = result.algo;
    p->workspace = result.workspaceSize;
    return STATUS_OK;
}

static enum status describe(struct matmul_state *s, const struct matmul_args *a, struct plan *p) {
    const int32_t trans[2] = {a->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                              a->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N};
    const int32_t bias = CUBLASLT_EPILOGUE_BIAS;
    const int32_t bias_type = (int32_t)lt_type(a->c.dtype);
    const struct {
        cublasLtMatmulDescAttributes_t name;
        const void *value;
        size_t size;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &trans[0], sizeof *trans},
        {CUBLASLT_MATMUL_DESC_TRANSB, &trans[1], sizeof *trans},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type},
        /* Some versions of the heuristic find no algorithm for a bias that is not there yet. */
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias.data, sizeof a->bias.data},
    };
    LT_TRY(lt.MatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul");
    for (int i = 0; i < (a->bias.data ? 5 : 2); i++)
        LT_TRY(lt.MatmulDescSetAttribute(p->desc, attributes[i].name, attributes[i].value,
                                         attributes[i].size),
               "matmul");
    TRY(layout(&p->a, &a->b));
    TRY(layout(&p->b, &a->a));
    TRY(layout(&p->c, &a->c));
    cublasLtMatmulPreference_t wish;
    LT_TRY(lt.MatmulPreferenceCreate(&wish), "matmul");
    enum status status = choose_algorithm(s, p, wish);
    (void)lt.MatmulPreferenceDestroy(wish);
    return status;
}

/* cuBLASLt wants the bias in c's type. */
static enum status widen_bias(struct backend *be, struct matmul_args *a) {
    if (!a->bias.data || a->bias.dtype == a->c.dtype)
        return STATUS_OK;
    struct tensor wide = tensor_1d(a->c.dtype, NULL, a->c.shape[1]);
    TRY(cuda_scratch(be, CUDA_SCRATCH_OP, tensor_bytes(&wide), &wide.data));
    TRY(cuda_cast(
        be, &(struct cast_args){tensor_1d(a->bias.dtype, a->bias.data, a->c.shape[1]), wide}));
    a->bias = wide;
    return STATUS_OK;
}

enum status cuda_matmul(struct backend *be, const struct matmul_args *args) {
    struct matmul_state *s = cuda_state_of(be)->matmul;
    struct matmul_args a = *args;
    TRY(cpu_check_matmul(&a));
    if (!be->has_dtype[a.a.dtype])
        return status_fail(STATUS_FAILED, "cuda: matmul: %s is not a compute type here",
                           dtype_name(a.a.dtype));
    if (tensor_count(&a.c) == 0)
        return STATUS_OK;
    TRY(widen_bias(be, &a));
    const struct key key = key_of(&a);
    struct plan *p = find_plan(s, &key);
    if (!p->desc) {
        p->key = key;
        enum status status = describe(s, &a, p);
        if (status != STATUS_OK) {
            plan_close(p);
            return status;
        }
    }
    if (a.bias.data)
        LT_TRY(lt.MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a.bias.data,
                                         sizeof a.bias.data),
               "matmul");
    void *workspace;
    TRY(cuda_scratch(be, CUDA_SCRATCH_MATMUL, (int64_t)workspace_bytes, &workspace));
    const float one = 1, beta = (float)a.beta;
    LT_TRY(lt.Matmul(s->handle, p->desc, &one, a.b.data, p->a, a.a.data, p->b, &beta, a.c.data,
                     p->c, a.c.data, p->c, &p->algo, workspace, p->workspace, cuda_stream(be)),
           "matmul");
    return STATUS_OK;
}
