/* The parameter table: every tensor's role, shape and place in one flat buffer. */
#include "model/params.h"

#include "core/memory.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { GROUP_ALIGN = 32 }; /* elements: 64 bytes of bf16 */

/* Tensors that one matmul or one vector op reads together follow each other without a gap. */
static bool continues(enum role r) {
    return r == ROLE_K || r == ROLE_V || r == ROLE_K_BIAS || r == ROLE_V_BIAS || r == ROLE_UP;
}

static enum status add_param(struct model *m, const struct arch *arch, enum role role,
                             int64_t layer, int64_t *end) {
    struct param *p = &m->params[m->n_param_tensors];
    *p = (struct param){.role = role, .layer = layer, .count = 1};
    arch_tensor_name(arch, role, layer, p->name, (int64_t)sizeof p->name);
    p->rank = config_role_shape(&m->config, role, layer, p->shape);
    bool fits = true;
    for (int i = 0; i < p->rank; i++)
        fits = fits && size_mul(p->count, p->shape[i], &p->count);
    p->offset = continues(role) ? *end : size_align(*end, GROUP_ALIGN);
    if (!fits || !size_add(p->offset, p->count, end) || *end > INT64_MAX / 16)
        return status_fail(STATUS_FAILED, "%s: its size overflows; the configuration is wrong",
                           p->name);
    if (layer < 0)
        m->index[role] = m->n_param_tensors;
    else
        m->layer_index[layer][role] = m->n_param_tensors;
    m->n_param_tensors++;
    return STATUS_OK;
}

/* The roles outside layers that come before, or after, the layers. */
static enum status add_outer(struct model *m, const struct arch *arch, bool before, int64_t *end) {
    for (int r = 0; r < ROLE_COUNT; r++)
        if (!role_in_layer((enum role)r) && (r < ROLE_FINAL_NORM) == before &&
            config_has_role(&m->config, (enum role)r))
            TRY(add_param(m, arch, (enum role)r, -1, end));
    return STATUS_OK;
}

enum status params_lay_out(struct model *m) {
    const struct arch *arch = arch_find(m->config.family);
    int64_t n_layer = m->config.n_layer, end = 0;
    if (!arch)
        return status_fail(STATUS_FAILED, "model family '%s' is unknown; known: %s",
                           m->config.family, arch_families());
    TRY(memory_alloc((n_layer + 1) * ROLE_COUNT, (int64_t)sizeof *m->params, "parameter table",
                     &m->params));
    TRY(memory_alloc(n_layer, (int64_t)sizeof *m->layer_index, "parameter table", &m->layer_index));
    for (int r = 0; r < ROLE_COUNT; r++) {
        m->index[r] = -1;
        for (int64_t l = 0; l < n_layer; l++)
            m->layer_index[l][r] = -1;
    }
    TRY(add_outer(m, arch, true, &end));
    for (int64_t l = 0; l < n_layer; l++)
        for (int r = 0; r < ROLE_COUNT; r++)
            if (role_in_layer((enum role)r) && config_has_role(&m->config, (enum role)r))
                TRY(add_param(m, arch, (enum role)r, l, &end));
    TRY(add_outer(m, arch, false, &end));
    m->n_param = size_align(end, GROUP_ALIGN);
    return STATUS_OK;
}

int64_t model_param_count(const struct model *m) {
    int64_t n = 0;
    for (int64_t i = 0; i < m->n_param_tensors; i++)
        n += m->params[i].count;
    return n;
}

struct tensor model_span(const struct model *m, const void *flat, enum dtype dtype, int64_t first,
                         int64_t last) {
    const struct param *a = &m->params[first], *z = &m->params[last];
    /* Views are read or written as the op says; const ends here, as with every view. */
    struct tensor all = tensor_1d(dtype, (void *)(uintptr_t)flat, m->n_param);
    struct tensor t = tensor_rows(all, a->offset, z->offset + z->count - a->offset);
    return a->rank == 2 ? tensor_reshape(t, t.shape[0] / a->shape[1], a->shape[1]) : t;
}

struct tensor model_view(const struct model *m, const void *flat, enum dtype dtype, int64_t param) {
    return model_span(m, flat, dtype, param, param);
}

enum dtype model_grad_dtype(const struct model *m) {
    return m->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
}

struct tensor model_head(const struct model *m) {
    int64_t i = m->config.tied_head ? m->index[ROLE_EMBED] : m->index[ROLE_HEAD];
    return model_view(m, m->data, m->dtype, i);
}

struct tensor model_d_head(const struct model *m, void *grads) {
    int64_t i = m->config.tied_head ? m->index[ROLE_EMBED] : m->index[ROLE_HEAD];
    return model_view(m, grads, model_grad_dtype(m), i);
}
