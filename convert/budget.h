/* Inside convert/: which number of KV heads each layer gets when all together have a budget. */
#ifndef REGROUP_CONVERT_BUDGET_H
#define REGROUP_CONVERT_BUDGET_H

#include "convert/convert.h"

/* What layer l can become, the source's own count first (that loses nothing), then fewer and
 * fewer; losses unknown. Lives in the plan's arena. */
enum status budget_candidates(struct convert_plan *p) MUST_USE;
/* Sets `chosen` in each layer: the least sum of losses with at most `most` heads together, exactly
 * (dynamic programming; losses in steps of 2^-40, or of the largest if it is over 1); among equal
 * sums the one with the least sum of squared counts, that is few and even ones; then fewer heads in
 * the first layers. */
enum status budget_choose(struct budget_layer *layers, int64_t n_layer, int64_t most) MUST_USE;
/* The largest count that every layer can have with at most `most` heads together; 0: none. */
int64_t budget_uniform(const struct budget_layer *layers, int64_t n_layer, int64_t most);
/* Sums of losses: as chosen, and with n_kv heads in every layer. */
double budget_loss(const struct budget_layer *layers, int64_t n_layer);
double budget_loss_uniform(const struct budget_layer *layers, int64_t n_layer, int64_t n_kv);
/* A plan's budget, what its layers can be and what was chosen, under "kv_budget" once there is a
 * choice. */
void budget_to_json(const struct convert_plan *p, struct json *j);
/* Under "n_kv_head", "from" and "to": one number, or where the layers differ a list of theirs. */
void heads_to_json(const struct convert_plan *p, struct json *j);

#endif
