/* bench_tokenizer TOKENIZER TEXT: seconds to load and MB/s to encode the text (best of five, one
 * thread), as one document and line by line. bench_tokenizer.py sets Hugging Face's beside it. */
#include "core/file.h"
#include "core/log.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <string.h>

enum { TIMES = 5 };

static enum status encode(const struct tokenizer *t, const struct text *text, bool lines,
                          struct ids *out) {
    out->n = 0;
    for (int64_t start = 0, end; start < text->n; start = end) {
        const char *newline =
            lines ? memchr(text->data + start, '\n', (size_t)(text->n - start)) : NULL;
        end = newline ? newline - text->data + 1 : text->n;
        TRY(tokenizer_encode(t, text->data + start, end - start, out));
    }
    return STATUS_OK;
}

static enum status run(const char *tokenizer, const char *path) {
    struct tokenizer *t = NULL;
    struct text text = {0};
    struct ids ids = {0};
    double start = clock_seconds();
    enum status status = tokenizer_open(tokenizer, &t);
    double load = clock_seconds() - start;
    TRY_OUT(status);
    TRY_OUT(file_read(path, 0, &text));
    printf("load %.3f s, %lld tokens\n", load, (long long)tokenizer_n_vocab(t));
    for (int lines = 0; lines < 2; lines++) {
        double best = 1e30;
        for (int k = 0; k < TIMES; k++) {
            start = clock_seconds();
            TRY_OUT(encode(t, &text, lines, &ids));
            double seconds = clock_seconds() - start;
            best = seconds < best ? seconds : best;
        }
        printf("%s: %.1f MB/s (%lld ids)\n", lines ? "by line" : "whole", text.n / best / 1e6,
               (long long)ids.n);
    }
out:
    tokenizer_close(t);
    text_free(&text);
    ids_free(&ids);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: bench_tokenizer TOKENIZER TEXT\n");
        return 2;
    }
    if (run(argv[1], argv[2]) == STATUS_OK)
        return 0;
    fprintf(stderr, "bench_tokenizer: %s\n", status_message());
    return 1;
}
