/* config.json: whatever is accepted stays inside its bounds, can be edited, and the edited text
 * says what was asked for. */
#include "model/arch.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void must(bool holds) {
    if (!holds)
        abort();
}

static void check(const struct model_config *c, const char *bytes, int64_t n) {
    static struct model_config wanted, found;
    struct text text = {0};
    struct json *j;
    int64_t shape[2], sizes[8];
    wanted = *c;
    for (int64_t l = 0; l < c->n_layer; l++) {
        must(c->n_kv_head[l] >= 1 && c->n_head % c->n_kv_head[l] == 0);
        wanted.n_kv_head[l] = 1;
        for (int r = 0; r < ROLE_COUNT; r++) {
            (void)config_role_shape(c, (enum role)r, l, shape);
            must(shape[0] > 0 && shape[1] > 0);
        }
    }
    must(model_kv_bytes_per_token(c, DTYPE_F64) > 0 && model_tensor_parallel(c, sizes, 8) >= 1);
    must(text_add(&text, bytes, n) == STATUS_OK);
    must(model_config_edit(&text, &wanted, DTYPE_BF16) == STATUS_OK);
    must(json_parse(text.data, text.n, "edited", &j) == STATUS_OK);
    if (model_config_parse(j, "edited", &found) == STATUS_OK)
        must(found.n_head == c->n_head && found.n_layer == c->n_layer);
    json_free(j);
    text_free(&text);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    static struct model_config c;
    struct json *j;
    if (json_parse((const char *)data, (int64_t)n, "fuzz", &j) != STATUS_OK)
        return 0;
    if (model_config_parse(j, "fuzz", &c) == STATUS_OK)
        check(&c, (const char *)data, (int64_t)n);
    json_free(j);
    return 0;
}
