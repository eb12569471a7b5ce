/* config.json against the tensors of its folder. */
#include "model/folder.h"

#include "model/model.h"

#include <string.h>

static enum status account(struct model_folder *f, const struct checkpoint_tensor *t) {
    enum role role;
    int64_t layer, n = t->n_byte / dtype_size(t->dtype);
    const struct model_config *c = &f->config;
    if (!arch_match(f->arch, t->name, &role, &layer)) {
        f->n_unknown++;
        return STATUS_OK;
    }
    if (layer >= c->n_layer)
        return status_fail(STATUS_FAILED,
                           "%s: tensor %s belongs to layer %lld, but config.json has "
                           "num_hidden_layers %lld; correct one of them",
                           t->path, t->name, (long long)layer, (long long)c->n_layer);
    if (!config_has_role(c, role)) {
        if (role != ROLE_HEAD)
            return status_fail(STATUS_FAILED,
                               "%s: tensor %s is a bias, but config.json says attention_bias "
                               "false; correct one of them",
                               t->path, t->name);
        f->stray_head = t;
        return STATUS_OK;
    }
    f->n_param += n;
    f->n_of_dtype[t->dtype] += n;
    if (role == ROLE_K && layer == 0)
        f->kv_dtype = t->dtype;
    return STATUS_OK;
}

enum status model_folder_open(const char *dir, struct model_folder **out) {
    struct model_folder *f = NULL;
    enum status status;
    *out = NULL;
    TRY(memory_alloc(1, sizeof *f, "model folder", &f));
    TRY_OUT(model_config_load(dir, &f->config));
    f->arch = arch_find(f->config.family);
    TRY_OUT(checkpoint_open(dir, &f->ck));
    TRY_OUT(model_check_tensors(&f->config, f->ck));
    for (int64_t i = 0; i < checkpoint_count(f->ck); i++)
        TRY_OUT(account(f, checkpoint_at(f->ck, i)));
    *out = f;
    f = NULL;
out:
    model_folder_close(f);
    return status;
}

void model_folder_close(struct model_folder *f) {
    if (!f)
        return;
    checkpoint_close(f->ck);
    memory_free(f);
}

enum status model_folder_head_differs(const struct model_folder *f, void *buffer, int64_t n_buffer,
                                      bool *out) {
    const struct checkpoint_tensor *head = f->stray_head, *embed;
    int64_t half = n_buffer / 2;
    char name[128];
    *out = false;
    if (!head)
        return STATUS_OK;
    arch_tensor_name(f->arch, ROLE_EMBED, 0, name, sizeof name);
    TRY(checkpoint_need(f->ck, name, &embed));
    *out = head->dtype != embed->dtype || head->n_byte != embed->n_byte;
    for (int64_t at = 0; !*out && at < head->n_byte; at += half) {
        int64_t n = size_min(half, head->n_byte - at);
        TRY(checkpoint_read(head, at, n, buffer));
        TRY(checkpoint_read(embed, at, n, (char *)buffer + half));
        *out = memcmp(buffer, (char *)buffer + half, (size_t)n) != 0;
    }
    return STATUS_OK;
}
