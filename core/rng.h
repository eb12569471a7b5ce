/* xoshiro256++ (Blackman & Vigna), seeded through splitmix64. The state is plain data: save it to
 * resume bit-exactly. */
#ifndef REGROUP_CORE_RNG_H
#define REGROUP_CORE_RNG_H

#include <stdint.h>

struct rng {
    uint64_t s[4];
};
struct rng rng_seed(uint64_t seed);
/* An independent generator for (seed, stream): e.g. one per tensor or per epoch. */
struct rng rng_stream(uint64_t seed, uint64_t stream);
uint64_t rng_u64(struct rng *r);
double rng_uniform(struct rng *r);                          /* [0, 1), 53 bits */
int64_t rng_below(struct rng *r, int64_t n);                /* [0, n), unbiased; n > 0 */
double rng_normal(struct rng *r);                           /* mean 0, variance 1 (Box-Muller) */
void rng_shuffle(struct rng *r, int64_t *items, int64_t n); /* Fisher-Yates */
uint64_t hash_bytes(const void *bytes, int64_t n, uint64_t seed); /* FNV-1a 64, for fingerprints */

#endif
