/* regroup run: a configuration file's whole road. */
#include "cli/commands.h"
#include "cli/run_config.h"

#include <stdio.h>

enum status cmd_run(int argc, char **argv) {
    struct string_list set = {0}, files;
    bool help = false;
    struct option options[] = {
        {.key = "set",
         .type = OPTION_EACH,
         .value = &set,
         .help = "KEY=VALUE: set a configuration key; may be repeated"},
        {.key = "help",
         .type = OPTION_BOOL,
         .value = &help,
         .short_name = 'h',
         .help = "this text"},
    };
    enum { N = sizeof options / sizeof *options };
    struct arena arena = {0};
    struct json *config = NULL;
    enum status status;
    TRY_OUT(options_parse_args(options, N, argc, argv, &arena, &files));
    if (help) {
        printf("usage: regroup run CONFIG.json [--set KEY=VALUE ...]\n\n"
               "Converts a model to every requested KV-head count, evaluates, distills each\n"
               "variant from the original, evaluates again and writes OUT/report.html, .md and\n"
               ".json. Run it again after an interruption: what is complete is kept, training\n"
               "continues.\n\n");
        options_print_help(options, N);
        printf("\nKeys of CONFIG.json, with defaults. The object \"train\" holds the keys of\n"
               "'regroup train --help' except teacher, student and out; without it nothing is\n"
               "distilled.\n\n");
        run_print_keys();
        goto out;
    }
    if (files.n != 1) {
        status = status_fail(STATUS_USAGE, "expected one CONFIG.json, found %lld; see --help",
                             (long long)files.n);
        goto out;
    }
    TRY_OUT(json_load(files.items[0], &config));
    status = run_config(config, files.items[0], &set);
out:
    json_free(config);
    arena_free(&arena);
    return status;
}
