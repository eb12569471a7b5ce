/* regroup: dispatch to a sub-command, print its one error line, turn its status into an exit code
 * (0 done, 1 failed, 2 usage). The only place that ends the process. */
#include "cli/commands.h"
#include "core/parallel.h"
#include "kernels/backend.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *summary;
    enum status (*run)(int argc, char **argv);
} commands[] = {
    {"inspect", "what a model folder holds: heads, parameters, KV-cache bytes", cmd_inspect},
    {"convert", "write the model with fewer (or more) KV heads", cmd_convert},
    {"train", "distill, fine-tune or pretrain; resumes bit for bit", cmd_train},
    {"eval", "perplexity, divergence from a teacher, KV-cache bytes, speed", cmd_eval},
    {"generate", "continue a prompt, decoding through the KV cache", cmd_generate},
    {"report", "a run folder's results as HTML, Markdown and JSON", cmd_report},
    {"sweep", "methods against KV-head counts: the trade-off curve", cmd_sweep},
    {"run", "convert, evaluate, distill, evaluate, report; continues where it stopped", cmd_run},
    {NULL, NULL, NULL},
};

static void print_help(void) {
    printf("regroup turns a multi-head-attention checkpoint into grouped-query or multi-query\n"
           "attention, wins the lost quality back by a short distillation, and shows what was\n"
           "gained and lost.\n\n"
           "usage: regroup COMMAND [ARGUMENTS]      regroup COMMAND --help\n\n");
    for (int i = 0; commands[i].name; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\nResults go to stdout, everything else to stderr.\n"
           "Exit codes: 0 done, 1 failed, 2 wrong usage.\n");
}

static void print_version(void) {
    char cuda[512];
    backend_describe_cuda(cuda, sizeof cuda);
    printf("regroup %s\ndevices: %s\n%s\n", REGROUP_VERSION, backend_names(), cuda);
}

/* Started with stdout or stderr closed, the next file opened would take its number and be printed
 * into. Read-only: printing still fails. */
static void keep_standard_files(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0)
            return;
}

static int finish(const char *label, enum status status) {
    if (status == STATUS_OK && (fflush(stdout) || ferror(stdout)))
        status = status_errno("cannot write the result to stdout");
    if (status != STATUS_OK)
        fprintf(stderr, "%s: %s\n", label, status_message());
    return status == STATUS_OK ? 0 : status == STATUS_USAGE ? 2 : 1;
}

int main(int argc, char **argv) {
    parallel_prepare(argv);
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit is then an error like a full disk */
    keep_standard_files();
    if (argc < 2) {
        fprintf(stderr, "regroup: expected a command; 'regroup --help' lists them\n");
        return 2;
    }
    bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help");
    if (help || !strcmp(argv[1], "--version")) {
        if (help)
            print_help();
        else
            print_version();
        return finish("regroup", STATUS_OK);
    }
    for (int i = 0; commands[i].name; i++) {
        if (strcmp(argv[1], commands[i].name))
            continue;
        char label[32];
        snprintf(label, sizeof label, "regroup %s", commands[i].name);
        return finish(label, commands[i].run(argc - 1, argv + 1));
    }
    fprintf(stderr, "regroup: unknown command '%s'; 'regroup --help' lists them\n", argv[1]);
    return 2;
}
