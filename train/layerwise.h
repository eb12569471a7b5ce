/* Objective "attention": layer-wise distillation. Every layer's attention branch, fed the teacher's
 * residual stream, is to add what the teacher's adds:
 *   loss = mean over layers of |student - teacher|^2 / |teacher|^2
 * so that layers weigh alike whatever their scale, and none waits for those below it. */
#ifndef REGROUP_TRAIN_LAYERWISE_H
#define REGROUP_TRAIN_LAYERWISE_H

#include "train/trainer.h"

enum status layerwise_check(const struct model *student, const struct model *teacher) MUST_USE;
/* Loss and gradient of the step's micro-batches, which stand in host_ids. */
enum status layerwise_losses(struct trainer *t, struct train_step *out) MUST_USE;

#endif
