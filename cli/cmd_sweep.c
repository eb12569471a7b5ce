/* regroup sweep: every method at every KV-head count, and the trade-off curve. A run whose
 * configuration is made from the command line. */
#include "cli/commands.h"
#include "cli/eval_args.h"
#include "cli/method_spec.h"
#include "cli/run_config.h"

#include <stdio.h>
#include <string.h>

struct sweep {
    struct eval_args eval;
    struct string_list kv_heads, kv_budget, methods, calibrate, train, set;
    int64_t distill, calib_tokens, seed;
    bool help;
};

enum { SWEEP_OPTIONS = 16 + EVAL_ARGS_MAX };

static int sweep_options(struct sweep *s, struct arena *arena, struct option *o) {
    const struct option own[] = {
        {.key = "kv-heads",
         .type = OPTION_LIST,
         .value = &s->kv_heads,
         .help = "KV-head counts to try, e.g. 8,4,2,1"},
        {.key = "kv-budget",
         .type = OPTION_LIST,
         .value = &s->kv_budget,
         .help = "and shares of the KV cache, divided over the layers, e.g. 50%,25%"},
        {.key = "methods", .type = OPTION_LIST, .value = &s->methods, .help = METHOD_SPEC_HELP},
        {.key = "calibrate",
         .type = OPTION_LIST,
         .value = &s->calibrate,
         .help = "text or token files to fit on, or self: sampled from the model"},
        {.key = "calib-tokens",
         .type = OPTION_INT,
         .value = &s->calib_tokens,
         .min = 0,
         .max = 1e12,
         .help = "calibration tokens at most (0: 65536)"},
        {.key = "seed",
         .type = OPTION_INT,
         .value = &s->seed,
         .min = 0,
         .max = 9007199254740992.0,
         .help = "of random, grouping and sampling"},
        {.key = "distill",
         .type = OPTION_INT,
         .value = &s->distill,
         .min = 0,
         .max = 1e9,
         .help = "also distill each variant for this many steps"},
        {.key = "train",
         .type = OPTION_LIST,
         .value = &s->train,
         .help = "text or token files to distill on"},
        {.key = "set",
         .type = OPTION_EACH,
         .value = &s->set,
         .help =
             "KEY=VALUE of 'regroup run --help', e.g. train.optimizer.lr=1e-3; may be repeated"},
        {.key = "help",
         .type = OPTION_BOOL,
         .value = &s->help,
         .short_name = 'h',
         .help = "this text"},
    };
    int n = sizeof own / sizeof *own;
    memcpy(o, own, sizeof own);
    return n + eval_args_options(&s->eval, NULL, arena, o + n, EVAL_ARGS_MAX);
}

static void set_list(struct json *o, const char *key, const struct string_list *list) {
    struct json *a = json_set_array(o, key);
    for (int64_t i = 0; i < list->n; i++)
        json_push_string(a, list->items[i]);
}

/* The configuration that `regroup run` would read. Caller frees. */
static struct json *sweep_config(struct sweep *s, const char *model, const char *out,
                                 struct arena *arena) {
    struct option eval[EVAL_ARGS_MAX];
    int n = eval_args_options(&s->eval, "eval.", arena, eval, EVAL_ARGS_MAX);
    struct json *j = options_to_json(eval, n < 0 ? 0 : n);
    json_set_string(j, "model", model);
    json_set_string(j, "out", out);
    json_set_int(j, "seed", s->seed);
    json_set_int(j, "calib_tokens", s->calib_tokens);
    set_list(j, "kv_heads", &s->kv_heads);
    set_list(j, "kv_budget", &s->kv_budget);
    set_list(j, "methods", &s->methods);
    set_list(j, "calibrate", &s->calibrate);
    if (s->distill) {
        struct json *train = json_set_object(j, "train");
        json_set_int(train, "steps", s->distill);
        json_set_int(json_set_object(train, "schedule"), "warmup", s->distill / 20);
        struct json *data = json_set_object(train, "data");
        set_list(data, "train", &s->train);
        json_set_bool(data, "rows", s->eval.options.protocol == PROTOCOL_ROWS);
    }
    return j;
}

enum status cmd_sweep(int argc, char **argv) {
    static const char *const both[] = {"mean", "fit"}, *const three[] = {"mean", "fit", "fit+o"};
    struct sweep s = {.seed = 1};
    struct option options[SWEEP_OPTIONS];
    struct arena arena = {0};
    struct string_list args;
    struct json *config = NULL;
    enum status status;
    eval_args_default(&s.eval);
    int n = sweep_options(&s, &arena, options);
    TRY_OUT(options_parse_args(options, n, argc, argv, &arena, &args));
    if (s.help) {
        printf("usage: regroup sweep MODEL OUT --kv-heads LIST|--kv-budget LIST --text FILE|"
               "--tokens FILE [OPTIONS]\n\n"
               "Converts MODEL to every KV-head count by every method (mean and fit; with\n"
               "--calibrate also fit+o), evaluates each against it, and writes\n"
               "OUT/report.html with the curve of quality against KV-cache memory. With --distill\n"
               "also after a short distillation. Run it again after an interruption: it "
               "continues.\n\n");
        options_print_help(options, n);
        goto out;
    }
    if (args.n != 2 || s.kv_heads.n + s.kv_budget.n == 0) {
        status = status_fail(STATUS_USAGE, "expected MODEL, OUT and --kv-heads or --kv-budget; see "
                                           "'regroup sweep --help'");
        goto out;
    }
    if (s.distill && !s.train.n) {
        status = status_fail(STATUS_USAGE, "--distill needs --train: what to distill on");
        goto out;
    }
    if (!s.methods.n && s.calibrate.n)
        s.methods = (struct string_list){(const char **)(uintptr_t)three, 3};
    else if (!s.methods.n)
        s.methods = (struct string_list){(const char **)(uintptr_t)both, 2};
    TRY_OUT(eval_args_resolve(&s.eval));
    config = sweep_config(&s, args.items[0], args.items[1], &arena);
    status = run_config(config, "the sweep", &s.set);
out:
    json_free(config);
    arena_free(&arena);
    return status;
}
