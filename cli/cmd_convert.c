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

static void print_summary(const struct convert_plan *p, bool dry_run) {
    printf("%s %s: %s, KV heads %lld -> %lld of %lld (%s)\n", dry_run ? "would write" : "wrote",
           p->options.to ? p->options.to : "the output", p->config.family,
           (long long)model_kv_max(&p->folder->config), (long long)model_kv_max(&p->config),
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
               *shard = "5GB";
    struct string_list calibrate = {0};
    int64_t seed = 0;
    bool dry_run = false, force = false, json = false, help = false;
    struct option options[] = {
        {.key = "kv-heads",
         .type = OPTION_INT,
         .value = &o.n_kv_head,
         .min = 1,
         .max = 65536,
         .help = "KV heads of the result (required)"},
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
        printf("usage: regroup convert MODEL OUT --kv-heads N [OPTIONS]\n\n"
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
    if (!o.n_kv_head) {
        status = status_fail(STATUS_USAGE, "--kv-heads is required: the number of KV heads wanted");
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
    if (!dry_run)
        TRY_OUT(convert_run(plan, force));
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
