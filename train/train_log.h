/* OUT/log.jsonl: one JSON line a step and one an evaluation. */
#ifndef REGROUP_TRAIN_TRAIN_LOG_H
#define REGROUP_TRAIN_TRAIN_LOG_H

#include "core/text.h"
#include "train/trainer.h"

struct train_log {
    int fd;
    char path[4096];
    struct text line; /* of the latest step: grows once, then a step allocates nothing */
};
/* Opens for appending. Lines of steps beyond `step`, and a torn last line, are dropped first, so
 * that a continued run has each step once. */
enum status train_log_open(const char *out_dir, int64_t step, struct train_log *out) MUST_USE;
/* `tokens` of the step, which took so many seconds. */
enum status train_log_step(struct train_log *log, const struct train_step *s, bool has_teacher,
                           int64_t tokens, double seconds) MUST_USE;
enum status train_log_eval(struct train_log *log, int64_t step, const struct loss_parts *e,
                           bool has_teacher) MUST_USE;
enum status train_log_sync(struct train_log *log) MUST_USE; /* to the disk */
void train_log_close(struct train_log *log);

#endif
