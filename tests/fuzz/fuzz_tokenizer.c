/* A tokenizer.json or tokenizer.model from any bytes, then texts through it both ways. */
#include "core/memory.h"
#include "data/tokenizer_internal.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    static const char *const texts[] = {
        "the <s> cat's  12\t日本語 é 🙂\n\n \xe2\x96\x81x",
        "  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
        "\xef\xac\x81\xe3\x80\x80\xc2\xa0--\xe2\x91\xa0 e\xcc\x81 <tool> abab"};
    struct tokenizer *t;
    if (tokenizer_parse((const char *)data, (int64_t)n, "fuzz", &t) != STATUS_OK)
        return 0;
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        struct ids ids = {0};
        struct text out = {0};
        if (tokenizer_encode(t, texts[k], (int64_t)strlen(texts[k]), &ids) == STATUS_OK)
            for (int64_t i = 0; i < ids.n; i++)
                if (tokenizer_decode(t, i ? ids.data[i - 1] : -1, ids.data[i], &out) != STATUS_OK)
                    __builtin_trap(); /* encode gave an id that has no bytes */
        ids_free(&ids);
        text_free(&out);
    }
    tokenizer_close(t);
    return 0;
}
