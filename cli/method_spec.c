/* See method_spec.h. */
#include "cli/method_spec.h"

#include <stdio.h>
#include <string.h>

enum status method_spec_parse(const char *spec, struct convert_options *out) {
    char word[32];
    bool first = true;
    out->refit = REFIT_NONE;
    out->grouping = GROUPING_CONTIGUOUS;
    for (const char *at = spec; at; first = false) {
        const char *plus = strchr(at, '+');
        size_t n = plus ? (size_t)(plus - at) : strlen(at);
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        at = plus ? plus + 1 : NULL;
        bool known = first ? merge_method_parse(word, &out->method) && out->method != MERGE_REPEAT
                           : refit_parse(word, &out->refit);
        if (!first && !strcmp(word, "grouped")) {
            out->grouping = GROUPING_FIT;
            known = true;
        }
        if (!known)
            return status_fail(STATUS_USAGE, "key 'methods': '%s' in '%s' is unknown: expected %s",
                               word, spec, METHOD_SPEC_HELP);
    }
    return STATUS_OK;
}
