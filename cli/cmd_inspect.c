/* regroup inspect: what a model folder holds, from the tensors' shapes checked against its
 * config.json, and what its KV cache costs. */
#include "cli/commands.h"
#include "cli/units.h"
#include "core/log.h"
#include "core/options.h"
#include "model/folder.h"

#include <stdio.h>
#include <string.h>

struct inspection {
    const char *dir;
    const struct model_folder *folder;
    enum dtype cache;
    int64_t context, batch, kv_token, kv_total;
    int64_t tensor_parallel[64], n_tensor_parallel;
    bool scanned;
    struct json *nonfinite; /* owned array of what a scan found */
};

static const char *kind(const struct model_config *c) {
    int64_t most = model_kv_max(c);
    if (!model_kv_uniform(c))
        return "GQA";
    return most == c->n_head ? "MHA" : most == 1 ? "MQA" : "GQA";
}

/* Every float tensor read once. */
static enum status scan(struct inspection *in) {
    enum { BUFFER = 8 << 20 };
    void *buffer = NULL;
    const struct checkpoint *ck = in->folder->ck;
    struct progress progress;
    int64_t done = 0;
    enum status status;
    bool differs;
    TRY(memory_alloc(BUFFER, 1, "scan buffer", &buffer));
    progress_start(&progress, "scan", (double)checkpoint_total_bytes(ck) / 1048576, "MiB");
    for (int64_t i = 0; i < checkpoint_count(ck); i++) {
        const struct checkpoint_tensor *t = checkpoint_at(ck, i);
        struct nonfinite found;
        TRY_OUT(checkpoint_scan(t, buffer, BUFFER, &found));
        progress_update(&progress, (double)(done += t->n_byte) / 1048576, NULL);
        if (!found.n_nan && !found.n_inf)
            continue;
        log_warn("%s: tensor %s: %lld NaN and %lld infinite values", t->path, t->name,
                 (long long)found.n_nan, (long long)found.n_inf);
        struct json *e = json_push_object(in->nonfinite);
        json_set_string(e, "tensor", t->name);
        json_set_int(e, "nan", found.n_nan);
        json_set_int(e, "inf", found.n_inf);
    }
    TRY_OUT(model_folder_head_differs(in->folder, buffer, BUFFER, &differs));
    if (differs)
        log_warn("%s: tie_word_embeddings is true, but %s has values of its own", in->dir,
                 in->folder->stray_head->name);
    in->scanned = true;
out:
    progress_end(&progress);
    memory_free(buffer);
    return status;
}

static enum status print_json(const struct inspection *in) {
    const struct model_folder *f = in->folder;
    const struct model_config *c = &f->config;
    struct json *j = json_object();
    struct text text = {0};
    json_set_string(j, "model", in->dir);
    json_set_string(j, "family", c->family);
    json_set_string(j, "attention", kind(c));
    json_set_int(j, "n_layer", c->n_layer);
    json_set_int(j, "width", c->width);
    json_set_int(j, "n_head", c->n_head);
    json_set_int(j, "n_kv_head", model_kv_max(c));
    if (!model_kv_uniform(c)) {
        struct json *list = json_set_array(j, "n_kv_head_per_layer");
        for (int64_t l = 0; l < c->n_layer; l++)
            json_push_number(list, c->n_kv_head[l]);
    }
    json_set_int(j, "head_dim", c->head_dim);
    json_set_int(j, "n_ff", c->n_ff);
    json_set_int(j, "n_vocab", c->n_vocab);
    json_set_int(j, "max_position", c->max_position);
    json_set_bool(j, "tied_head", c->tied_head);
    json_set_int(j, "parameters", f->n_param);
    json_set_int(j, "tensors", checkpoint_count(f->ck));
    json_set_int(j, "unknown_tensors", f->n_unknown);
    json_set_int(j, "bytes", checkpoint_total_bytes(f->ck));
    struct json *dtypes = json_set_object(j, "parameters_by_dtype");
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (f->n_of_dtype[t])
            json_set_int(dtypes, dtype_name((enum dtype)t), f->n_of_dtype[t]);
    struct json *kv = json_set_object(j, "kv_cache");
    json_set_string(kv, "dtype", dtype_name(in->cache));
    json_set_int(kv, "bytes_per_token", in->kv_token);
    json_set_int(kv, "context", in->context);
    json_set_int(kv, "batch", in->batch);
    json_set_int(kv, "bytes", in->kv_total);
    struct json *sizes = json_set_array(j, "tensor_parallel");
    for (int64_t i = 0; i < in->n_tensor_parallel; i++)
        json_push_number(sizes, (double)in->tensor_parallel[i]);
    if (in->scanned)
        json_set_copy(j, "nonfinite", in->nonfinite);
    enum status status = json_print(j, true, &text);
    json_free(j);
    if (status == STATUS_OK)
        puts(text.data);
    text_free(&text);
    return status;
}

static void print_heads(const struct model_config *c) {
    int64_t most = model_kv_max(c);
    printf("attention        %s: %lld query heads, ", kind(c), (long long)c->n_head);
    if (model_kv_uniform(c)) {
        printf("%lld KV head%s", (long long)most, most == 1 ? "" : "s");
        if (most == c->n_head)
            printf(", one for each");
        else
            printf(", each read by %lld", (long long)(c->n_head / most));
    } else {
        printf("KV heads per layer");
        for (int64_t l = 0; l < c->n_layer; l++)
            printf(" %d", (int)c->n_kv_head[l]);
    }
    printf("; head_dim %lld\n", (long long)c->head_dim);
}

static void print_text(const struct inspection *in) {
    const struct model_folder *f = in->folder;
    const struct model_config *c = &f->config;
    printf("model            %s\n", in->dir);
    printf("family           %s\n", c->family);
    print_heads(c);
    printf("layers           %lld\n", (long long)c->n_layer);
    printf("width            %lld, feed-forward %lld, vocabulary %lld, positions %lld\n",
           (long long)c->width, (long long)c->n_ff, (long long)c->n_vocab,
           (long long)c->max_position);
    printf("parameters       %s in %lld tensors, %s\n", unit_count(f->n_param).s,
           (long long)checkpoint_count(f->ck), unit_bytes(checkpoint_total_bytes(f->ck)).s);
    printf("dtype           ");
    bool several = false;
    for (int t = 0; t < DTYPE_COUNT; t++)
        several |= f->n_of_dtype[t] && f->n_of_dtype[t] != f->n_param;
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (f->n_of_dtype[t]) {
            printf(" %s", dtype_name((enum dtype)t));
            if (several)
                printf(" (%s)", unit_count(f->n_of_dtype[t]).s);
        }
    printf("\noutput head      %s\n", c->tied_head ? "tied to the embedding" : "separate");
    if (f->n_unknown)
        printf("other tensors    %lld that the family does not use\n", (long long)f->n_unknown);
    printf("KV cache         %s bytes per token in %s; %s for context %s, batch %lld\n",
           unit_count(in->kv_token).s, dtype_name(in->cache), unit_bytes(in->kv_total).s,
           unit_count(in->context).s, (long long)in->batch);
    printf("tensor parallel ");
    int64_t copied = 0;
    for (int64_t i = 0; i < in->n_tensor_parallel; i++) {
        int64_t t = in->tensor_parallel[i];
        printf(" %lld", (long long)t);
        for (int64_t l = 0; l < c->n_layer && !copied; l++)
            if (c->n_kv_head[l] % t)
                copied = t;
    }
    if (copied)
        printf("; KV heads are copied from %lld on", (long long)copied);
    printf("\n");
    if (in->scanned && !json_len(in->nonfinite))
        printf("weights          all finite\n");
    else if (in->scanned)
        printf("weights          %lld tensors hold NaN or infinities\n",
               (long long)json_len(in->nonfinite));
}

enum status cmd_inspect(int argc, char **argv) {
    struct inspection in = {.batch = 1};
    const char *cache = "model";
    bool json = false, help = false, want_scan = false;
    struct option options[] = {
        {.key = "context",
         .type = OPTION_INT,
         .value = &in.context,
         .min = 0,
         .max = 1e12,
         .help = "tokens in the KV cache; 0: the model's positions"},
        {.key = "batch",
         .type = OPTION_INT,
         .value = &in.batch,
         .min = 1,
         .max = 1e9,
         .help = "sequences in the KV cache"},
        {.key = "cache-dtype",
         .type = OPTION_STRING,
         .value = &cache,
         .choices = "model|f32|f16|bf16",
         .help = "type of the KV cache's elements"},
        {.key = "scan",
         .type = OPTION_BOOL,
         .value = &want_scan,
         .help = "read all weights and report NaN and infinities"},
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
    struct model_folder *folder = NULL;
    enum status status;
    TRY_OUT(options_parse_args(options, N, argc, argv, &arena, &args));
    if (help) {
        printf("usage: regroup inspect MODEL [OPTIONS]\n\n"
               "Says what a model folder holds and what its KV cache costs. config.json is held\n"
               "against every tensor's shape; a mismatch is an error.\n\n");
        options_print_help(options, N);
        goto out;
    }
    if (args.n != 1) {
        status = status_fail(STATUS_USAGE,
                             "expected one model folder, found %lld arguments; see "
                             "'regroup inspect --help'",
                             (long long)args.n);
        goto out;
    }
    in.dir = args.items[0];
    TRY_OUT(model_folder_open(in.dir, &folder));
    in.folder = folder;
    in.cache = folder->kv_dtype;
    if (strcmp(cache, "model") && !dtype_parse(cache, &in.cache)) {
        status = status_fail(STATUS_USAGE, "unknown type '%s'", cache);
        goto out;
    }
    if (!in.context)
        in.context = folder->config.max_position;
    in.kv_token = model_kv_bytes_per_token(&folder->config, in.cache);
    if (!size_mul(in.kv_token, in.context, &in.kv_total) ||
        !size_mul(in.kv_total, in.batch, &in.kv_total)) {
        status = status_fail(STATUS_USAGE, "context %lld x batch %lld is too large to count",
                             (long long)in.context, (long long)in.batch);
        goto out;
    }
    in.n_tensor_parallel = model_tensor_parallel(&folder->config, in.tensor_parallel, 64);
    in.nonfinite = json_array();
    if (want_scan)
        TRY_OUT(scan(&in));
    if (json)
        status = print_json(&in);
    else
        print_text(&in);
out:
    json_free(in.nonfinite);
    model_folder_close(folder);
    arena_free(&arena);
    return status;
}
