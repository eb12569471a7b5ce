/* regroup train: a run from a configuration file. */
#include "cli/commands.h"

#include "core/log.h"
#include "kernels/backend.h"
#include "train/train_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_help(const struct option *options, int n) {
    struct train_config c = train_config_default();
    struct option keys[TRAIN_CONFIG_OPTIONS];
    int n_key = train_config_options(&c, keys);
    printf("Train a model: distil a teacher into a student, fine-tune, or pretrain.\n\n"
           "usage: regroup train CONFIG.json [--set KEY=VALUE ...] [OPTIONS]\n\n");
    options_print_help(options, n);
    printf(
        "\nKeys of CONFIG.json (dots descend objects; relative paths are relative to the current\n"
        "folder), with their defaults:\n");
    options_print_help(keys, n_key);
    printf("\nOUT/last and OUT/best are model folders, OUT/log.jsonl has one JSON line a step.\n");
}

static enum status print_result(const struct train_config *c, const struct train_result *r,
                                bool as_json) {
    bool has_best = r->best_step >= 0;
    if (!as_json) {
        printf("%s/last  step %lld of %lld", c->out, (long long)r->step, (long long)c->steps);
        if (r->was_complete)
            printf(" (was complete)");
        else if (isfinite(r->loss))
            printf(", training loss %.4f", r->loss);
        if (has_best)
            printf("\n%s/best  step %lld, held-out NLL %.4f", c->out, (long long)r->best_step,
                   r->best_nll);
        printf("\n");
        return STATUS_OK;
    }
    struct json *j = json_object();
    struct text text = {0};
    json_set_string(j, "out", c->out);
    json_set_int(j, "step", r->step);
    json_set_bool(j, "was_complete", r->was_complete);
    json_set_number(j, "loss", r->loss);
    json_set_number(j, "best_step", has_best ? (double)r->best_step : NAN);
    json_set_number(j, "best_nll", has_best ? r->best_nll : NAN);
    enum status status = json_print(j, true, &text);
    if (status == STATUS_OK)
        printf("%s\n", text.data);
    text_free(&text);
    json_free(j);
    return status;
}

static enum status run(int argc, char **argv, struct arena *arena) {
    bool resume = false, force = false, json = false, quiet = false, help = false;
    const char *device = NULL, *attention = NULL;
    struct string_list sets = {0}, paths;
    struct option options[] = {
        {.key = "set",
         .type = OPTION_EACH,
         .value = &sets,
         .help = "KEY=VALUE: set a configuration key; may be repeated"},
        {.key = "device",
         .type = OPTION_STRING,
         .value = &device,
         .choices = backend_names(),
         .help = "where it runs; instead of the key backend"},
        {.key = "attention",
         .type = OPTION_STRING,
         .value = &attention,
         .choices = "auto|own|cudnn",
         .help = "its kernels on cuda; auto measures, own and cudnn repeat every bit"},
        {.key = "resume",
         .type = OPTION_BOOL,
         .value = &resume,
         .help = "continue the run in out bit-exactly; start it when there is no checkpoint yet"},
        {.key = "force", .type = OPTION_BOOL, .value = &force, .help = "replace an earlier run"},
        {.key = "json", .type = OPTION_BOOL, .value = &json, .help = "print the result as JSON"},
        {.key = "quiet",
         .type = OPTION_BOOL,
         .value = &quiet,
         .short_name = 'q',
         .help = "no progress"},
        {.key = "help",
         .type = OPTION_BOOL,
         .value = &help,
         .short_name = 'h',
         .help = "print this"},
    };
    const int n = (int)(sizeof options / sizeof *options);
    TRY(options_parse_args(options, n, argc, argv, arena, &paths));
    if (help) {
        print_help(options, n);
        return STATUS_OK;
    }
    if (paths.n != 1)
        return status_fail(STATUS_USAGE, "expected one CONFIG.json, found %lld; see --help",
                           (long long)paths.n);
    if (resume && force)
        return status_fail(STATUS_USAGE, "--resume and --force exclude each other");
    log_set_quiet(quiet);
    struct train_config config;
    struct train_result result;
    TRY(train_config_load(paths.items[0], &sets, arena, &config));
    if (device)
        config.backend = device;
    if (attention)
        setenv("REGROUP_ATTENTION", attention, 1);
    TRY(train_run(&config, resume ? TRAIN_RESUME : force ? TRAIN_FORCE : TRAIN_NEW, &result));
    return print_result(&config, &result, json);
}

enum status cmd_train(int argc, char **argv) {
    struct arena arena = {0};
    enum status status = run(argc, argv, &arena);
    arena_free(&arena);
    return status;
}
