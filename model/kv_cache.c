/* The KV cache: one buffer; the byte count that allocates it is the one that is reported. */
#include "core/memory.h"
#include "model/model.h"

/* Elements, or -1 on overflow. K of layer 0, V of layer 0, K of layer 1, ... */
static int64_t lay_out(const struct model_config *c, int64_t n_batch, int64_t capacity,
                       int64_t *k_offset, int64_t *v_offset) {
    int64_t end = 0;
    for (int64_t l = 0; l < c->n_layer; l++) {
        int64_t one;
        if (!size_mul(n_batch, c->n_kv_head[l], &one) || !size_mul(one, capacity, &one) ||
            !size_mul(one, c->head_dim, &one))
            return -1;
        for (int side = 0; side < 2; side++) {
            int64_t *offset = side ? v_offset : k_offset;
            if (offset)
                offset[l] = end;
            if (!size_add(end, one, &end))
                return -1;
        }
    }
    return end;
}

int64_t kv_cache_bytes(const struct model_config *c, int64_t n_batch, int64_t capacity,
                       enum dtype dtype) {
    int64_t n = lay_out(c, n_batch, capacity, NULL, NULL), bytes;
    return n >= 0 && size_mul(n, dtype_size(dtype), &bytes) ? bytes : -1;
}

enum status kv_cache_open(const struct model *m, int64_t n_batch, int64_t capacity,
                          enum dtype dtype, struct kv_cache **out) {
    enum status status;
    struct kv_cache *c;
    int64_t n_layer = m->config.n_layer;
    *out = NULL;
    TRY(memory_alloc(1, (int64_t)sizeof *c, "KV cache", &c));
    *c = (struct kv_cache){
        .be = m->be, .dtype = dtype, .n_batch = n_batch, .capacity = capacity, .length = 0};
    TRY_OUT(memory_alloc(n_layer, (int64_t)sizeof *c->k_offset, "KV cache", &c->k_offset));
    TRY_OUT(memory_alloc(n_layer, (int64_t)sizeof *c->v_offset, "KV cache", &c->v_offset));
    int64_t n = lay_out(&m->config, n_batch, capacity, c->k_offset, c->v_offset);
    if (n < 0 || !size_mul(n, dtype_size(dtype), &c->n_byte)) {
        status = status_fail(STATUS_FAILED,
                             "a KV cache of %lld tokens for %lld sequences is too large; give a "
                             "smaller context or batch",
                             (long long)capacity, (long long)n_batch);
        goto out;
    }
    TRY_OUT(m->be->alloc(m->be, c->n_byte, "KV cache", &c->data));
    *out = c;
    return STATUS_OK;
out:
    kv_cache_close(c);
    return status;
}

void kv_cache_close(struct kv_cache *c) {
    if (!c)
        return;
    if (c->data)
        c->be->free(c->be, c->data);
    memory_free(c->k_offset);
    memory_free(c->v_offset);
    memory_free(c);
}
