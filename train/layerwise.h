/* Objective "attention": layer-wise distillation. Every layer's attention branch, fed the teacher's
 * residual stream, is to add what the teacher's adds:
 *   loss = mean over layers of |student - teacher|^2 / |teacher|^2
 * so that layers weigh alike whatever their scale, and none waits for those below it. */
#ifndef REGROUP_TRAIN_LAYERWISE_H
#define REGROUP_TRAIN_LAYERWISE_H

#include "train/trainer.h"

enum status layerwise_check(const struct model *student, const struct model *teacher) MUST_USE;
/* How many sums a step keeps in the trainer's loss ring. */
int64_t layerwise_sums(const struct train_config *c, const struct model *student);
/* Enqueues a step's losses, as sums in the ring, and gradients. */
enum status layerwise_losses(struct trainer *t, const struct step_batch *batch) MUST_USE;
/* The losses of a slot that was read. */
enum status layerwise_read(struct trainer *t, int64_t slot, struct train_step *out) MUST_USE;

#endif
