/* See budget.h. Every head costs the same bytes in the KV cache, so the budget counts heads. */
#include "convert/budget.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum status budget_candidates(struct convert_plan *p) {
    const struct model_config *c = &p->folder->config;
    TRY(arena_alloc(&p->arena, c->n_layer, (int64_t)sizeof *p->budget, &p->budget));
    for (int64_t l = 0; l < c->n_layer; l++) {
        struct budget_layer *b = &p->budget[l];
        int64_t from = c->n_kv_head[l];
        for (int64_t n = 1; n <= from; n++)
            b->n += from % n == 0;
        TRY(arena_alloc(&p->arena, b->n, (int64_t)sizeof *b->candidates, &b->candidates));
        int64_t at = 0;
        for (int64_t n = from; n >= 1; n--)
            if (from % n == 0)
                b->candidates[at++].n_kv = n;
    }
    return STATUS_OK;
}

struct value { /* compared in this order; loss < 0: not possible */
    int64_t loss, squares;
};

static bool better(struct value a, struct value b) {
    return b.loss < 0 || a.loss < b.loss || (a.loss == b.loss && a.squares < b.squares);
}

/* Losses as whole numbers: sums are then exact, and equal ones are equal. They are shares: less
 * than 2^-40 is rounding, also where all are. */
static double loss_unit(const struct budget_layer *layers, int64_t n_layer) {
    double largest = 0.5;
    for (int64_t l = 0; l < n_layer; l++)
        for (int64_t i = 0; i < layers[l].n; i++)
            largest = fmax(largest, layers[l].candidates[i].loss);
    int exponent; /* a power of two: short sums stay what they are */
    frexp(largest, &exponent);
    return ldexp(1, exponent - 40);
}

enum status budget_choose(struct budget_layer *layers, int64_t n_layer, int64_t most) {
    struct arena arena = {0};
    struct value *now, *next;
    uint8_t
        *taken; /* [n_layer, most + 1]: the candidate of layer l when layers 0..l have h heads */
    enum status status;
    double unit = loss_unit(layers, n_layer);
    TRY_OUT(arena_alloc(&arena, most + 1, (int64_t)sizeof *now, &now));
    TRY_OUT(arena_alloc(&arena, most + 1, (int64_t)sizeof *next, &next));
    TRY_OUT(arena_alloc(&arena, n_layer * (most + 1), 1, &taken));
    for (int64_t h = 1; h <= most; h++)
        now[h].loss = -1;
    for (int64_t l = 0; l < n_layer; l++) {
        for (int64_t h = 0; h <= most; h++)
            next[h].loss = -1;
        for (int64_t i = 0; i < layers[l].n; i++) {
            const struct budget_candidate *c = &layers[l].candidates[i];
            if (!(c->loss >= 0) || isinf(c->loss)) {
                status = status_fail(STATUS_FAILED,
                                     "layer %lld with %lld KV heads: a loss of %g cannot be "
                                     "compared: its weights or activations overflow",
                                     (long long)l, (long long)c->n_kv, c->loss);
                goto out;
            }
            int64_t loss = (int64_t)llround(c->loss / unit), n = c->n_kv;
            for (int64_t h = n; h <= most; h++) {
                if (now[h - n].loss < 0)
                    continue;
                struct value v = {now[h - n].loss + loss, now[h - n].squares + n * n};
                if (better(v, next[h])) {
                    next[h] = v;
                    taken[l * (most + 1) + h] = (uint8_t)i;
                }
            }
        }
        struct value *swap = now;
        now = next;
        next = swap;
    }
    int64_t best = 0;
    for (int64_t h = 1; h <= most; h++)
        if (now[h].loss >= 0 && better(now[h], now[best]))
            best = h;
    if (now[best].loss < 0) {
        status = status_fail(STATUS_FAILED, "%lld KV heads are too few for %lld layers",
                             (long long)most, (long long)n_layer);
        goto out;
    }
    for (int64_t l = n_layer - 1; l >= 0; l--) {
        layers[l].chosen = taken[l * (most + 1) + best];
        best -= layers[l].candidates[layers[l].chosen].n_kv;
    }
out:
    arena_free(&arena);
    return status;
}

/* The candidate with n_kv heads; NULL: none. */
static const struct budget_candidate *find(const struct budget_layer *b, int64_t n_kv) {
    for (int64_t i = 0; i < b->n; i++)
        if (b->candidates[i].n_kv == n_kv)
            return &b->candidates[i];
    return NULL;
}

int64_t budget_uniform(const struct budget_layer *layers, int64_t n_layer, int64_t most) {
    for (int64_t n = most / n_layer; n >= 1; n--) {
        int64_t can = 0;
        while (can < n_layer && find(&layers[can], n))
            can++;
        if (can == n_layer)
            return n;
    }
    return 0;
}

double budget_loss(const struct budget_layer *layers, int64_t n_layer) {
    double sum = 0;
    for (int64_t l = 0; l < n_layer; l++)
        sum += layers[l].candidates[layers[l].chosen].loss;
    return sum;
}

double budget_loss_uniform(const struct budget_layer *layers, int64_t n_layer, int64_t n_kv) {
    double sum = 0;
    for (int64_t l = 0; l < n_layer; l++) {
        const struct budget_candidate *c = find(&layers[l], n_kv);
        sum += c ? c->loss : NAN;
    }
    return sum;
}

static void set_heads(struct json *o, const char *key, const struct model_config *c) {
    if (model_kv_uniform(c)) {
        json_set_int(o, key, c->n_kv_head[0]);
        return;
    }
    struct json *list = json_set_array(o, key);
    for (int64_t l = 0; l < c->n_layer; l++)
        json_push_number(list, c->n_kv_head[l]);
}

void heads_to_json(const struct convert_plan *p, struct json *j) {
    struct json *heads = json_set_object(j, "n_kv_head");
    set_heads(heads, "from", &p->folder->config);
    set_heads(heads, "to", &p->config);
}

void budget_to_json(const struct convert_plan *p, struct json *j) {
    int64_t n = p->config.n_layer;
    if (!p->budget)
        return;
    struct json *o = json_set_object(j, "kv_budget");
    json_set_number(o, "share", p->options.kv_budget);
    json_set_int(o, "kv_heads", p->budget_heads);
    json_set_string(o, "loss",
                    p->calib_used ? "share of the stream behind the layer"
                                  : "shares of scores and of values");
    json_set_number(o, "predicted_loss", budget_loss(p->budget, n));
    int64_t uniform = budget_uniform(p->budget, n, p->budget_heads);
    if (uniform) {
        struct json *u = json_set_object(o, "nearest_uniform");
        json_set_int(u, "n_kv_head", uniform);
        json_set_number(u, "predicted_loss", budget_loss_uniform(p->budget, n, uniform));
    }
    struct json *loads = json_set_array(o, "loads_in");
    for (int t = 0; t < TARGET_COUNT; t++)
        if (t == TARGET_REGROUP || model_kv_uniform(&p->config))
            json_push_string(loads, convert_target_name((enum convert_target)t));
    struct json *layers = json_set_array(o, "layers");
    for (int64_t l = 0; l < n; l++) {
        const struct budget_layer *b = &p->budget[l];
        struct json *e = json_push_object(layers);
        json_set_int(e, "layer", l);
        json_set_int(e, "n_kv_head", b->candidates[b->chosen].n_kv);
        struct json *losses = json_set_object(e, "losses");
        for (int64_t i = 0; i < b->n; i++) {
            char key[24];
            snprintf(key, sizeof key, "%lld", (long long)b->candidates[i].n_kv);
            json_set_number(losses, key, b->candidates[i].loss);
        }
    }
}
