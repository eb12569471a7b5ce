/* The table of protocols as arithmetic. Sources: Hugging Face "Perplexity of fixed-length models"
 * (strided), the GPTQ repository's evaluation (gptq), llama.cpp tools/perplexity (llama.cpp). */
#include "eval/protocol.h"

#include <string.h>

static const struct {
    const char *name, *rule;
    int64_t window;
} protocols[] = {
    [PROTOCOL_STRIDED] = {"strided",
                          "Windows of W tokens start every s tokens; every token but the first is "
                          "counted once, in the window that gives it most context. No BOS.",
                          1024},
    [PROTOCOL_GPTQ] = {"gptq",
                       "Rows joined by an empty line, disjoint windows of W tokens, W - 1 "
                       "predictions counted in each; BOS only where the tokenizer puts it.",
                       2048},
    [PROTOCOL_LLAMA_CPP] = {"llama.cpp",
                            "Disjoint windows of W tokens, the first replaced by BOS when the "
                            "tokenizer adds one; the second half of each window is counted.",
                            512},
    [PROTOCOL_ROWS] = {"rows", "Rows of W tokens, each on its own; tokens 1 to W - 1 are counted.",
                       256},
};

bool protocol_parse(const char *name, enum protocol *out) {
    for (int i = 0; i < (int)(sizeof protocols / sizeof protocols[0]); i++)
        if (!strcmp(name, protocols[i].name)) {
            *out = (enum protocol)i;
            return true;
        }
    return false;
}

const char *protocol_name(enum protocol p) {
    return protocols[p].name;
}

const char *protocol_rule(enum protocol p) {
    return protocols[p].rule;
}

int64_t protocol_window(enum protocol p) {
    return protocols[p].window;
}

/* The rows that the Hugging Face loader makes of a raw text: one per line, its newline kept, blank
 * lines empty. GPTQ joins these with an empty line between them. */
static enum status join_lines(const char *text, int64_t n, struct text *out) {
    for (int64_t at = 0; at < n;) {
        const char *nl = memchr(text + at, '\n', (size_t)(n - at));
        int64_t end = nl ? nl - text + 1 : n;
        if (at)
            TRY(text_puts(out, "\n\n"));
        bool blank = true;
        for (int64_t i = at; i < end && blank; i++)
            blank = strchr(" \t\r\n\v\f", text[i]) && text[i];
        if (!blank)
            TRY(text_add(out, text + at, end - at));
        at = end;
    }
    return STATUS_OK;
}

static bool is_plain_text(const char *path) {
    size_t n = strlen(path);
    bool gz = n > 3 && !strcmp(path + n - 3, ".gz");
    n -= gz ? 3 : 0;
    return !(n > 6 && !strncmp(path + n - 6, ".jsonl", 6));
}

static enum status read_joined(enum protocol p, const char *path, struct text *out) {
    struct text_reader *reader = NULL;
    TRY(text_reader_open(path, &reader));
    enum status status = STATUS_OK;
    const char *text;
    int64_t n;
    for (bool first = true;; first = false) {
        TRY_OUT(text_reader_next(reader, &text, &n));
        if (n < 0)
            break;
        if (!first)
            TRY_OUT(text_puts(out, "\n\n"));
        if (p == PROTOCOL_GPTQ && is_plain_text(path))
            TRY_OUT(join_lines(text, n, out));
        else
            TRY_OUT(text_add(out, text, n));
    }
    if (!out->n)
        status = status_fail(STATUS_FAILED, "%s: holds no text: give a file with some", path);
out:
    text_reader_close(reader);
    return status;
}

enum status protocol_read_text(enum protocol p, const char *path, const struct tokenizer *tokenizer,
                               int64_t n_vocab, struct token_data *out, int32_t *bos) {
    struct text joined = {0};
    struct ids ids = {0};
    enum status status = STATUS_OK;
    if (p == PROTOCOL_ROWS)
        return status_fail(STATUS_USAGE,
                           "protocol rows reads token files (--tokens), not the text "
                           "%s: choose strided, gptq or llama.cpp",
                           path);
    bool adds_bos = tokenizer_adds_bos(tokenizer) && tokenizer_bos(tokenizer) >= 0;
    *bos = p == PROTOCOL_LLAMA_CPP && adds_bos ? tokenizer_bos(tokenizer) : -1;
    TRY_OUT(read_joined(p, path, &joined));
    if (adds_bos && p != PROTOCOL_STRIDED)
        TRY_OUT(ids_push(&ids, tokenizer_bos(tokenizer)));
    TRY_OUT(tokenizer_encode(tokenizer, joined.data, joined.n, &ids));
    for (int64_t i = 0; i < ids.n; i++)
        if (ids.data[i] < 0 || ids.data[i] >= n_vocab) {
            status =
                status_fail(STATUS_FAILED,
                            "%s: token %lld has id %d but the model's vocabulary ends at %lld: "
                            "its tokenizer does not belong to it",
                            path, (long long)i, ids.data[i], (long long)n_vocab - 1);
            goto out;
        }
    *out = (struct token_data){.ids = ids.data,
                               .n = ids.n,
                               .hash = hash_bytes(ids.data, ids.n * (int64_t)sizeof *ids.data, 0),
                               .n_text_byte = joined.n};
    ids = (struct ids){0};
out:
    ids_free(&ids);
    text_free(&joined);
    return status;
}

enum status window_plan_make(enum protocol p, int64_t n_token, int64_t window, int64_t stride,
                             int32_t bos, struct window_plan *out) {
    int64_t least = p == PROTOCOL_LLAMA_CPP ? 3 : 2; /* with fewer nothing is predicted */
    if (window < least)
        return status_fail(STATUS_USAGE, "window: protocol %s needs %lld tokens or more, not %lld",
                           protocol_name(p), (long long)least, (long long)window);
    struct window_plan plan = {.protocol = p, .n_token = n_token, .n_seq = window, .bos = bos};
    if (p == PROTOCOL_STRIDED) {
        plan.stride = stride ? stride : size_max(1, window / 2);
        if (plan.stride < 1 || plan.stride > window)
            return status_fail(STATUS_USAGE, "stride: expected 1 to the window's %lld, got %lld",
                               (long long)window, (long long)stride);
        if (n_token < 2)
            return status_fail(STATUS_FAILED, "the data has %lld tokens: 2 or more are needed",
                               (long long)n_token);
        plan.n_seq = size_min(window, n_token);
        plan.n_window = 1 + (n_token - plan.n_seq + plan.stride - 1) / plan.stride;
        for (int64_t w = 0; w < plan.n_window; w++) {
            struct window at = window_plan_at(&plan, w);
            plan.n_counted += size_max(0, at.n - 1 - at.count_from);
        }
    } else {
        plan.stride = window;
        plan.n_window = n_token / window;
        if (!plan.n_window)
            return status_fail(STATUS_FAILED,
                               "the data has %lld tokens but protocol %s with window %lld needs as "
                               "many as the window: use longer data or a smaller --window",
                               (long long)n_token, protocol_name(p), (long long)window);
        struct window at = window_plan_at(&plan, 0);
        plan.n_counted = plan.n_window * (at.n - 1 - at.count_from);
    }
    *out = plan;
    return STATUS_OK;
}

struct window window_plan_at(const struct window_plan *p, int64_t w) {
    struct window at = {.first = w * p->stride, .n = p->n_seq};
    if (p->protocol == PROTOCOL_LLAMA_CPP)
        at.count_from = p->n_seq / 2;
    if (p->protocol == PROTOCOL_STRIDED) {
        at.n = size_min(p->n_seq, p->n_token - at.first);
        /* A token counts when no earlier window reached it and this one holds its predecessor. */
        int64_t reached = w ? at.first - p->stride + p->n_seq : 0;
        at.count_from = size_max(reached, at.first + 1) - 1 - at.first;
    }
    return at;
}

void window_plan_fill(const struct window_plan *p, int64_t w, const int32_t *ids, int32_t *inputs,
                      int32_t *targets) {
    struct window at = window_plan_at(p, w);
    for (int64_t i = 0; i < p->n_seq; i++) {
        inputs[i] = i < at.n ? ids[at.first + i] : 0; /* causal: padding behind changes nothing */
        targets[i] = i >= at.count_from && i < at.n - 1 ? ids[at.first + i + 1] : -1;
    }
    if (p->bos >= 0)
        inputs[0] = p->bos;
}
