/* The bytes of a whole .safetensors file: its length, header and the size that must fit. What is
 * accepted must be sound: inside the file, and printed and parsed again the same. */
#include "checkpoints/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void must(bool holds) {
    if (!holds)
        abort();
}

static void check(const struct safetensors *s, int64_t file_size) {
    struct arena arena = {0};
    struct safetensors again;
    struct text text = {0};
    int64_t start = s->n ? s->tensors[0].offset : 0;
    for (int64_t i = 0; i < s->n; i++) {
        struct checkpoint_tensor *t = &s->tensors[i];
        must(t->n_byte >= 0 && t->offset >= 8 && t->offset + t->n_byte <= file_size);
        t->offset -= start;
    }
    int64_t n_data = s->n ? s->tensors[s->n - 1].offset + s->tensors[s->n - 1].n_byte : 0;
    must(safetensors_print(s->tensors, s->n, &text) == STATUS_OK);
    /* A name with invalid UTF-8 may be printed in another form; it must then be refused cleanly. */
    if (safetensors_parse(text.data, text.n, 8 + text.n + n_data, "again", &arena, &again) ==
        STATUS_OK) {
        must(again.n == s->n);
        for (int64_t i = 0; i < s->n; i++)
            must(again.tensors[i].n_byte == s->tensors[i].n_byte);
        json_free(again.metadata);
    }
    text_free(&text);
    arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    struct arena arena = {0};
    struct safetensors s;
    int64_t header;
    if (n < 8 || safetensors_header_size(data, (int64_t)n, "fuzz", &header) != STATUS_OK)
        return 0;
    if (safetensors_parse((const char *)data + 8, header, (int64_t)n, "fuzz", &arena, &s) ==
        STATUS_OK) {
        check(&s, (int64_t)n);
        json_free(s.metadata);
    }
    arena_free(&arena);
    return 0;
}
