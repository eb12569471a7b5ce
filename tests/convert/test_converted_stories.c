/* What conversion does to a real model's loss: float64 reference values for mean and first, and
 * heads repeated leave it as it was. Skipped where the checkpoint is not beside the project. */
#include "convert/convert.h"
#include "core/file.h"
#include "core/json.h"
#include "tests/support/nll.h"

#include <math.h>
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

#define STORIES SHARED_DIR "/checkpoints/stories260K"

static char root[] = "/tmp/regroup-converted-XXXXXX", output[64];
static int32_t ids[256];
static int64_t n_id;
static float logits[512];

static double converted_nll(const char *from, int64_t n_kv_head, enum merge_method method) {
    struct convert_options options = {
        .from = from, .to = output, .n_kv_head = n_kv_head, .method = method, .dtype = DTYPE_COUNT};
    struct convert_plan *plan;
    struct backend *be;
    struct model *m;
    double mean;
    OK(convert_plan_open(&options, &plan));
    OK(convert_run(plan, true));
    convert_plan_close(plan);
    OK(backend_open("cpu", &be));
    OK(model_open(output, be, DTYPE_F32, &m));
    OK(nll_of_rows(m, ids, 1, n_id, &mean, logits));
    model_close(m);
    backend_close(be);
    return mean;
}

static void losses_are_right(void **state) {
    static const struct {
        const char *key;
        int64_t n_kv_head;
        enum merge_method method;
    } cases[] = {{"kv_heads=2 mean", 2, MERGE_MEAN},
                 {"kv_heads=2 first", 2, MERGE_FIRST},
                 {"kv_heads=1 mean", 1, MERGE_MEAN},
                 {"kv_heads=1 first", 1, MERGE_FIRST}};
    const struct json *expected = json_get(*state, "converted_mean_nll");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double right = json_number(json_get(expected, cases[i].key));
        double nll = converted_nll(STORIES, cases[i].n_kv_head, cases[i].method);
        if (!(fabs(nll - right) <= 1e-4))
            fail_msg("%s: %.8f, expected %.8f", cases[i].key, nll, right);
    }
}

static void repeated_heads_change_nothing(void **state) {
    (void)state;
    float before[512];
    double nll = converted_nll(STORIES, 4, MERGE_MEAN); /* the same count: the same bytes */
    assert_true(fabs(nll - 0.5613761) <= 1e-5);
    memcpy(before, logits, sizeof before);
    converted_nll(STORIES, 8, MERGE_REPEAT);
    for (int v = 0; v < 512; v++)
        assert_true(fabsf(logits[v] - before[v]) <= 1e-4f);
}

int main(void) {
    struct json *cases;
    if (!path_exists(STORIES "/model.safetensors")) {
        printf("skipped: no checkpoint at %s\n", SHARED_DIR);
        return 77;
    }
    if (json_load(SHARED_DIR "/cases/stories260K.json", &cases) != STATUS_OK || !mkdtemp(root)) {
        printf("%s\n", status_message());
        return 1;
    }
    for (const struct json *j = json_first(json_get(cases, "ids_with_bos")); j; j = json_next(j))
        ids[n_id++] = (int32_t)json_int(j);
    snprintf(output, sizeof output, "%s/out", root);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(losses_are_right, cases),
        cmocka_unit_test(repeated_heads_change_nothing),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_free(cases);
    return dir_remove(root) == STATUS_OK ? failed : 1;
}
