/* Inside convert/: text on which a conversion measures, and a model walked layer by layer over it.
 * One layer's weights are in memory at a time, and the residual streams of all windows. */
#ifndef REGROUP_CONVERT_CALIBRATE_H
#define REGROUP_CONVERT_CALIBRATE_H

#include "convert/convert.h"
#include "data/tokens.h"
#include "model/model.h"

struct calibration {
    int32_t *ids;                     /* [n_window * n_seq] */
    int64_t n_window, n_seq, n_train; /* windows [n_train, n_window) are held out */
    uint64_t hash;                    /* of the ids used */
};
/* From the options' files, or sampled from the model. */
enum status calibration_open(const struct convert_options *o, const struct model_folder *folder,
                             struct backend *be, struct calibration *out) MUST_USE;
void calibration_close(struct calibration *c);
/* n_window windows of n_seq tokens that the model says itself at temperature 1. */
enum status calibration_sample(const char *dir, struct backend *be, int64_t n_window, int64_t n_seq,
                               uint64_t seed, int32_t *ids) MUST_USE;
/* The embedded ids: [n_window * n_seq, width]. */
enum status calibration_embed(const struct calibration *c, const struct model_folder *folder,
                              float *stream) MUST_USE;

/* A model of one layer whose weights change; n_kv KV heads. */
struct one_layer {
    const struct model_folder *folder; /* borrowed */
    struct model *model;
    struct acts *acts;
    int64_t n_batch, n_seq; /* windows at a time, of n_seq tokens */
};
enum status one_layer_open(const struct model_folder *folder, struct backend *be, int64_t n_kv,
                           int64_t n_seq, struct one_layer *out) MUST_USE;
void one_layer_close(struct one_layer *o);
/* From now on with n_kv KV heads: weights of `layer` from the folder, but for K and V (and biases)
 * when it has another number of them. */
enum status one_layer_load(struct one_layer *o, int64_t layer, int64_t n_kv) MUST_USE;
/* n values of one role. */
enum status one_layer_set(struct one_layer *o, enum role role, const float *values,
                          int64_t n) MUST_USE;

#endif
