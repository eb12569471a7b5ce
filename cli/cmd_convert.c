/* regroup convert: a model folder with other KV heads. */
#include "cli/commands.h"
#include "cli/units.h"
#include "convert/convert.h"
#include "core/options.h"
#include "kernels/backend.h"

#include <stdio.h>
#include <string.h>

static void print_plan(const struct convert_plan *p) {
    for (int64_t i = 0; i < p->n_item; i++) {
        const struct convert_item *item = &p->items[i];
        char from[96], to[96];
        tensor_shape_text(item->from->rank, item->from->shape, from, sizeof from);
        tensor_shape_text(item->to.rank, item->to.shape, to, sizeof to);
        bool reshaped = strcmp(from, to) != 0, recast = item->from->dtype != item->to.dtype;
        const char *what = item->redraw   ? "random"
                           : item->fitted ? "fit"
                           : reshaped     ? merge_method_name(p->options.method)
                           : recast       ? "convert"
                                          : "copy";
        printf("%-8s %-48s %s %s", what, item->to.name, dtype_name(item->from->dtype), from);
        if (recast || reshaped)
            printf(" -> %s %s", dtype_name(item->to.dtype), to);
        printf(", %s bytes\n", unit_count(item->to_bytes).s);
    }
}

/* What every layer could be, what it loses by that, and what it became. */
static void print_budget(const struct convert_plan *p) {
    double all = 0;
    for (int64_t l = 0; p->budget && l < p->config.n_layer; l++) {
        const struct budget_layer *b = &p->budget[l];
        all += b->candidates[b->chosen].loss;
        printf("layer %-4lld  %lld KV heads, predicted loss %.4f (", (long long)l,
               (long long)b->candidates[b->chosen].n_kv, b->candidates[b->chosen].loss);
        for (int64_t i = 0; i < b->n; i++)
            printf("%s%lld: %.4f", i ? ", " : "", (long long)b->candidates[i].n_kv,
                   b->candidates[i].loss);
        printf(")\n");
    }
    if (p->budget)
        printf("budget      %.4g%%, %lld KV heads in all layers; predicted loss %.4f\n",
               100 * p->options.kv_budget, (long long)p->budget_heads, all);
}

static void print_summary(const struct convert_plan *p, bool dry_run) {
    char from[64], to[64];
    print_budget(p);
    model_kv_text(&p->folder->config, from, sizeof from);
    model_kv_text(&p->config, to, sizeof to);
    printf("%s %s: %s, KV heads %s -> %s of %lld (%s)\n", dry_run ? "would write" : "wrote",
           p->options.to ? p->options.to : "the output", p->config.family, from, to,
           (long long)p->config.n_head, merge_method_name(p->options.method));
    printf("parameters  %s -> %s\n", unit_count(p->from_params).s, unit_count(p->to_params).s);
    printf("weights     %s -> %s\n", unit_bytes(p->from_bytes).s, unit_bytes(p->to_bytes).s);
    printf("KV cache    %s -> %s bytes per token\n", unit_count(p->kv_bytes_from).s,
           unit_count(p->kv_bytes_to).s);
}

static enum status print_json(const struct convert_plan *p, bool dry_run) {
    struct json *j = convert_to_json(p);
    struct text text = {0};
    json_set_bool(j, "dry_run", dry_run);
    enum status status = json_print(j, true, &text);
    json_free(j);
    if (status == STATUS_OK)
        puts(text.data);
    text_free(&text);
    return status;
}

enum status cmd_convert(int argc, char **argv) {
    struct convert_options o = {.dtype = DTYPE_COUNT};
    const char *method = "fit", *refit = NULL, *grouping = "contiguous", *dtype = "keep",
               *shard = "5GB", *budget = NULL, *target = "regroup";
    struct string_list calibrate = {0};
    int64_t seed = 0;
    bool dry_run = false, force = false, json = false, help = false;
    struct option options[] = {
        {.key = "kv-heads",
         .type = OPTION_INT,
         .value = &o.n_kv_head,
         .min = 1,
         .max = 65536,
         .help = "KV heads in every layer of the result"},
        {.key = "kv-budget",
         .type = OPTION_STRING,
         .value = &budget,
         .help = "instead: share of the KV cache, e.g. 25%; heads go to the layers that need them"},
        {.key = "target",
         .type = OPTION_STRING,
         .value = &target,
         .choices = "regroup|transformers|vllm|llama.cpp",
         .help = "who must be able to load the result (matters for --kv-budget)"},
        {.key = "method",
         .type = OPTION_STRING,
         .value = &method,
         .choices = "mean|first|random|repeat|procrustes|fit",
         .help = "how a group of heads becomes one; repeat: more heads, exactly"},
        {.key = "calibrate",
         .type = OPTION_LIST,
         .value = &calibrate,
         .help = "text or token files to fit on; self: text sampled from the model"},
        {.key = "calib-tokens",
         .type = OPTION_INT,
         .value = &o.calib_tokens,
         .min = 0,
         .max = 1e12,
         .help = "use at most this many tokens (0: 65536)"},
        {.key = "calib-window",
         .type = OPTION_INT,
         .value = &o.calib_window,
         .min = 0,
         .max = INT32_MAX,
         .help = "tokens per calibration window (0: 256)"},
        {.key = "refit",
         .type = OPTION_STRING,
         .value = &refit,
         .choices = "none|o|qo|qkvo",
         .help = "projections fitted again on the converted model (o with --calibrate)"},
        {.key = "grouping",
         .type = OPTION_STRING,
         .value = &grouping,
         .choices = "contiguous|fit",
         .help = "which heads share: neighbours, or those that lose least"},
        {.key = "device",
         .type = OPTION_STRING,
         .value = &o.backend,
         .choices = backend_names(),
         .help = "where to calibrate"},
        {.key = "dtype",
         .type = OPTION_STRING,
         .value = &dtype,
         .choices = "keep|bf16|f16|f32",
         .help = "type of the result's weights"},
        {.key = "max-shard-size",
         .type = OPTION_STRING,
         .value = &shard,
         .help = "largest file, e.g. 5GB or 500MiB"},
        {.key = "seed",
         .type = OPTION_INT,
         .value = &seed,
         .min = 0,
         .max = 9007199254740992.0,
         .help = "for --method random, --grouping fit, --calibrate self"},
        {.key = "dry-run",
         .type = OPTION_BOOL,
         .value = &dry_run,
         .help = "print the plan and write nothing"},
        {.key = "force",
         .type = OPTION_BOOL,
         .value = &force,
         .help = "replace an existing output"},
        {.key = "json", .type = OPTION_BOOL, .value = &json, .help = "print JSON"},
        {.key = "help",
         .type = OPTION_BOOL,
         .value = &help,
         .short_name = 'h',
         .help = "this text"},
    };
    enum { N = sizeof options / sizeof *options };
    struct arena arena = {0};
    struct string_list args;
    struct convert_plan *plan = NULL;
    enum status status;
    TRY_OUT(options_parse_args(options, N, argc, argv, &arena, &args));
    if (help) {
        printf("usage: regroup convert MODEL OUT --kv-heads N|--kv-budget P%% [OPTIONS]\n\n"
               "Writes the model with N key/value heads in every layer: fewer by merging (GQA, or\n"
               "MQA with 1), more with --method repeat. Other tensors, configuration keys and\n"
               "tokenizer files stay as they are.\n\n");
        options_print_help(options, N);
        goto out;
    }
    if (args.n != 2 && !(args.n == 1 && dry_run)) {
        status = status_fail(STATUS_USAGE,
                             "expected a model folder and an output folder, found %lld arguments; "
                             "see 'regroup convert --help'",
                             (long long)args.n);
        goto out;
    }
    if (!o.n_kv_head == !budget) {
        status = status_fail(STATUS_USAGE, "give --kv-heads N, or --kv-budget with a share such as "
                                           "25%%, and not both");
        goto out;
    }
    if (budget)
        TRY_OUT(unit_parse_percent(budget, "kv-budget", &o.kv_budget));
    if (!convert_target_parse(target, &o.target)) {
        status = status_fail(STATUS_USAGE, "unknown target '%s'", target);
        goto out;
    }
    o.from = args.items[0];
    o.to = args.n > 1 ? args.items[1] : NULL;
    o.seed = (uint64_t)seed;
    o.calibrate = calibrate.items;
    o.n_calibrate = calibrate.n;
    if (!refit)
        refit = calibrate.n ? "o" : "none";
    o.grouping = !strcmp(grouping, "fit") ? GROUPING_FIT : GROUPING_CONTIGUOUS;
    if (!refit_parse(refit, &o.refit)) {
        status = status_fail(STATUS_USAGE, "unknown refit '%s'", refit);
        goto out;
    }
    if (!merge_method_parse(method, &o.method)) {
        status = status_fail(STATUS_USAGE, "unknown method '%s'", method);
        goto out;
    }
    if (strcmp(dtype, "keep") && !dtype_parse(dtype, &o.dtype)) {
        status = status_fail(STATUS_USAGE, "unknown type '%s'", dtype);
        goto out;
    }
    TRY_OUT(unit_parse_bytes(shard, "max-shard-size", &o.max_shard_bytes));
    TRY_OUT(convert_plan_open(&o, &plan));
    TRY_OUT(dry_run ? convert_choose(plan) : convert_run(plan, force));
    if (json) {
        status = print_json(plan, dry_run);
    } else {
        if (dry_run)
            print_plan(plan);
        print_summary(plan, dry_run);
    }
out:
    convert_plan_close(plan);
    arena_free(&arena);
    return status;
}
