/* Inside convert/: the state of a layer-by-layer conversion, and the parts it is made of. */
#ifndef REGROUP_CONVERT_WALK_H
#define REGROUP_CONVERT_WALK_H

#include "convert/calibrate.h"
#include "convert/fit.h"
#include "convert/observe.h"
#include "convert/refit.h"
#include "convert/spill.h"

enum { MAX_PARTITION = 8 }; /* groupings of a layer that are compared */

struct walk {
    struct convert_plan *p;
    struct checkpoint_writer *writer;
    struct merge_buffers *buffers;
    struct backend *be;
    struct calibration calib; /* the plan's; n_window 0: none */
    struct one_layer teacher, student;
    bool has_student;                       /* a refit: the converted model is walked too */
    struct spill x_teacher, x_student, mid; /* [windows * n_seq, width] */
    float *normed, *heads;                  /* one batch of windows */
    double *wide, *target;                  /* the same in fp64 */
    double *moment;                         /* [n_in, n_in] */
    struct observer observer;
    struct partition parts[MAX_PARTITION]; /* whose values teacher_pass observes */
    int n_part;
    int64_t (*item)[ROLE_COUNT]; /* [n_layer], -1: absent */
    struct attn_weights from, permuted, to;
    struct refit_sums sums;
    char what[512];
    struct arena arena;
};

/* walk_weights.c: the attention roles between files, fp64 copies and layers on a device. */
extern const enum role WALK_ROLES[];
enum { N_WALK_ROLE = 8 };
enum status walk_read(struct walk *k, int64_t layer) MUST_USE; /* into k->from */
/* All of w's roles that the layer's model has, rounded to float. */
enum status walk_set(struct one_layer *layer, struct attn_weights *w) MUST_USE;
/* All roles of k->to, rounded as the output file rounds them, into the student if there is one;
 * with `write` those that were fitted into the file too. */
enum status walk_put(struct walk *k, int64_t layer, bool write) MUST_USE;

/* layer_walk.c: what the source's layer says over all windows: k->moment, k->mid when there is one,
 * and k->parts; with `advance` x_teacher moves behind the layer. Without text only k->moment. */
enum status walk_measure(struct walk *k, int64_t layer, bool advance) MUST_USE;
/* k->parts gains one partition into n_group groups, by order [n_kv] (borrowed; NULL: neighbours),
 * or none where the heads are as many. */
enum status walk_observe(struct walk *k, int64_t n_group, const int64_t *order) MUST_USE;
void walk_forget(struct walk *k); /* k->parts is empty again */
/* k->sums of the converted layer as it is, fed x: what o_proj sees, and what it should give. Of the
 * windows to learn from every stride-th batch is used. */
enum status walk_sums(struct walk *k, const struct spill *x, int64_t stride) MUST_USE;
void widen(const float *from, int64_t rows, int64_t cols, int64_t extra, double *to);

/* walk_budget.c: what the layer's candidates in p->budget lose. */
enum status walk_losses(struct walk *k, int64_t layer) MUST_USE;

/* walk_group.c: heads that should share become neighbours, in k->from and in the source's layer. */
enum status walk_group(struct walk *k, int64_t layer, struct rotary rotary) MUST_USE;

#endif
