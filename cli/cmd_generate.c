/* regroup generate: text from a prompt, prefilled once and decoded through the KV cache. */
#include "cli/commands.h"
#include "core/log.h"
#include "core/options.h"
#include "core/parallel.h"
#include "eval/sample.h"

#include <assert.h>
#include <stdio.h>

static enum status emit(void *user, const char *bytes, int64_t n) {
    FILE *out = user;
    if (fwrite(bytes, 1, (size_t)n, out) != (size_t)n || fflush(out))
        return status_errno("cannot write the text to stdout");
    return STATUS_OK;
}

static enum status run(const char *dir, const char *backend, enum dtype dtype, bool echo,
                       const struct generate_options *o) {
    struct backend *be = NULL;
    struct tokenizer *tokenizer = NULL;
    struct model *m = NULL;
    struct generate_result r;
    enum status status;
    TRY_OUT(tokenizer_open(dir, &tokenizer));
    TRY_OUT(backend_open(backend, &be));
    TRY_OUT(model_open(dir, be, dtype, &m));
    if (echo)
        fputs(o->prompt, stdout);
    TRY_OUT(generate(m, tokenizer, o, emit, stdout, &r));
    putchar('\n');
    fflush(stdout);
    log_info("prefill %lld tokens in %.3f s (%.0f tokens/s); decode %lld steps in %.3f s (%.0f "
             "tokens/s); %s",
             (long long)r.n_prompt, r.prefill_seconds, (double)r.n_prompt / r.prefill_seconds,
             (long long)r.n_step, r.decode_seconds,
             r.n_step ? (double)r.n_step / r.decode_seconds : 0.0,
             r.ended               ? "ended by the end-of-text token"
             : r.n_new == o->n_new ? "stopped by -n"
                                   : "stopped at the model's last position");
out:
    model_close(m);
    backend_close(be);
    tokenizer_close(tokenizer);
    return status;
}

enum status cmd_generate(int argc, char **argv) {
    struct generate_options o = {.n_new = 128, .temperature = 0.8};
    const char *dtype = "f32", *backend = "auto";
    int64_t threads = 0, seed = 0;
    bool echo = false, help = false;
    struct option options[] = {
        {.key = "prompt",
         .type = OPTION_STRING,
         .value = &o.prompt,
         .help = "the text to continue (required; may be empty)"},
        {.key = "tokens",
         .type = OPTION_INT,
         .value = &o.n_new,
         .min = 1,
         .max = INT32_MAX,
         .short_name = 'n',
         .help = "new tokens at most"},
        {.key = "temperature",
         .type = OPTION_DOUBLE,
         .value = &o.temperature,
         .min = 0,
         .max = 100,
         .help = "0: always the likeliest token"},
        {.key = "top-k",
         .type = OPTION_INT,
         .value = &o.top_k,
         .min = 0,
         .max = INT32_MAX,
         .help = "choose among the k likeliest (0: all)"},
        {.key = "seed",
         .type = OPTION_INT,
         .value = &seed,
         .min = 0,
         .max = 9007199254740992.0,
         .help = "the same seed gives the same text"},
        {.key = "echo", .type = OPTION_BOOL, .value = &echo, .help = "print the prompt too"},
        {.key = "dtype",
         .type = OPTION_STRING,
         .value = &dtype,
         .choices = "f32|bf16",
         .help = "compute type"},
        {.key = "device",
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
        {.key = "help",
         .type = OPTION_BOOL,
         .value = &help,
         .short_name = 'h',
         .help = "this text"},
    };
    enum { N = sizeof options / sizeof *options };
    struct arena arena = {0};
    struct string_list args;
    enum dtype type;
    enum status status;
    TRY_OUT(options_parse_args(options, N, argc, argv, &arena, &args));
    if (help) {
        printf("usage: regroup generate MODEL --prompt TEXT [OPTIONS]\n\n"
               "Text to stdout as it is decoded, timings to stderr.\n\n");
        options_print_help(options, N);
        goto out;
    }
    if (args.n != 1 || !o.prompt) {
        status = status_fail(STATUS_USAGE, "expected one model folder and --prompt TEXT; see "
                                           "'regroup generate --help'");
        goto out;
    }
    if (!dtype_parse(dtype, &type))
        assert(!"options_parse_args checks choices");
    if (threads)
        parallel_set_threads((int)threads);
    o.seed = (uint64_t)seed;
    status = run(args.items[0], backend, type, echo, &o);
out:
    arena_free(&arena);
    return status;
}
