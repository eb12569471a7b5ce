/* See run_folder.h. */
#include "tests/support/run_folder.h"

#include "core/file.h"
#include "core/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

static char folder[64];
struct arena run_arena;

int run_folder_open(void **state) {
    (void)state;
    log_set_quiet(true);
    snprintf(folder, sizeof folder, "%s", "/tmp/regroup-train-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

int run_folder_close(void **state) {
    (void)state;
    arena_free(&run_arena);
    return dir_remove(folder) == STATUS_OK ? 0 : 1;
}

const char *in_folder(const char *name) {
    char *path;
    OK(path_join(&run_arena, folder, name, &path));
    return path;
}

void same_file(const char *a, const char *b, const char *name) {
    struct text x = {0}, y = {0};
    char *left, *right;
    OK(path_join(&run_arena, a, name, &left));
    OK(path_join(&run_arena, b, name, &right));
    OK(file_read(left, 0, &x));
    OK(file_read(right, 0, &y));
    if (x.n != y.n || !x.n || memcmp(x.data, y.data, (size_t)x.n))
        fail_msg("%s and %s differ", left, right);
    text_free(&x);
    text_free(&y);
}
