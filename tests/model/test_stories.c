/* stories260K, a real trained model: logits and losses against float64 reference values. Skipped
 * where the checkpoint is not beside the project. */
#include "core/file.h"
#include "core/json.h"
#include "tests/support/nll.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

static void values_are_right(void **state) {
    const char *backend = *state;
    struct json *cases;
    struct backend *be;
    struct model *m;
    OK(json_load(SHARED_DIR "/cases/stories260K.json", &cases));
    OK(backend_open(backend, &be));
    OK(model_open(SHARED_DIR "/checkpoints/stories260K", be, DTYPE_F32, &m));
    int32_t ids[256];
    int64_t n = 0;
    for (const struct json *j = json_first(json_get(cases, "ids_with_bos")); j; j = json_next(j))
        ids[n++] = (int32_t)json_int(j);
    double mean;
    float logits[512];
    OK(nll_of_rows(m, ids, 1, n, &mean, logits));
    if (!(fabs(mean - 0.5613761) <= 1e-5))
        fail_msg("mean NLL %.8f", mean);
    int v = 0;
    for (const struct json *j = json_first(json_get(cases, "last_logits")); j; j = json_next(j)) {
        if (!(fabs((double)logits[v] - json_number(j)) <= 1e-3))
            fail_msg("logit %d: %g, expected %g", v, (double)logits[v], json_number(j));
        v++;
    }
    assert_int_equal(v, 512);
    if (!strcmp(backend, "cpu")) {
        int32_t *held;
        OK(read_u16(SHARED_DIR "/data/stories260K-heldout.u16", &held, &n));
        assert_int_equal(n, 64 * 256);
        OK(nll_of_rows(m, held, 64, 256, &mean, NULL));
        if (!(fabs(mean - 1.290917) <= 1e-5))
            fail_msg("held-out mean NLL %.8f", mean);
        memory_free(held);
    }
    model_close(m);
    backend_close(be);
    json_free(cases);
}

int main(void) {
    if (!path_exists(SHARED_DIR "/checkpoints/stories260K/model.safetensors")) {
        printf("skipped: no checkpoint at %s\n", SHARED_DIR);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(values_are_right, "cpu"),
        cmocka_unit_test_prestate(values_are_right, "cpu-ref"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
