/* Parsing, validation and printing of a safetensors header. Nothing in it is trusted: every size
 * is checked before it is used. */
#include "checkpoints/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum status safetensors_header_size(const unsigned char first[8], int64_t file_size,
                                    const char *path, int64_t *out) {
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | first[i];
    if (n < 2 || n > SAFETENSORS_MAX_HEADER)
        return status_fail(STATUS_FAILED,
                           "%s: the header claims %llu bytes; expected 2 to %d: not a safetensors "
                           "file, or damaged",
                           path, (unsigned long long)n, SAFETENSORS_MAX_HEADER);
    if ((int64_t)n > file_size - 8)
        return status_fail(STATUS_FAILED,
                           "%s: truncated: the header claims %llu bytes, the file has %lld after "
                           "its first 8; download it again",
                           path, (unsigned long long)n, (long long)(file_size - 8));
    *out = (int64_t)n;
    return STATUS_OK;
}

static enum status lying(const char *path, const char *name, const char *why) {
    return status_fail(STATUS_FAILED, "%s: tensor %s: %s; the file is damaged", path, name, why);
}

static bool read_size(const struct json *v, int64_t *out) {
    if (!json_is_int(v) || json_int(v) < 0)
        return false;
    *out = json_int(v);
    return true;
}

static enum status parse_tensor(const struct json *j, const char *path, struct arena *arena,
                                struct checkpoint_tensor *t) {
    const char *name = json_key(j);
    char *copy;
    *t = (struct checkpoint_tensor){.path = path, .fd = -1};
    const char *dtype = json_string(json_get(j, "dtype"));
    if (!dtype)
        return lying(path, name, "no dtype");
    bool known = false;
    for (int d = 0; d < DTYPE_COUNT && !known; d++)
        if (!strcmp(dtype, dtype_name((enum dtype)d))) {
            t->dtype = (enum dtype)d;
            known = true;
        }
    if (!known)
        return status_fail(STATUS_FAILED,
                           "%s: tensor %s: unknown dtype \"%s\"; expected F32, F16, BF16 or "
                           "another of the format's names",
                           path, name, dtype);
    const struct json *shape = json_get(j, "shape");
    if (!json_is_array(shape) || json_len(shape) > TENSOR_MAX_RANK)
        return lying(path, name, "its shape is not an array of at most 8 sizes");
    int64_t n_byte = dtype_size(t->dtype);
    for (const struct json *s = json_first(shape); s; s = json_next(s)) {
        int64_t *size = &t->shape[t->rank++];
        if (!read_size(s, size))
            return lying(path, name, "its shape holds something that is not a size");
        if (!size_mul(n_byte, *size, &n_byte))
            return lying(path, name, "its shape is larger than any file");
    }
    const struct json *span = json_get(j, "data_offsets");
    int64_t begin, end;
    if (!json_is_array(span) || json_len(span) != 2 || !read_size(json_first(span), &begin) ||
        !read_size(json_next(json_first(span)), &end) || end < begin)
        return lying(path, name, "its data_offsets are not [begin, end]");
    if (end - begin != n_byte) {
        char text[128];
        return status_fail(STATUS_FAILED,
                           "%s: tensor %s: data_offsets cover %lld bytes, but shape %s of %s needs "
                           "%lld; the file is damaged",
                           path, name, (long long)(end - begin),
                           tensor_shape_text(t->rank, t->shape, text, sizeof text), dtype,
                           (long long)n_byte);
    }
    t->n_byte = n_byte;
    t->offset = begin;
    TRY(arena_strdup(arena, name, &copy));
    t->name = copy;
    return STATUS_OK;
}

static int by_offset(const void *a, const void *b) {
    const struct checkpoint_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->n_byte != y->n_byte) /* empty tensors first: they share their neighbour's offset */
        return x->n_byte < y->n_byte ? -1 : 1;
    return strcmp(x->name, y->name);
}

enum status safetensors_parse(const char *text, int64_t n, int64_t file_size, const char *path,
                              struct arena *arena, struct safetensors *out) {
    struct json *root = NULL;
    enum status status;
    *out = (struct safetensors){0};
    if (n < 2 || text[0] != '{' || memchr(text, 0, (size_t)n))
        return status_fail(STATUS_FAILED,
                           "%s: the header is not a JSON object: not a safetensors file, or "
                           "damaged",
                           path);
    TRY(json_parse(text, n, path, &root));
    int64_t n_data = file_size - 8 - n, at = 0;
    TRY_OUT(arena_alloc(arena, json_len(root), (int64_t)sizeof *out->tensors, &out->tensors));
    for (const struct json *j = json_first(root); j; j = json_next(j)) {
        if (!strcmp(json_key(j), "__metadata__")) {
            if (!out->metadata) {
                out->metadata = json_object();
                json_set_copy(out->metadata, "metadata", j);
            }
            continue;
        }
        TRY_OUT(parse_tensor(j, path, arena, &out->tensors[out->n]));
        out->n++;
    }
    if (out->n)
        qsort(out->tensors, (size_t)out->n, sizeof *out->tensors, by_offset);
    for (int64_t i = 0; i < out->n; i++) {
        struct checkpoint_tensor *t = &out->tensors[i];
        if (t->offset != at) {
            status = lying(path, t->name,
                           t->offset < at ? "its data overlap another tensor's"
                                          : "there is a gap before its data");
            goto out;
        }
        at += t->n_byte; /* no overflow: data so far fit the file, and each span is < 2^54 */
        if (at > n_data) {
            status = status_fail(STATUS_FAILED,
                                 "%s: tensor %s: its data end at byte %lld, but the file holds "
                                 "%lld bytes of data; truncated: download it again",
                                 path, t->name, (long long)at, (long long)n_data);
            goto out;
        }
        t->offset += 8 + n;
    }
    if (at != n_data) {
        status = status_fail(STATUS_FAILED,
                             "%s: the tensors cover %lld bytes, but the file holds %lld bytes of "
                             "data; the file is damaged",
                             path, (long long)at, (long long)n_data);
        goto out;
    }
out:
    json_free(root);
    if (status != STATUS_OK) {
        json_free(out->metadata);
        *out = (struct safetensors){0};
    }
    return status;
}

enum status safetensors_print(const struct checkpoint_tensor *tensors, int64_t n,
                              struct text *out) {
    struct json *root = json_object();
    json_set_string(json_set_object(root, "__metadata__"), "format", "pt");
    for (int64_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = &tensors[i];
        struct json *j = json_set_object(root, t->name);
        json_set_string(j, "dtype", dtype_name(t->dtype));
        struct json *shape = json_set_array(j, "shape");
        for (int d = 0; d < t->rank; d++)
            json_push_number(shape, (double)t->shape[d]);
        struct json *span = json_set_array(j, "data_offsets");
        json_push_number(span, (double)t->offset);
        json_push_number(span, (double)(t->offset + t->n_byte));
    }
    enum status status = json_print(root, false, out);
    json_free(root);
    while (status == STATUS_OK && out->n % 8)
        status = text_puts(out, " ");
    return status;
}
