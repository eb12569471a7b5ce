/* BOS, EOS and add_bos_token: tokenizer_config.json, then special_tokens_map.json. */
#include "data/tokenizer_internal.h"

#include "core/file.h"

/* "bos_token": "<s>" or {"content": "<s>", ...}, or null; *out is left alone when absent. */
static enum status read_token(const struct tokenizer *t, const struct json *root, const char *what,
                              const char *key, bool *found, int32_t *out) {
    const struct json *token = json_get(root, key);
    const char *content = json_string(token);
    if (json_is_object(token))
        TRY(json_need_string(token, what, "content", &content));
    else if (token && !content && !json_is_null(token))
        return status_fail(STATUS_FAILED, "%s: %s is neither a string nor an object", what, key);
    *found = token != NULL;
    if (!token)
        return STATUS_OK;
    *out = content ? tokenizer_find(t, content) : -1;
    if (content && *out < 0)
        return status_fail(STATUS_FAILED,
                           "%s: %s \"%s\" is not in the tokenizer: is its tokenizer.json missing?",
                           what, key, content);
    return STATUS_OK;
}

static enum status read_file(struct tokenizer *t, const char *path, bool *bos, bool *eos) {
    struct json *root;
    TRY(json_load(path, &root));
    enum status status = STATUS_OK;
    if (!*bos)
        TRY_OUT(read_token(t, root, path, "bos_token", bos, &t->bos));
    if (!*eos)
        TRY_OUT(read_token(t, root, path, "eos_token", eos, &t->eos));
    TRY_OUT(json_opt_bool(root, path, "add_bos_token", &t->adds_bos));
out:
    json_free(root);
    return status;
}

enum status tokenizer_read_config(struct tokenizer *t, const char *dir) {
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
    enum status status = STATUS_OK;
    struct arena arena = {0};
    bool bos = false, eos = false;
    for (int k = 0; k < 2; k++) {
        char *path;
        TRY_OUT(path_join(&arena, dir, names[k], &path));
        if (path_exists(path))
            TRY_OUT(read_file(t, path, &bos, &eos));
    }
    t->adds_bos = t->adds_bos && t->bos >= 0;
out:
    arena_free(&arena);
    return status;
}
