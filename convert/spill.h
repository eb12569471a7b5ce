/* Inside convert/: a long array of floats, in memory or, when it would take too much of that, in a
 * file without a name that vanishes with the process. */
#ifndef REGROUP_CONVERT_SPILL_H
#define REGROUP_CONVERT_SPILL_H

#include "core/memory.h"

struct spill {
    float *data; /* [n], zero at first */
    int64_t n;
    bool in_file;
};
/* dir: where the file goes, NULL: memory. Room on the disk is reserved at once. */
enum status spill_open(struct spill *s, int64_t n, const char *dir) MUST_USE;
void spill_close(struct spill *s); /* fine on {0} */
/* Elements [first, first + n) are not needed for a while: their pages may leave memory. */
void spill_rest(const struct spill *s, int64_t first, int64_t n);

#endif
