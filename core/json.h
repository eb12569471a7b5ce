/* JSON in and out (cJSON inside, and only here). A `struct json` is one node of a tree; the root
 * is owned by whoever parsed or created it and freed with json_free. Every failing accessor names
 * the file and the key. */
#ifndef REGROUP_CORE_JSON_H
#define REGROUP_CORE_JSON_H

#include "core/status.h"
#include "core/text.h"

#include <stdbool.h>
#include <stdint.h>

struct json;

/* `what` is the file's name for messages. The text need not be NUL-terminated; anything but white
 * space after the value is an error. */
enum status json_parse(const char *text, int64_t n, const char *what, struct json **out) MUST_USE;
enum status json_load(const char *path, struct json **out) MUST_USE;
void json_free(struct json *root);

bool json_is_object(const struct json *j);
bool json_is_array(const struct json *j);
bool json_is_string(const struct json *j);
bool json_is_number(const struct json *j);
bool json_is_int(const struct json *j); /* a number, integral, |n| <= 2^53 */
bool json_is_bool(const struct json *j);
bool json_is_null(const struct json *j);
const char *json_string(const struct json *j); /* NULL if not a string; borrowed */
double json_number(const struct json *j);      /* NaN if not a number */
int64_t json_int(const struct json *j);        /* 0 if not json_is_int */
bool json_true(const struct json *j);

/* Case-sensitive member lookup, linear; NULL when absent or when obj is NULL or no object. */
const struct json *json_get(const struct json *obj, const char *key);
/* Children of an object or array, in file order: for (c = json_first(j); c; c = json_next(c)). */
const struct json *json_first(const struct json *j);
const struct json *json_next(const struct json *child);
const char *json_key(const struct json *child); /* NULL for an array's element */
int64_t json_len(const struct json *j);

/* Typed members. `need` fails when the key is absent; `opt` leaves *out alone when it is absent or
 * null. Both fail on a wrong type. `what` is the file's name. Strings are borrowed. */
enum status json_need_int(const struct json *o, const char *what, const char *key,
                          int64_t *out) MUST_USE;
enum status json_opt_int(const struct json *o, const char *what, const char *key,
                         int64_t *out) MUST_USE;
enum status json_opt_double(const struct json *o, const char *what, const char *key,
                            double *out) MUST_USE;
enum status json_opt_bool(const struct json *o, const char *what, const char *key,
                          bool *out) MUST_USE;
enum status json_need_string(const struct json *o, const char *what, const char *key,
                             const char **out) MUST_USE;
enum status json_opt_string(const struct json *o, const char *what, const char *key,
                            const char **out) MUST_USE;

/* Building. Failures of memory are remembered in the thread and reported by json_print. Children
 * belong to the parent at once. NaN and infinities are written as null. */
struct json *json_object(void);
struct json *json_array(void);
void json_set_string(struct json *o, const char *key, const char *v); /* v NULL: null */
void json_set_number(struct json *o, const char *key, double v);
void json_set_int(struct json *o, const char *key, int64_t v);
void json_set_bool(struct json *o, const char *key, bool v);
struct json *json_set_object(struct json *o, const char *key); /* returns the new member */
struct json *json_set_array(struct json *o, const char *key);
void json_set_copy(struct json *o, const char *key, const struct json *v); /* deep copy */
void json_push_string(struct json *a, const char *v);
void json_push_number(struct json *a, double v);
struct json *json_push_object(struct json *a);
struct json *json_push_array(struct json *a);

/* Appends the tree to `out`: pretty with two spaces, or on one line. */
enum status json_print(const struct json *j, bool pretty, struct text *out) MUST_USE;
/* Pretty text written atomically (core/file.h). */
enum status json_save(const struct json *j, const char *path) MUST_USE;

/* Replace or append one top-level member of an object's *text*, every other byte untouched: a
 * config.json keeps its formatting and the exact spelling of its numbers. `value` is JSON text.
 * `text` must have been accepted by json_parse as an object. */
enum status json_text_set(struct text *text, const char *key, const char *value) MUST_USE;

#endif
