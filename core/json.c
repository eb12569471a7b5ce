/* JSON through cJSON; see json_text.c for edits that keep a file's bytes. */
#include "core/json.h"

#include "core/file.h"
#include "core/utf8.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local bool build_failed;

static const cJSON *node(const struct json *j) {
    return (const cJSON *)j;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Parsers disagree on which of two equal keys counts, so neither does. */
static enum status refuse_twins(const cJSON *j, const char *what) {
    const char **keys = NULL, *twin = NULL;
    int64_t n = 0, capacity = 0;
    enum status status = STATUS_OK;
    for (const cJSON *c = j->child; c; c = c->next) {
        if (c->child)
            TRY_OUT(refuse_twins(c, what));
        if (!c->string)
            continue;
        TRY_OUT(memory_grow(&keys, &capacity, n + 1, (int64_t)sizeof *keys, what));
        keys[n++] = c->string;
    }
    if (n)
        qsort(keys, (size_t)n, sizeof *keys, by_text);
    for (int64_t i = 1; i < n && !twin; i++)
        if (!strcmp(keys[i - 1], keys[i]))
            twin = keys[i];
    if (twin)
        status =
            status_fail(STATUS_FAILED, "%s: key \"%s\" is there twice in one object", what, twin);
out:
    memory_free(keys);
    return status;
}

enum status json_parse(const char *text, int64_t n, const char *what, struct json **out) {
    *out = NULL;
    if (n == 0)
        return status_fail(STATUS_FAILED, "%s: empty; expected JSON", what);
    int64_t invalid = utf8_find_invalid(text, n);
    if (invalid >= 0)
        return status_fail(STATUS_FAILED, "%s: not valid JSON: invalid UTF-8 at byte %lld", what,
                           (long long)invalid);
    for (int64_t i = 0; i < n; i++) /* JSON's own rule; cJSON would let a NUL end a key early */
        if ((unsigned char)text[i] < 0x20 && !strchr("\t\n\r", text[i] ? text[i] : 1))
            return status_fail(STATUS_FAILED,
                               "%s: not valid JSON: control byte 0x%02x at byte %lld", what,
                               (unsigned char)text[i], (long long)i);
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, (size_t)n, &end, 0);
    /* cJSON stops at the value's end; what follows must be white space. */
    const char *tail = end;
    while (root && tail < text + n && *tail && strchr(" \t\r\n", *tail))
        tail++;
    if (!root || tail != text + n) {
        if (!tail || tail < text || tail > text + n)
            tail = text;
        int64_t line = 1;
        for (const char *c = text; c < tail; c++)
            line += *c == '\n';
        cJSON_Delete(root);
        return status_fail(STATUS_FAILED, "%s: not valid JSON at line %lld (byte %lld)", what,
                           (long long)line, (long long)(tail - text));
    }
    enum status status = refuse_twins(root, what);
    if (status != STATUS_OK)
        cJSON_Delete(root);
    else
        *out = (struct json *)root;
    return status;
}

enum status json_load(const char *path, struct json **out) {
    struct text text = {0};
    *out = NULL;
    enum status status = file_read(path, (int64_t)1 << 30, &text);
    if (status == STATUS_OK)
        status = json_parse(text.data ? text.data : "", text.n, path, out);
    text_free(&text);
    return status;
}

void json_free(struct json *root) {
    cJSON_Delete((cJSON *)root);
}

bool json_is_object(const struct json *j) {
    return j && cJSON_IsObject(node(j));
}

bool json_is_array(const struct json *j) {
    return j && cJSON_IsArray(node(j));
}

bool json_is_string(const struct json *j) {
    return j && cJSON_IsString(node(j));
}

bool json_is_number(const struct json *j) {
    return j && cJSON_IsNumber(node(j));
}

bool json_is_int(const struct json *j) {
    if (!json_is_number(j))
        return false;
    double v = node(j)->valuedouble;
    return fabs(v) <= 9007199254740992.0 && v == floor(v);
}

bool json_is_bool(const struct json *j) {
    return j && cJSON_IsBool(node(j));
}

bool json_is_null(const struct json *j) {
    return j && cJSON_IsNull(node(j));
}

const char *json_string(const struct json *j) {
    return json_is_string(j) ? node(j)->valuestring : NULL;
}

double json_number(const struct json *j) {
    return json_is_number(j) ? node(j)->valuedouble : (double)NAN;
}

int64_t json_int(const struct json *j) {
    return json_is_int(j) ? (int64_t)node(j)->valuedouble : 0;
}

bool json_true(const struct json *j) {
    return j && cJSON_IsTrue(node(j));
}

const struct json *json_get(const struct json *obj, const char *key) {
    if (!json_is_object(obj))
        return NULL;
    return (const struct json *)cJSON_GetObjectItemCaseSensitive(node(obj), key);
}

const struct json *json_first(const struct json *j) {
    return json_is_object(j) || json_is_array(j) ? (const struct json *)node(j)->child : NULL;
}

const struct json *json_next(const struct json *child) {
    return (const struct json *)node(child)->next;
}

const char *json_key(const struct json *child) {
    return node(child)->string;
}

int64_t json_len(const struct json *j) {
    int64_t n = 0;
    for (const struct json *c = json_first(j); c; c = json_next(c))
        n++;
    return n;
}

static const char *kind(const struct json *j) {
    if (json_is_object(j))
        return "an object";
    if (json_is_array(j))
        return "an array";
    if (json_is_string(j))
        return "a string";
    if (json_is_bool(j))
        return "true or false";
    if (json_is_null(j))
        return "null";
    return "a number";
}

/* The member, or NULL when absent or null; `required` makes that a failure. */
static enum status member(const struct json *o, const char *what, const char *key, bool required,
                          const struct json **out) {
    const struct json *j = json_get(o, key);
    *out = j && !json_is_null(j) ? j : NULL;
    if (required && !*out)
        return status_fail(STATUS_FAILED, "%s: key \"%s\" is missing", what, key);
    return STATUS_OK;
}

static enum status wrong(const char *what, const char *key, const char *expected,
                         const struct json *found) {
    return status_fail(STATUS_FAILED, "%s: key \"%s\": expected %s, found %s", what, key, expected,
                       kind(found));
}

static enum status get_int(const struct json *o, const char *what, const char *key, bool required,
                           int64_t *out) {
    const struct json *j;
    TRY(member(o, what, key, required, &j));
    if (j && json_is_number(j) && !json_is_int(j))
        return status_fail(STATUS_FAILED, "%s: key \"%s\": expected a whole number, found %g", what,
                           key, json_number(j));
    if (j && !json_is_int(j))
        return wrong(what, key, "a whole number", j);
    if (j)
        *out = json_int(j);
    return STATUS_OK;
}

enum status json_opt_double(const struct json *o, const char *what, const char *key, double *out) {
    const struct json *j;
    TRY(member(o, what, key, false, &j));
    if (j && !json_is_number(j))
        return wrong(what, key, "a number", j);
    if (j)
        *out = json_number(j);
    return STATUS_OK;
}

static enum status get_string(const struct json *o, const char *what, const char *key,
                              bool required, const char **out) {
    const struct json *j;
    TRY(member(o, what, key, required, &j));
    if (j && !json_is_string(j))
        return wrong(what, key, "a string", j);
    if (j)
        *out = json_string(j);
    return STATUS_OK;
}

enum status json_need_int(const struct json *o, const char *what, const char *key, int64_t *out) {
    return get_int(o, what, key, true, out);
}

enum status json_opt_int(const struct json *o, const char *what, const char *key, int64_t *out) {
    return get_int(o, what, key, false, out);
}

enum status json_opt_bool(const struct json *o, const char *what, const char *key, bool *out) {
    const struct json *j;
    TRY(member(o, what, key, false, &j));
    if (j && !json_is_bool(j))
        return wrong(what, key, "true or false", j);
    if (j)
        *out = json_true(j);
    return STATUS_OK;
}

enum status json_need_string(const struct json *o, const char *what, const char *key,
                             const char **out) {
    return get_string(o, what, key, true, out);
}

enum status json_opt_string(const struct json *o, const char *what, const char *key,
                            const char **out) {
    return get_string(o, what, key, false, out);
}

static struct json *built(cJSON *j) {
    if (!j)
        build_failed = true;
    return (struct json *)j;
}

/* Attach `item` to an object under `key`, or to an array when key is NULL. */
static struct json *attach(struct json *parent, const char *key, cJSON *item) {
    bool ok = item && parent &&
              (key ? cJSON_AddItemToObject((cJSON *)parent, key, item)
                   : cJSON_AddItemToArray((cJSON *)parent, item));
    if (!ok) {
        cJSON_Delete(item);
        build_failed = true;
        return NULL;
    }
    return (struct json *)item;
}

/* Names of files may be any bytes, JSON is UTF-8: what is not becomes U+FFFD. */
static cJSON *string(const char *v) {
    struct text text = {0};
    enum status status = STATUS_OK;
    cJSON *item = NULL;
    if (!v)
        return cJSON_CreateNull();
    for (int64_t bad; status == STATUS_OK; v += bad + 1) {
        bad = utf8_find_invalid(v, (int64_t)strlen(v));
        if (bad < 0)
            break;
        status = text_add(&text, v, bad);
        if (status == STATUS_OK)
            status = text_puts(&text, "\xef\xbf\xbd");
    }
    if (status == STATUS_OK && text_puts(&text, v) == STATUS_OK)
        item = cJSON_CreateString(text.data);
    text_free(&text);
    return item;
}

static cJSON *number(double v) {
    return isfinite(v) ? cJSON_CreateNumber(v) : cJSON_CreateNull();
}

struct json *json_object(void) {
    return built(cJSON_CreateObject());
}

struct json *json_array(void) {
    return built(cJSON_CreateArray());
}

void json_set_string(struct json *o, const char *key, const char *v) {
    attach(o, key, string(v));
}

void json_set_number(struct json *o, const char *key, double v) {
    attach(o, key, number(v));
}

void json_set_int(struct json *o, const char *key, int64_t v) {
    attach(o, key, number((double)v));
}

void json_set_bool(struct json *o, const char *key, bool v) {
    attach(o, key, cJSON_CreateBool(v));
}

struct json *json_set_object(struct json *o, const char *key) {
    return attach(o, key, cJSON_CreateObject());
}

struct json *json_set_array(struct json *o, const char *key) {
    return attach(o, key, cJSON_CreateArray());
}

void json_set_copy(struct json *o, const char *key, const struct json *v) {
    attach(o, key, cJSON_Duplicate(node(v), 1));
}

void json_push_string(struct json *a, const char *v) {
    attach(a, NULL, string(v));
}

void json_push_number(struct json *a, double v) {
    attach(a, NULL, number(v));
}

struct json *json_push_object(struct json *a) {
    return attach(a, NULL, cJSON_CreateObject());
}

struct json *json_push_array(struct json *a) {
    return attach(a, NULL, cJSON_CreateArray());
}

static enum status put_indent(struct text *out, int depth) {
    TRY(text_puts(out, "\n"));
    for (int i = 0; i < depth; i++)
        TRY(text_puts(out, "  "));
    return STATUS_OK;
}

/* Scalars by cJSON (it round-trips doubles); the layout is ours: two spaces, short arrays of
 * scalars on one line. */
static enum status put(const struct json *j, bool pretty, int depth, struct text *out) {
    bool object = json_is_object(j);
    if (!object && !json_is_array(j)) {
        char *s = cJSON_PrintUnformatted(node(j));
        if (!s)
            return status_nomem("JSON text", 64);
        enum status status = text_puts(out, s);
        cJSON_free(s);
        return status;
    }
    bool broken = false;
    if (pretty)
        for (const struct json *c = json_first(j); c; c = json_next(c))
            broken |= object || json_is_object(c) || json_is_array(c);
    TRY(text_puts(out, object ? "{" : "["));
    for (const struct json *c = json_first(j); c; c = json_next(c)) {
        if (c != json_first(j))
            TRY(text_puts(out, broken || !pretty ? "," : ", "));
        if (broken)
            TRY(put_indent(out, depth + 1));
        if (object) {
            cJSON *key = cJSON_CreateString(json_key(c));
            enum status status =
                key ? put((struct json *)key, pretty, 0, out) : status_nomem("JSON key", 64);
            cJSON_Delete(key);
            TRY(status);
            TRY(text_puts(out, pretty ? ": " : ":"));
        }
        TRY(put(c, pretty, depth + 1, out));
    }
    if (broken && json_first(j))
        TRY(put_indent(out, depth));
    return text_puts(out, object ? "}" : "]");
}

enum status json_print(const struct json *j, bool pretty, struct text *out) {
    if (build_failed || !j) {
        build_failed = false;
        return status_nomem("JSON tree", 64);
    }
    return put(j, pretty, 0, out);
}

enum status json_save(const struct json *j, const char *path) {
    struct text text = {0};
    enum status status = json_print(j, true, &text);
    if (status == STATUS_OK)
        status = text_puts(&text, "\n");
    if (status == STATUS_OK)
        status = file_write(path, text.data, text.n);
    text_free(&text);
    return status;
}
