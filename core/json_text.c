/* Editing one top-level member of a JSON object's text, every other byte untouched. The text was
 * accepted by json_parse, so the scanner only has to find its way. */
#include "core/json.h"

#include "core/memory.h"

#include <string.h>

static const char *skip_space(const char *p) {
    while (*p && strchr(" \t\r\n", *p))
        p++;
    return p;
}

static const char *skip_string(const char *p) { /* at the opening quote */
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1])
            p++;
    return *p ? p + 1 : p;
}

static const char *skip_value(const char *p) {
    if (*p == '"')
        return skip_string(p);
    if (*p == '{' || *p == '[') {
        int depth = 0;
        while (*p) {
            if (*p == '"') {
                p = skip_string(p);
                continue;
            }
            depth += *p == '{' || *p == '[';
            depth -= *p == '}' || *p == ']';
            p++;
            if (depth == 0)
                return p;
        }
        return p;
    }
    while (*p && !strchr(",}] \t\r\n", *p))
        p++;
    return p;
}

/* Replace bytes [from, to) of the text. */
static enum status splice(struct text *text, int64_t from, int64_t to, const char *put) {
    struct text fresh = {0};
    enum status status = text_add(&fresh, text->data, from);
    if (status == STATUS_OK)
        status = text_puts(&fresh, put);
    if (status == STATUS_OK)
        status = text_add(&fresh, text->data + to, text->n - to);
    if (status != STATUS_OK) {
        text_free(&fresh);
        return status;
    }
    text_free(text);
    *text = fresh;
    return STATUS_OK;
}

enum status json_text_set(struct text *text, const char *key, const char *value) {
    const char *start = text->data, *p = skip_space(start);
    if (*p != '{')
        return status_fail(STATUS_FAILED, "cannot set key \"%s\": the JSON is not an object", key);
    p = skip_space(p + 1);
    const char *last_end = NULL, *first_key = *p == '"' ? p : NULL;
    while (*p == '"') {
        const char *name = p + 1, *name_end = skip_string(p) - 1;
        p = skip_space(name_end + 1);
        if (*p != ':')
            break;
        p = skip_space(p + 1);
        const char *end = skip_value(p);
        if ((int64_t)strlen(key) == name_end - name &&
            !memcmp(key, name, (size_t)(name_end - name)))
            return splice(text, p - start, end - start, value);
        last_end = end;
        p = skip_space(end);
        if (*p == ',')
            p = skip_space(p + 1);
    }
    /* Absent: append after the last member, with the white space that stands before the first. */
    struct text put = {0};
    enum status status;
    int64_t at;
    if (first_key) {
        const char *gap = first_key;
        while (gap > start && gap[-1] != '{')
            gap--;
        TRY_OUT(text_puts(&put, ","));
        TRY_OUT(text_add(&put, gap, first_key - gap));
        at = last_end - start;
    } else {
        at = skip_space(start) + 1 - start;
    }
    TRY_OUT(text_printf(&put, "\"%s\": %s", key, value));
    TRY_OUT(splice(text, at, at, put.data));
out:
    text_free(&put);
    return status;
}
