/* See eval_args.h. */
#include "cli/eval_args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void eval_args_default(struct eval_args *a) {
    *a = (struct eval_args){.options = eval_defaults(), .dtype = "f32"};
}

#define TEXT(name, field, among, text)                                                             \
    { .key = name, .type = OPTION_STRING, .value = &a->field, .choices = among, .help = text }
#define WHOLE(name, field, lo, hi, text)                                                           \
    {                                                                                              \
        .key = name, .type = OPTION_INT, .value = &a->options.field, .min = lo, .max = hi,         \
        .help = text                                                                               \
    }

int eval_args_options(struct eval_args *a, const char *prefix, struct arena *arena,
                      struct option *options, int n_max) {
    const struct option table[] = {
        TEXT("text", options.text, NULL, "text to score: .txt or .jsonl, also .gz"),
        TEXT("tokens", options.tokens, NULL, "token file to score: .u16 or .u32"),
        TEXT("protocol", protocol, PROTOCOL_CHOICES,
             "how perplexity is measured (strided; rows for tokens)"),
        WHOLE("window", window, 0, INT32_MAX, "tokens per window (0: the protocol's usual)"),
        WHOLE("stride", stride, 0, INT32_MAX, "strided: tokens between windows (0: half a window)"),
        WHOLE("max-tokens", max_tokens, 0, 9007199254740992.0,
              "use only the first N tokens (0: all)"),
        WHOLE("batch", n_batch, 1, 65536, "windows at a time"),
        {.key = "context",
         .type = OPTION_LIST,
         .value = &a->contexts,
         .help = "measure speed at these context lengths, e.g. 512,2048"},
        WHOLE("speed-batch", speed_batch, 1, 65536, "sequences at a time for speed"),
        WHOLE("decode-steps", n_decode, 1, 1000000, "decode steps in one timing"),
        WHOLE("repeats", n_repeat, 1, SPEED_MAX_REPEAT, "timings, of which the median is shown"),
        TEXT("dtype", dtype, "f32|bf16", "compute type"),
    };
    int n = sizeof table / sizeof *table;
    if (n > n_max)
        return -1;
    memcpy(options, table, sizeof table);
    for (int i = 0; prefix && i < n; i++) {
        char *key;
        if (arena_printf(arena, &key, "%s%s", prefix, table[i].key) != STATUS_OK)
            return -1;
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        options[i].key = key;
    }
    return n;
}

enum status eval_args_resolve(struct eval_args *a) {
    struct eval_options *o = &a->options;
    if (a->contexts.n > EVAL_MAX_CONTEXT)
        return status_fail(STATUS_USAGE, "'context': at most %d lengths", EVAL_MAX_CONTEXT);
    o->n_context = 0;
    for (int64_t i = 0; i < a->contexts.n; i++) {
        const char *item = a->contexts.items[i];
        char *end;
        errno = 0;
        long long v = strtoll(item, &end, 10);
        if (errno || *end || end == item || v < 1 || v > INT32_MAX)
            return status_fail(STATUS_USAGE,
                               "'context': expected lengths such as 512,2048, found '%s'", item);
        o->contexts[o->n_context++] = v;
    }
    if (o->text && o->tokens)
        return status_fail(STATUS_USAGE, "give one of 'text' and 'tokens', not both");
    o->protocol = PROTOCOL_STRIDED;
    if (!a->protocol && o->tokens)
        o->protocol = PROTOCOL_ROWS;
    if (a->protocol && !protocol_parse(a->protocol, &o->protocol))
        return status_fail(STATUS_USAGE, "'protocol': '%s' is unknown", a->protocol);
    o->dtype = !strcmp(a->dtype, "bf16") ? DTYPE_BF16 : DTYPE_F32;
    return STATUS_OK;
}
