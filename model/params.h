/* Inside model/: laying out the flat parameter buffer. */
#ifndef REGROUP_MODEL_PARAMS_H
#define REGROUP_MODEL_PARAMS_H

#include "model/model.h"

/* Fills params, index, layer_index, n_param_tensors and n_param from m->config. On failure what
 * was allocated stays in *m for model_close. */
enum status params_lay_out(struct model *m) MUST_USE;

#endif
