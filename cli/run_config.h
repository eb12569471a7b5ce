/* The whole road from one configuration object: what `run` reads from a file and `sweep` makes. */
#ifndef REGROUP_CLI_RUN_CONFIG_H
#define REGROUP_CLI_RUN_CONFIG_H

#include "core/options.h"

/* `what` names the configuration in messages; `set` are KEY=VALUE changes. Prints the closing
 * table to stdout. */
enum status run_config(const struct json *config, const char *what,
                       const struct string_list *set) MUST_USE;
void run_print_keys(void); /* the configuration's keys with defaults, for --help */

#endif
