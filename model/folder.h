/* A model folder before any weight is read: config.json and the tensors, held to each other. */
#ifndef REGROUP_MODEL_FOLDER_H
#define REGROUP_MODEL_FOLDER_H

#include "checkpoints/checkpoint.h"
#include "model/arch.h"

struct model_folder {
    struct model_config config;
    const struct arch *arch;
    struct checkpoint *ck;
    int64_t n_param;                            /* elements of the family's tensors */
    int64_t n_of_dtype[DTYPE_COUNT];            /* of them, by type */
    int64_t n_unknown;                          /* tensors that the family's table does not know */
    enum dtype kv_dtype;                        /* of the first layer's k_proj */
    const struct checkpoint_tensor *stray_head; /* lm_head although tied: not counted; or NULL */
};

/* Every tensor that the configuration implies is there with the right shape and a float type, and
 * none belongs to a layer or a bias that the configuration does not have. */
enum status model_folder_open(const char *dir, struct model_folder **out) MUST_USE;
void model_folder_close(struct model_folder *f);
/* With a stray head: does it differ from the embedding it is said to be tied to? Reads both,
 * through `buffer` of n_buffer bytes. */
enum status model_folder_head_differs(const struct model_folder *f, void *buffer, int64_t n_buffer,
                                      bool *out) MUST_USE;

#endif
