/* regroup report: a run folder's results as report.html, report.md and report.json. */
#include "cli/commands.h"
#include "core/options.h"
#include "eval/report.h"

#include <stdio.h>
#include <string.h>

enum status cmd_report(int argc, char **argv) {
    const char *title = NULL;
    bool help = false;
    struct option options[] = {
        {.key = "title",
         .type = OPTION_STRING,
         .value = &title,
         .help = "the report's heading (the run's name)"},
        {.key = "help",
         .type = OPTION_BOOL,
         .value = &help,
         .short_name = 'h',
         .help = "this text"},
    };
    enum { N = sizeof options / sizeof *options };
    struct arena arena = {0};
    struct string_list args;
    enum status status;
    TRY_OUT(options_parse_args(options, N, argc, argv, &arena, &args));
    if (help) {
        printf("usage: regroup report RUN_DIR [OPTIONS]\n\n"
               "Writes report.html (self-contained), report.md and report.json into the folder of\n"
               "a 'regroup run' or a 'regroup train'. What is not measured yet is said so.\n\n");
        options_print_help(options, N);
        goto out;
    }
    if (args.n != 1) {
        status = status_fail(STATUS_USAGE,
                             "expected one run folder, found %lld arguments; see 'regroup report "
                             "--help'",
                             (long long)args.n);
        goto out;
    }
    TRY_OUT(report_write(args.items[0], title));
    const char *dir = args.items[0];
    size_t n = strlen(dir);
    printf("%s%sreport.html\n", dir, n && dir[n - 1] == '/' ? "" : "/");
out:
    arena_free(&arena);
    return status;
}
