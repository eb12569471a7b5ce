/* Which heads of a layer share. */
#include "convert/walk.h"

enum status walk_group(struct walk *k, int64_t layer, struct rotary rotary) {
    int64_t n = k->from.n_kv, *order;
    TRY(arena_alloc(&k->p->arena, n, (int64_t)sizeof *order, &order));
    TRY(walk_observe(k, 1));
    TRY(walk_measure(k, layer, false));
    TRY(fit_grouping(&k->from, k->moment, k->n_part ? k->parts[0].cov : NULL, rotary, k->to.n_kv,
                     k->p->options.seed + (uint64_t)layer, order, k->what));
    k->p->layers[layer].order = order;
    attn_weights_permute(&k->from, order, &k->permuted);
    struct attn_weights swap = k->from;
    k->from = k->permuted;
    k->permuted = swap;
    return k->calib.n_window ? walk_set(&k->teacher, &k->from) : STATUS_OK;
}
