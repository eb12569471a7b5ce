/* One option table for the command line, JSON, --set and --help. */
#include "core/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct option *find(struct option *options, int n, const char *key, size_t n_key) {
    for (int i = 0; i < n; i++)
        if (strlen(options[i].key) == n_key && !memcmp(options[i].key, key, n_key))
            return &options[i];
    return NULL;
}

/* Levenshtein distance of short keys, to suggest the nearest known one. */
static int distance(const char *a, size_t na, const char *b) {
    enum { MAX = 64 };
    size_t nb = strlen(b);
    int row[MAX + 1];
    if (na > MAX || nb > MAX)
        return MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int gap = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < gap ? change : gap;
        }
    }
    return row[nb];
}

static enum status unknown(const struct option *options, int n, const char *what, const char *key,
                           size_t n_key) {
    const char *best = NULL;
    int nearest = 4;
    for (int i = 0; i < n; i++) {
        int d = distance(key, n_key, options[i].key);
        if (d < nearest) {
            nearest = d;
            best = options[i].key;
        }
    }
    if (best)
        return status_fail(STATUS_USAGE, "%s '%.*s' is unknown; did you mean '%s'?", what,
                           (int)n_key, key, best);
    return status_fail(STATUS_USAGE, "%s '%.*s' is unknown; --help lists the known ones", what,
                       (int)n_key, key);
}

static enum status check_number(const struct option *o, const char *what, double v) {
    if (o->min < o->max && !(v >= o->min && v <= o->max))
        return status_fail(STATUS_USAGE, "%s '%s': expected %g to %g, found %g", what, o->key,
                           o->min, o->max, v);
    if (!isfinite(v))
        return status_fail(STATUS_USAGE, "%s '%s': expected a finite number", what, o->key);
    return STATUS_OK;
}

static enum status set_string(struct option *o, const char *what, const char *v,
                              struct arena *arena) {
    if (o->choices) {
        size_t n = strlen(v);
        bool known = false;
        for (const char *c = o->choices; c && !known;) {
            const char *bar = strchr(c, '|');
            size_t m = bar ? (size_t)(bar - c) : strlen(c);
            known = m == n && !memcmp(c, v, n);
            c = bar ? bar + 1 : NULL;
        }
        if (!known)
            return status_fail(STATUS_USAGE, "%s '%s': expected one of %s, found '%s'", what,
                               o->key, o->choices, v);
    }
    char *copy;
    TRY(arena_strdup(arena, v, &copy));
    *(const char **)o->value = copy;
    return STATUS_OK;
}

static enum status append(struct string_list *list, const char *v, size_t n, struct arena *arena) {
    const char **items;
    char *copy;
    TRY(arena_alloc(arena, list->n + 1, (int64_t)sizeof *items, &items));
    TRY(arena_strndup(arena, v, (int64_t)n, &copy));
    if (list->n)
        memcpy(items, list->items, (size_t)list->n * sizeof *items);
    items[list->n] = copy;
    *list = (struct string_list){items, list->n + 1};
    return STATUS_OK;
}

/* From text: a command line's or --set's value. */
static enum status set_text(struct option *o, const char *what, const char *v,
                            struct arena *arena) {
    char *end;
    bool again = o->set;
    o->set = true;
    switch (o->type) {
    case OPTION_INT: {
        errno = 0;
        long long i = strtoll(v, &end, 10);
        if (end == v || *end || errno)
            return status_fail(STATUS_USAGE, "%s '%s': expected a whole number, found '%s'", what,
                               o->key, v);
        TRY(check_number(o, what, (double)i));
        *(int64_t *)o->value = i;
        return STATUS_OK;
    }
    case OPTION_DOUBLE: {
        double d = strtod(v, &end);
        if (end == v || *end)
            return status_fail(STATUS_USAGE, "%s '%s': expected a number, found '%s'", what, o->key,
                               v);
        TRY(check_number(o, what, d));
        *(double *)o->value = d;
        return STATUS_OK;
    }
    case OPTION_BOOL:
        if (strcmp(v, "true") && strcmp(v, "false"))
            return status_fail(STATUS_USAGE, "%s '%s': expected true or false, found '%s'", what,
                               o->key, v);
        *(bool *)o->value = !strcmp(v, "true");
        return STATUS_OK;
    case OPTION_STRING:
        return set_string(o, what, v, arena);
    case OPTION_EACH:
        if (!again)
            *(struct string_list *)o->value = (struct string_list){0};
        return append(o->value, v, strlen(v), arena);
    case OPTION_LIST: {
        struct string_list *list = o->value;
        *list = (struct string_list){0};
        for (const char *c = v; c;) {
            const char *comma = strchr(c, ',');
            size_t n = comma ? (size_t)(comma - c) : strlen(c);
            if (n)
                TRY(append(list, c, n, arena));
            c = comma ? comma + 1 : NULL;
        }
        return STATUS_OK;
    }
    }
    return STATUS_OK;
}

enum status options_parse_args(struct option *options, int n, int argc, char **argv,
                               struct arena *arena, struct string_list *positional) {
    bool only_positional = false;
    *positional = (struct string_list){0};
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!only_positional && !strcmp(arg, "--")) {
            only_positional = true;
            continue;
        }
        if (only_positional || arg[0] != '-' || !arg[1]) {
            TRY(append(positional, arg, strlen(arg), arena));
            continue;
        }
        struct option *o = NULL;
        const char *value = NULL;
        if (arg[1] == '-') {
            const char *key = arg + 2, *equals = strchr(key, '=');
            size_t n_key = equals ? (size_t)(equals - key) : strlen(key);
            o = find(options, n, key, n_key);
            if (!o)
                return unknown(options, n, "option", key, n_key);
            value = equals ? equals + 1 : NULL;
        } else {
            for (int k = 0; k < n; k++)
                if (options[k].short_name && options[k].short_name == arg[1])
                    o = &options[k];
            if (!o)
                return status_fail(STATUS_USAGE,
                                   "option '%s' is unknown; --help lists the known "
                                   "ones",
                                   arg);
            value = arg[2] ? arg + 2 : NULL;
        }
        if (!value && o->type == OPTION_BOOL)
            value = "true";
        if (!value && i + 1 >= argc)
            return status_fail(STATUS_USAGE, "option '--%s' needs a value", o->key);
        TRY(set_text(o, "option", value ? value : argv[++i], arena));
        if (o->type == OPTION_LIST && !((struct string_list *)o->value)->n)
            return status_fail(STATUS_USAGE, "option '--%s': the list is empty", o->key);
    }
    return STATUS_OK;
}

static enum status set_json(struct option *o, const char *what, const struct json *v,
                            struct arena *arena) {
    o->set = true;
    switch (o->type) {
    case OPTION_INT:
        if (!json_is_int(v))
            return status_fail(STATUS_USAGE, "%s '%s': expected a whole number", what, o->key);
        TRY(check_number(o, what, json_number(v)));
        *(int64_t *)o->value = json_int(v);
        return STATUS_OK;
    case OPTION_DOUBLE:
        if (!json_is_number(v))
            return status_fail(STATUS_USAGE, "%s '%s': expected a number", what, o->key);
        TRY(check_number(o, what, json_number(v)));
        *(double *)o->value = json_number(v);
        return STATUS_OK;
    case OPTION_BOOL:
        if (!json_is_bool(v))
            return status_fail(STATUS_USAGE, "%s '%s': expected true or false", what, o->key);
        *(bool *)o->value = json_true(v);
        return STATUS_OK;
    case OPTION_STRING:
        if (!json_is_string(v))
            return status_fail(STATUS_USAGE, "%s '%s': expected a string", what, o->key);
        return set_string(o, what, json_string(v), arena);
    case OPTION_EACH:
    case OPTION_LIST: {
        struct string_list *list = o->value;
        *list = (struct string_list){0};
        if (json_is_string(v))
            return append(list, json_string(v), strlen(json_string(v)), arena);
        if (!json_is_array(v))
            return status_fail(STATUS_USAGE, "%s '%s': expected a list of strings", what, o->key);
        for (const struct json *c = json_first(v); c; c = json_next(c)) {
            char number[32];
            const char *text = json_string(c);
            if (!text && json_is_int(c)) { /* [8, 1] is what ["8", "1"] means */
                snprintf(number, sizeof number, "%lld", (long long)json_int(c));
                text = number;
            }
            if (!text)
                return status_fail(STATUS_USAGE, "%s '%s': expected a list of strings", what,
                                   o->key);
            TRY(append(list, text, strlen(text), arena));
        }
        return STATUS_OK;
    }
    }
    return STATUS_OK;
}

static enum status parse_object(struct option *options, int n, const struct json *object,
                                const char *prefix, const char *what, const char *const *ignored,
                                struct arena *arena) {
    for (const struct json *c = json_first(object); c; c = json_next(c)) {
        char *key;
        bool skip = false;
        TRY(arena_printf(arena, &key, "%s%s", prefix, json_key(c)));
        for (int i = 0; ignored && ignored[i]; i++)
            skip |= !strcmp(ignored[i], key);
        if (skip)
            continue;
        struct option *o = find(options, n, key, strlen(key));
        bool group = false;
        for (int i = 0; i < n && !o; i++)
            group |=
                !strncmp(options[i].key, key, strlen(key)) && options[i].key[strlen(key)] == '.';
        if (o && json_is_null(c))
            continue; /* null: the default */
        if (o) {
            TRY(set_json(o, what, c, arena));
        } else if (group && json_is_object(c)) {
            char *inner;
            TRY(arena_printf(arena, &inner, "%s.", key));
            TRY(parse_object(options, n, c, inner, what, ignored, arena));
        } else if (group) {
            return status_fail(STATUS_USAGE, "%s '%s': expected an object", what, key);
        } else {
            return unknown(options, n, what, key, strlen(key));
        }
    }
    return STATUS_OK;
}

enum status options_parse_json(struct option *options, int n, const struct json *object,
                               const char *what, const char *const *ignored, struct arena *arena) {
    char *label;
    if (!json_is_object(object))
        return status_fail(STATUS_USAGE, "%s: expected a JSON object of settings", what);
    TRY(arena_printf(arena, &label, "%s: key", what));
    return parse_object(options, n, object, "", label, ignored, arena);
}

enum status options_set(struct option *options, int n, const char *assignment,
                        struct arena *arena) {
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment)
        return status_fail(STATUS_USAGE, "--set %s: expected key=value", assignment);
    struct option *o = find(options, n, assignment, (size_t)(equals - assignment));
    if (!o)
        return unknown(options, n, "--set key", assignment, (size_t)(equals - assignment));
    return set_text(o, "--set key", equals + 1, arena);
}

static void put_json(struct json *object, const char *key, const struct option *o) {
    switch (o->type) {
    case OPTION_INT:
        json_set_int(object, key, *(int64_t *)o->value);
        return;
    case OPTION_DOUBLE:
        json_set_number(object, key, *(double *)o->value);
        return;
    case OPTION_BOOL:
        json_set_bool(object, key, *(bool *)o->value);
        return;
    case OPTION_STRING:
        json_set_string(object, key, *(const char **)o->value);
        return;
    case OPTION_EACH:
    case OPTION_LIST: {
        const struct string_list *list = o->value;
        struct json *array = json_set_array(object, key);
        for (int64_t i = 0; i < list->n; i++)
            json_push_string(array, list->items[i]);
        return;
    }
    }
}

struct json *options_to_json(const struct option *options, int n) {
    struct json *root = json_object();
    for (int i = 0; i < n; i++) {
        struct json *object = root;
        const char *key = options[i].key, *dot;
        while ((dot = strchr(key, '.')) != NULL) {
            char group[64];
            snprintf(group, sizeof group, "%.*s", (int)(dot - key), key);
            /* const is dropped for a tree that this function is still building */
            struct json *inner = (struct json *)(intptr_t)json_get(object, group);
            object = inner ? inner : json_set_object(object, group);
            key = dot + 1;
        }
        put_json(object, key, &options[i]);
    }
    return root;
}

static void print_default(const struct option *o) {
    if (o->set)
        return; /* the user's value, not the default: --help itself, mostly */
    switch (o->type) {
    case OPTION_INT:
        printf(" [%lld]", (long long)*(int64_t *)o->value);
        return;
    case OPTION_DOUBLE:
        printf(" [%g]", *(double *)o->value);
        return;
    case OPTION_BOOL:
        if (*(bool *)o->value)
            printf(" [true]");
        return;
    case OPTION_STRING:
        if (*(const char **)o->value)
            printf(" [%s]", *(const char **)o->value);
        return;
    case OPTION_EACH:
    case OPTION_LIST: {
        const struct string_list *list = o->value;
        for (int64_t i = 0; i < list->n; i++)
            printf("%s%s%s", i ? "," : " [", list->items[i], i + 1 == list->n ? "]" : "");
        return;
    }
    }
}

void options_print_help(const struct option *options, int n) {
    static const char *const kinds[] = {"N", "X", "", "TEXT", "LIST", "TEXT"};
    for (int i = 0; i < n; i++) {
        const struct option *o = &options[i];
        char left[160];
        int used = o->short_name ? snprintf(left, sizeof left, "-%c, ", o->short_name) : 0;
        snprintf(left + used, sizeof left - (size_t)used, "--%s %s", o->key,
                 o->choices ? o->choices : kinds[o->type]);
        printf(strlen(left) <= 26 ? "  %-26s  %s" : "  %s\n                              %s", left,
               o->help);
        print_default(o);
        printf("\n");
    }
}
