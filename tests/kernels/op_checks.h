/* What the tests of a backend's ops share: inputs, errors against cpu-ref in F64 measured in the
 * yardstick's, NaNs that got lost. */
#ifndef REGROUP_TESTS_KERNELS_OP_CHECKS_H
#define REGROUP_TESTS_KERNELS_OP_CHECKS_H

#include "op_cases.h"

void op_values_copy(const struct op_case *c, struct op_values *to, const struct op_values *v);
/* The inputs as `dtype` holds them; what the op's forward hands to its backward likewise. */
enum status op_inputs(struct backend *oracle, const struct op_case *c, enum dtype dtype,
                      struct op_values *v) MUST_USE;
bool op_buffer_is_output(const struct op_buffer *b);
/* The buffers of `got` that are further from `truth` than twice the yardstick's error, plus one
 * unit in the last place of single precision for results that the yardstick happened to get
 * exactly; each one said on stderr. */
int op_compare(const struct op_case *c, enum dtype dtype, const char *who,
               const struct op_values *got, const struct op_values *unit,
               const struct op_values *truth);
/* The output buffers in which `a` and `b` differ in any bit. */
int op_differing(const struct op_case *c, const struct op_values *a, const struct op_values *b);
/* An input in which the NaN test puts a NaN. */
bool op_buffer_takes_nan(const struct op_buffer *b);
/* The output buffers with a number where `want` has a NaN, each said on stderr; *seen += NaNs. */
int op_hidden_nans(const struct op_case *c, enum dtype dtype, const char *who,
                   const struct op_buffer *poisoned, const struct op_values *want,
                   const struct op_values *got, int64_t *seen);

#endif
