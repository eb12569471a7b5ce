/* regroup eval: perplexity, divergence from a teacher, KV-cache bytes and speed of models. */
#include "cli/commands.h"
#include "core/log.h"
#include "core/options.h"
#include "core/parallel.h"
#include "eval/evaluate.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status parse_contexts(const struct string_list *list, struct eval_options *o) {
    if (list->n > EVAL_MAX_CONTEXT)
        return status_fail(STATUS_USAGE, "option 'context': at most %d lengths", EVAL_MAX_CONTEXT);
    for (int64_t i = 0; i < list->n; i++) {
        char *end;
        errno = 0;
        long long v = strtoll(list->items[i], &end, 10);
        if (errno || *end || end == list->items[i] || v < 1 || v > INT32_MAX)
            return status_fail(STATUS_USAGE,
                               "option 'context': expected lengths such as 512,2048, found '%s'",
                               list->items[i]);
        o->contexts[o->n_context++] = v;
    }
    return STATUS_OK;
}

static enum status write_results(const struct evaluator *e, const struct evaluation *models,
                                 int64_t n, const char *json_path) {
    struct text text = {0};
    struct json *j = NULL;
    bool json_only = json_path && !strcmp(json_path, "-");
    enum status status = STATUS_OK;
    if (json_path) {
        j = evaluation_json(e, models, n);
        if (json_only)
            TRY_OUT(json_print(j, true, &text));
        else
            TRY_OUT(json_save(j, json_path));
    }
    if (!json_only)
        TRY_OUT(evaluation_table(e, models, n, &text));
    fputs(text.data, stdout);
    if (json_only)
        putchar('\n');
    else if (e->has_data)
        printf("\nprotocol %s, window %lld, %lld tokens counted in %lld windows; ± is the standard "
               "error over windows\n",
               protocol_name(e->plan.protocol), (long long)e->plan.n_seq,
               (long long)e->plan.n_counted, (long long)e->plan.n_window);
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
    log_info("backend %s (%s), compute %s", be->name, be->detail, dtype_name(o->dtype));
    TRY_OUT(evaluator_open(o, be, &e));
    for (int64_t i = 0; i < dirs->n; i++) {
        log_info("evaluating %s", dirs->items[i]);
        TRY_OUT(evaluate_model(&e, dirs->items[i], &models[i]));
    }
    status = write_results(&e, models, dirs->n, json_path);
out:
    evaluator_close(&e);
    backend_close(be);
    memory_free(models);
    return status;
}

enum status cmd_eval(int argc, char **argv) {
    struct eval_options o = eval_defaults();
    const char *protocol = NULL, *dtype = "f32", *backend = "auto", *json_path = NULL;
    struct string_list contexts = {0}, dirs;
    int64_t threads = 0;
    bool help = false;
    struct option options[] = {
        {.key = "text",
         .type = OPTION_STRING,
         .value = &o.text,
         .help = "text to score: .txt or .jsonl, also .gz"},
        {.key = "tokens",
         .type = OPTION_STRING,
         .value = &o.tokens,
         .help = "token file to score: .u16 or .u32"},
        {.key = "teacher",
         .type = OPTION_STRING,
         .value = &o.teacher,
         .help = "model to compare with: KL and top-1 agreement"},
        {.key = "protocol",
         .type = OPTION_STRING,
         .value = &protocol,
         .choices = PROTOCOL_CHOICES,
         .help = "how perplexity is measured (strided; rows for --tokens)"},
        {.key = "window",
         .type = OPTION_INT,
         .value = &o.window,
         .min = 0,
         .max = INT32_MAX,
         .help = "tokens per window (0: the protocol's usual)"},
        {.key = "stride",
         .type = OPTION_INT,
         .value = &o.stride,
         .min = 0,
         .max = INT32_MAX,
         .help = "strided: tokens between windows (0: half a window)"},
        {.key = "max-tokens",
         .type = OPTION_INT,
         .value = &o.max_tokens,
         .min = 0,
         .max = 9007199254740992.0,
         .help = "use only the first N tokens (0: all)"},
        {.key = "batch",
         .type = OPTION_INT,
         .value = &o.n_batch,
         .min = 1,
         .max = 65536,
         .help = "windows at a time"},
        {.key = "context",
         .type = OPTION_LIST,
         .value = &contexts,
         .help = "measure speed at these context lengths, e.g. 512,2048"},
        {.key = "speed-batch",
         .type = OPTION_INT,
         .value = &o.speed_batch,
         .min = 1,
         .max = 65536,
         .help = "sequences at a time for speed"},
        {.key = "decode-steps",
         .type = OPTION_INT,
         .value = &o.n_decode,
         .min = 1,
         .max = 1000000,
         .help = "decode steps in one timing"},
        {.key = "repeats",
         .type = OPTION_INT,
         .value = &o.n_repeat,
         .min = 1,
         .max = SPEED_MAX_REPEAT,
         .help = "timings, of which the median is shown"},
        {.key = "dtype",
         .type = OPTION_STRING,
         .value = &dtype,
         .choices = "f32|bf16",
         .help = "compute type"},
        {.key = "backend",
         .type = OPTION_STRING,
         .value = &backend,
         .choices = backend_names(),
         .help = "where to compute"},
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
    enum { N = sizeof options / sizeof *options };
    struct arena arena = {0};
    enum status status;
    TRY_OUT(options_parse_args(options, N, argc, argv, &arena, &dirs));
    if (help) {
        printf("usage: regroup eval MODEL [MODEL ...] --text FILE|--tokens FILE [OPTIONS]\n\n"
               "Perplexity with its standard error under a named protocol, divergence from a\n"
               "teacher computed in the same run, KV-cache bytes per token, and the speed of\n"
               "prefill and decode.\n\n");
        options_print_help(options, N);
        printf("\nprotocols\n");
        for (int p = PROTOCOL_STRIDED; p <= PROTOCOL_ROWS; p++)
            printf("  %-10s W = %lld. %s\n", protocol_name((enum protocol)p),
                   (long long)protocol_window((enum protocol)p), protocol_rule((enum protocol)p));
        goto out;
    }
    if (!dirs.n || (!o.text && !o.tokens && !contexts.n)) {
        status = status_fail(STATUS_USAGE,
                             "expected a model and --text or --tokens (perplexity) or --context "
                             "(speed); see 'regroup eval --help'");
        goto out;
    }
    if (!protocol)
        o.protocol = o.tokens ? PROTOCOL_ROWS : PROTOCOL_STRIDED;
    else if (!protocol_parse(protocol, &o.protocol))
        assert(!"options_parse_args checks choices");
    if (!dtype_parse(dtype, &o.dtype))
        assert(!"options_parse_args checks choices");
    TRY_OUT(parse_contexts(&contexts, &o));
    if (threads)
        parallel_set_threads((int)threads);
    status = evaluate_all(&o, backend, &dirs, json_path);
out:
    arena_free(&arena);
    return status;
}
