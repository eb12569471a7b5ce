/* How heads are merged, in one word for lists and names: METHOD[+o|+qo|+qkvo][+grouped]. */
#ifndef REGROUP_CLI_METHOD_SPEC_H
#define REGROUP_CLI_METHOD_SPEC_H

#include "convert/convert.h"

#define METHOD_SPEC_HELP                                                                           \
    "how heads are merged: mean, first, random, procrustes, fit; +o, +qo or +qkvo refits, "        \
    "+grouped chooses which heads share, e.g. fit+o"

/* Sets method, refit and grouping. */
enum status method_spec_parse(const char *spec, struct convert_options *out) MUST_USE;

#endif
