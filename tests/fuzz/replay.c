/* Runs a fuzz target over the files of the folders given: the corpus as a regression test. */
#include "core/file.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

int main(int argc, char **argv) {
    int64_t done = 0;
    for (int i = 1; i < argc; i++) {
        struct arena arena = {0};
        char **names;
        int64_t n;
        if (dir_list(&arena, argv[i], &names, &n) != STATUS_OK) {
            fprintf(stderr, "%s\n", status_message());
            return 1;
        }
        for (int64_t k = 0; k < n; k++) {
            char *path;
            struct text bytes = {0};
            if (path_join(&arena, argv[i], names[k], &path) != STATUS_OK ||
                file_read(path, 0, &bytes) != STATUS_OK) {
                fprintf(stderr, "%s\n", status_message());
                return 1;
            }
            static const unsigned char nothing[1];
            (void)LLVMFuzzerTestOneInput(bytes.data ? (const unsigned char *)bytes.data : nothing,
                                         (size_t)bytes.n);
            text_free(&bytes);
            done++;
        }
        arena_free(&arena);
    }
    printf("%lld inputs replayed\n", (long long)done);
    return done ? 0 : 1;
}
