/* xoshiro256++ and splitmix64, both public domain algorithms by Blackman and Vigna. */
#include "core/rng.h"

#include <math.h>

static uint64_t splitmix(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

struct rng rng_seed(uint64_t seed) {
    struct rng r;
    for (int i = 0; i < 4; i++)
        r.s[i] = splitmix(&seed);
    return r;
}

struct rng rng_stream(uint64_t seed, uint64_t stream) {
    uint64_t mixed = splitmix(&seed) ^ (stream * 0xd1342543de82ef95u);
    return rng_seed(splitmix(&mixed));
}

static uint64_t rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

uint64_t rng_u64(struct rng *r) {
    uint64_t *s = r->s, result = rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double rng_uniform(struct rng *r) {
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

int64_t rng_below(struct rng *r, int64_t n) {
    uint64_t bound = (uint64_t)n, limit = -bound % bound, v;
    do
        v = rng_u64(r);
    while (v < limit);
    return (int64_t)(v % bound);
}

double rng_normal(struct rng *r) {
    double u = 1.0 - rng_uniform(r), v = rng_uniform(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586477 * v);
}

void rng_shuffle(struct rng *r, int64_t *items, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = rng_below(r, i + 1), t = items[i];
        items[i] = items[j];
        items[j] = t;
    }
}

uint64_t hash_bytes(const void *bytes, int64_t n, uint64_t seed) {
    const unsigned char *p = bytes;
    uint64_t h = 0xcbf29ce484222325u ^ seed;
    for (int64_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}
