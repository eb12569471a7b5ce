/* What can be said about an evaluation, on the command line (eval) and in a configuration (run):
 * one table for both. */
#ifndef REGROUP_CLI_EVAL_ARGS_H
#define REGROUP_CLI_EVAL_ARGS_H

#include "core/options.h"
#include "eval/evaluate.h"

enum { EVAL_ARGS_MAX = 16 }; /* room that the table needs at most */

struct eval_args {
    struct eval_options options; /* complete after eval_args_resolve */
    const char *protocol, *dtype;
    struct string_list contexts;
};
void eval_args_default(struct eval_args *a);
/* Fills at most n_max entries over *a and returns how many. With `prefix` ("eval.") the keys are a
 * configuration's: prefixed, with _ for -; the arena holds them. Returns -1 when out of memory. */
int eval_args_options(struct eval_args *a, const char *prefix, struct arena *arena,
                      struct option *options, int n_max);
/* Text values into a->options; fails on what one value alone cannot tell. */
enum status eval_args_resolve(struct eval_args *a) MUST_USE;

#endif
