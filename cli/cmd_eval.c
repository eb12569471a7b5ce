/* regroup eval: perplexity, divergence from a teacher, KV-cache bytes and speed of models. */
#include "cli/commands.h"
#include "cli/eval_args.h"
#include "core/file.h"
#include "core/log.h"
#include "core/parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status write_results(const struct evaluator *e, const struct evaluation *models,
                                 int64_t n, const char *json_path) {
    struct text text = {0};
    struct json *j = NULL;
    bool json_only = json_path && !strcmp(json_path, "-");
    enum status status = STATUS_OK;
    if (json_path)
        j = evaluation_json(e, models, n);
    if (json_only)
        TRY_OUT(json_print(j, true, &text));
    else
        TRY_OUT(evaluation_table(e, models, n, &text));
    fputs(text.data, stdout);
    if (json_only)
        putchar('\n');
    else if (e->has_data)
        printf("\nprotocol %s, window %lld, %lld tokens counted in %lld windows; ± is the standard "
               "error over windows\n",
               protocol_name(e->plan.protocol), (long long)e->plan.n_seq,
               (long long)e->plan.n_counted, (long long)e->plan.n_window);
    if (j && !json_only) /* last: a file that cannot be written must not hide the table */
        TRY_OUT(json_save(j, json_path));
out:
    json_free(j);
    text_free(&text);
    return status;
}

static enum status evaluate_all(const struct eval_options *o, const char *backend,
                                const struct string_list *dirs, const char *json_path) {
    struct backend *be = NULL;
    struct evaluator e = {0};
    struct evaluation *models = NULL;
    enum status status;
    TRY_OUT(memory_alloc(dirs->n, sizeof *models, "evaluations", &models));
    TRY_OUT(backend_open(backend, &be));
    TRY_OUT(evaluator_open(o, be, &e));
    for (int64_t i = 0; i < dirs->n; i++)
        TRY_OUT(evaluate_model(&e, dirs->items[i], &models[i]));
    TRY_OUT(write_results(&e, models, dirs->n, json_path));
    log_info("backend %s (%s), computed in %s", be->name, be->detail, dtype_name(o->dtype));
out:
    evaluator_close(&e);
    backend_close(be);
    memory_free(models);
    return status;
}

enum status cmd_eval(int argc, char **argv) {
    struct eval_args args;
    const char *backend = "auto", *attention = NULL, *json_path = NULL;
    struct string_list dirs;
    int64_t threads = 0;
    bool help = false;
    eval_args_default(&args);
    const struct option own[] = {
        {.key = "teacher",
         .type = OPTION_STRING,
         .value = &args.options.teacher,
         .help = "model to compare with: KL and top-1 agreement"},
        {.key = "device",
         .type = OPTION_STRING,
         .value = &backend,
         .choices = backend_names(),
         .help = "where to compute"},
        {.key = "attention",
         .type = OPTION_STRING,
         .value = &attention,
         .choices = "auto|own|cudnn",
         .help = "its kernels on cuda; auto measures, own and cudnn repeat every bit"},
        {.key = "threads",
         .type = OPTION_INT,
         .value = &threads,
         .min = 0,
         .max = 4096,
         .help = "0: all of the machine's"},
        {.key = "json",
         .type = OPTION_STRING,
         .value = &json_path,
         .help = "write everything as JSON to this file; -: JSON to stdout, no table"},
        {.key = "help",
         .type = OPTION_BOOL,
         .value = &help,
         .short_name = 'h',
         .help = "this text"},
    };
    enum { OWN = sizeof own / sizeof *own };
    struct option options[EVAL_ARGS_MAX + OWN];
    struct arena arena = {0};
    enum status status;
    int n = eval_args_options(&args, NULL, &arena, options, EVAL_ARGS_MAX);
    memcpy(options + n, own, sizeof own);
    n += OWN;
    TRY_OUT(options_parse_args(options, n, argc, argv, &arena, &dirs));
    if (help) {
        printf("usage: regroup eval MODEL [MODEL ...] --text FILE|--tokens FILE [OPTIONS]\n\n"
               "Perplexity with its standard error under a named protocol, divergence from a\n"
               "teacher computed in the same run, KV-cache bytes per token, and the speed of\n"
               "prefill and decode.\n\n");
        options_print_help(options, n);
        printf("\nprotocols\n");
        for (int p = PROTOCOL_STRIDED; p <= PROTOCOL_ROWS; p++)
            printf("  %-10s W = %lld. %s\n", protocol_name((enum protocol)p),
                   (long long)protocol_window((enum protocol)p), protocol_rule((enum protocol)p));
        goto out;
    }
    TRY_OUT(eval_args_resolve(&args));
    const struct eval_options *o = &args.options;
    if (!dirs.n || (!o->text && !o->tokens && !o->n_context)) {
        status = status_fail(STATUS_USAGE,
                             "expected a model and --text or --tokens (perplexity) or --context "
                             "(speed); see 'regroup eval --help'");
        goto out;
    }
    if (json_path && path_is_dir(json_path)) { /* before the work, not after it */
        status = status_fail(STATUS_FAILED, "%s is a folder; --json needs a file", json_path);
        goto out;
    }
    if (threads)
        parallel_set_threads((int)threads);
    if (attention)
        setenv("REGROUP_ATTENTION", attention, 1);
    status = evaluate_all(o, backend, &dirs, json_path);
out:
    arena_free(&arena);
    return status;
}
