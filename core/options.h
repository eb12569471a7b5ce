/* A declared set of options serves the command line, a JSON file, `--set key=value`, --help and
 * the resolved configuration that is saved beside a result: one table, one place for defaults. */
#ifndef REGROUP_CORE_OPTIONS_H
#define REGROUP_CORE_OPTIONS_H

#include "core/json.h"
#include "core/memory.h"

enum option_type {
    OPTION_INT,    /* int64_t */
    OPTION_DOUBLE, /* double */
    OPTION_BOOL,   /* bool */
    OPTION_STRING, /* const char *, in the arena or the default's literal */
    OPTION_LIST,   /* struct string_list: JSON array of strings (or one string); a,b,c on a line */
    OPTION_EACH,   /* struct string_list: every occurrence on a line adds its whole value */
};

struct string_list {
    const char **items;
    int64_t n;
};

struct option {
    const char *key; /* "kv-heads" on the line; "optimizer.lr" in JSON: dots descend objects */
    enum option_type type;
    void *value;                /* holds the default beforehand */
    const char *help, *choices; /* choices: "mean|first|random", NULL when free */
    double min, max;            /* bounds for INT and DOUBLE when min < max; inclusive */
    char short_name;            /* 'n' for -n; 0: none */
    bool set;                   /* out: given by the user */
};

/* Command line: "--key value", "--key=value", "-n value", "--flag" for BOOL. What is not an
 * option is appended to `positional` (LIST owned by the arena); "--" ends options. An unknown
 * option is STATUS_USAGE and names it together with the nearest known one. */
enum status options_parse_args(struct option *options, int n, int argc, char **argv,
                               struct arena *arena, struct string_list *positional) MUST_USE;
/* JSON object: unknown keys are STATUS_USAGE, named with their dotted path and `what`. Keys listed
 * in `ignored` (NULL-terminated, may be NULL) are skipped: sub-objects somebody else reads. */
enum status options_parse_json(struct option *options, int n, const struct json *object,
                               const char *what, const char *const *ignored,
                               struct arena *arena) MUST_USE;
/* One "key=value" of --set. */
enum status options_set(struct option *options, int n, const char *assignment,
                        struct arena *arena) MUST_USE;
/* The resolved values as a JSON object, dotted keys nested. Caller frees. */
struct json *options_to_json(const struct option *options, int n);
/* One line per option with its default, to stdout. */
void options_print_help(const struct option *options, int n);

#endif
