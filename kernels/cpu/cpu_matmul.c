/* Matrix products by oneDNN. A primitive is made once per shape and kept; oneDNN's own scratchpad
 * is ours (user mode), so a step that has run before allocates nothing. */
#include "kernels/cpu/cpu_matmul.h"
#include "core/memory.h"

#include <dnnl.h>
#include <string.h>

enum { CACHE_SIZE = 512, CACHE_PROBES = 8 };

struct key {
    int64_t m, n, k;
    uint8_t in, out;
    bool trans_a, trans_b, accumulate, bias;
};

struct entry {
    struct key key;
    dnnl_primitive_t primitive; /* NULL: free */
    dnnl_memory_t a, b, c, bias, scratchpad;
    int64_t scratchpad_bytes;
    int64_t used; /* for eviction: the clock at the last use */
};

struct cpu_matmul {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool native_bf16;
    int64_t clock;
    struct entry cache[CACHE_SIZE];
};

static enum status check(dnnl_status_t s, const char *call) {
    if (s == dnnl_success)
        return STATUS_OK;
    return status_fail(STATUS_FAILED, "matmul: oneDNN's %s failed with status %d", call, (int)s);
}
#define DNNL(function, ...) TRY(check(dnnl_##function(__VA_ARGS__), #function))

static void entry_free(struct entry *e) {
    dnnl_memory_t memories[] = {e->a, e->b, e->c, e->bias, e->scratchpad};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        if (memories[i])
            dnnl_memory_destroy(memories[i]);
    if (e->primitive)
        dnnl_primitive_destroy(e->primitive);
    memset(e, 0, sizeof *e);
}

static dnnl_data_type_t dnnl_type(uint8_t t) {
    return t == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* A rows x cols view; a transposed one is stored [cols, rows]. */
static enum status matrix(dnnl_memory_desc_t *md, uint8_t t, int64_t rows, int64_t cols,
                          bool trans) {
    dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : cols, trans ? rows : 1};
    DNNL(memory_desc_init_by_strides, md, 2, dims, dnnl_type(t), strides);
    return STATUS_OK;
}

static enum status describe(struct cpu_matmul *mm, const struct key *k, dnnl_memory_desc_t md[4],
                            dnnl_primitive_attr_t attr, dnnl_post_ops_t post,
                            dnnl_primitive_desc_t *pd) {
    dnnl_matmul_desc_t desc;
    TRY(matrix(&md[0], k->in, k->m, k->k, k->trans_a));
    TRY(matrix(&md[1], k->in, k->k, k->n, k->trans_b));
    TRY(matrix(&md[2], k->out, k->m, k->n, false));
    TRY(matrix(&md[3], k->in, 1, k->n, false));
    DNNL(matmul_desc_init, &desc, &md[0], &md[1], k->bias ? &md[3] : NULL, &md[2]);
    DNNL(primitive_attr_set_scratchpad_mode, attr, dnnl_scratchpad_mode_user);
    if (k->accumulate) {
        DNNL(post_ops_append_sum, post, 1.0f);
        DNNL(primitive_attr_set_post_ops, attr, post);
    }
    DNNL(primitive_desc_create, pd, &desc, attr, mm->engine, NULL);
    return STATUS_OK;
}

static enum status entry_fill(struct cpu_matmul *mm, const struct key *k,
                              const dnnl_memory_desc_t md[4], dnnl_primitive_desc_t pd,
                              struct entry *e) {
    const dnnl_memory_desc_t *scratchpad =
        dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    DNNL(memory_create, &e->a, &md[0], mm->engine, DNNL_MEMORY_NONE);
    DNNL(memory_create, &e->b, &md[1], mm->engine, DNNL_MEMORY_NONE);
    DNNL(memory_create, &e->c, &md[2], mm->engine, DNNL_MEMORY_NONE);
    if (k->bias)
        DNNL(memory_create, &e->bias, &md[3], mm->engine, DNNL_MEMORY_NONE);
    if (scratchpad)
        e->scratchpad_bytes = (int64_t)dnnl_memory_desc_get_size(scratchpad);
    if (e->scratchpad_bytes)
        DNNL(memory_create, &e->scratchpad, scratchpad, mm->engine, DNNL_MEMORY_NONE);
    DNNL(primitive_create, &e->primitive, pd);
    e->key = *k;
    return STATUS_OK;
}

static enum status entry_make(struct cpu_matmul *mm, const struct key *k, struct entry *e) {
    dnnl_memory_desc_t md[4];
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t post = NULL;
    dnnl_primitive_desc_t pd = NULL;
    enum status status;
    entry_free(e);
    TRY_OUT(check(dnnl_primitive_attr_create(&attr), "primitive_attr_create"));
    TRY_OUT(check(dnnl_post_ops_create(&post), "post_ops_create"));
    TRY_OUT(describe(mm, k, md, attr, post, &pd));
    TRY_OUT(entry_fill(mm, k, md, pd, e));
out:
    if (status != STATUS_OK)
        entry_free(e);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (post)
        dnnl_post_ops_destroy(post);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return status;
}

static bool same(const struct key *x, const struct key *y) {
    return x->m == y->m && x->n == y->n && x->k == y->k && x->in == y->in && x->out == y->out &&
           x->trans_a == y->trans_a && x->trans_b == y->trans_b && x->accumulate == y->accumulate &&
           x->bias == y->bias;
}

/* A few consecutive places a key may live in; when all are taken the longest unused one goes. */
static enum status find(struct cpu_matmul *mm, const struct key *k, struct entry **out) {
    uint64_t hash = (uint64_t)k->m * 0x9e3779b97f4a7c15u + (uint64_t)k->n;
    hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9u + (uint64_t)k->k;
    hash = (hash ^ (hash >> 32)) * 0x94d049bb133111ebu;
    struct entry *victim = NULL;
    for (uint64_t i = 0; i < CACHE_PROBES; i++) {
        struct entry *e = &mm->cache[((hash >> 40) + i) % CACHE_SIZE];
        if (e->primitive && same(&e->key, k)) {
            *out = e;
            return STATUS_OK;
        }
        if (!victim || e->used < victim->used)
            victim = e;
    }
    *out = victim;
    return entry_make(mm, k, victim);
}

static enum status product(struct backend *be, const struct matmul_args *a) {
    struct cpu_matmul *mm = ((struct cpu_state *)be->state)->matmul;
    struct key k = {.m = a->c.shape[0],
                    .n = a->c.shape[1],
                    .k = a->a.shape[!a->trans_a],
                    .in = (uint8_t)a->a.dtype,
                    .out = (uint8_t)a->c.dtype,
                    .trans_a = a->trans_a,
                    .trans_b = a->trans_b,
                    .accumulate = a->beta != 0,
                    .bias = a->bias.data != NULL};
    struct entry *e;
    void *pad = NULL;
    TRY(find(mm, &k, &e));
    e->used = ++mm->clock;
    if (e->scratchpad)
        TRY(cpu_scratch(be, SCRATCH_MATMUL, e->scratchpad_bytes, &pad));
    dnnl_exec_arg_t args[5] = {
        {DNNL_ARG_SRC, e->a}, {DNNL_ARG_WEIGHTS, e->b}, {DNNL_ARG_DST, e->c}};
    void *data[5] = {a->a.data, a->b.data, a->c.data};
    int n = 3;
    if (k.bias) {
        args[n] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, e->bias};
        data[n++] = a->bias.data;
    }
    if (e->scratchpad) {
        args[n] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, e->scratchpad};
        data[n++] = pad;
    }
    for (int i = 0; i < n; i++)
        DNNL(memory_set_data_handle, args[i].memory, data[i]);
    DNNL(primitive_execute, e->primitive, mm->stream, n, args);
    return STATUS_OK;
}

static enum status widen(struct backend *be, struct tensor *t, float **room) {
    struct tensor wide = *t;
    wide.dtype = DTYPE_F32;
    wide.data = *room;
    *room += size_align(tensor_count(t), 16);
    TRY(be->cast(be, &(struct cast_args){.x = *t, .out = wide}));
    *t = wide;
    return STATUS_OK;
}

/* Without AVX-512 oneDNN has no bf16: the operands are widened and the product is that of f32. */
static enum status widened(struct backend *be, const struct matmul_args *a) {
    struct matmul_args w = *a;
    int64_t count = 64 + tensor_count(&a->a) + tensor_count(&a->b) + tensor_count(&a->c) +
                    (a->bias.data ? tensor_count(&a->bias) : 0);
    float *room;
    TRY(cpu_scratch(be, SCRATCH_WIDEN, count * (int64_t)sizeof *room, &room));
    TRY(widen(be, &w.a, &room));
    TRY(widen(be, &w.b, &room));
    if (w.bias.data)
        TRY(widen(be, &w.bias, &room));
    if (w.c.dtype == DTYPE_BF16)
        TRY(widen(be, &w.c, &room));
    TRY(product(be, &w));
    if (w.c.data != a->c.data)
        TRY(be->cast(be, &(struct cast_args){.x = w.c, .out = a->c}));
    return STATUS_OK;
}

enum status cpu_matmul(struct backend *be, const struct matmul_args *a) {
    struct cpu_state *s = be->state;
    struct cpu_matmul *mm = s->matmul;
    TRY(cpu_check_matmul(a));
    if (a->a.dtype != DTYPE_F32 && a->a.dtype != DTYPE_BF16)
        return s->reference.matmul(be, a);
    if (!a->c.shape[0] || !a->c.shape[1])
        return STATUS_OK;
    if (a->c.shape[0] == 1 && a->trans_b && s->gemv)
        return s->gemv(be, a);
    return a->a.dtype == DTYPE_F32 || mm->native_bf16 ? product(be, a) : widened(be, a);
}

static void matmul_close(void *p) {
    struct cpu_matmul *mm = p;
    for (int i = 0; i < CACHE_SIZE; i++)
        entry_free(&mm->cache[i]);
    if (mm->stream)
        dnnl_stream_destroy(mm->stream);
    if (mm->engine)
        dnnl_engine_destroy(mm->engine);
    memory_free(mm);
}

enum status cpu_matmul_open(struct backend *be, bool native_bf16) {
    struct cpu_state *s = be->state;
    struct cpu_matmul *mm;
    TRY(memory_alloc(1, sizeof *mm, "matmul cache", &mm));
    s->matmul = mm;
    s->matmul_close = matmul_close;
    mm->native_bf16 = native_bf16;
    DNNL(engine_create, &mm->engine, dnnl_cpu, 0);
    DNNL(stream_create, &mm->stream, mm->engine, dnnl_stream_default_flags);
    be->matmul = cpu_matmul;
    return STATUS_OK;
}

void cpu_matmul_version(int version[3]) {
    const dnnl_version_t *v = dnnl_version();
    version[0] = v->major, version[1] = v->minor, version[2] = v->patch;
}
