/* Tensor-core fragments as the PTX manual lays them out (ldmatrix; mma.m16n8k16, "Matrix
 * Fragments for mma.m16n8k16 with floating point type"), and votes. */
#include "sim_internal.h"

namespace cuda_sim {

void vote_compute(void **lanes, unsigned) {
    unsigned ballot = 0;
    for (int i = 0; i < 32; i++)
        if (lanes[i] && static_cast<vote_argument *>(lanes[i])->predicate)
            ballot |= 1u << i;
    for (int i = 0; i < 32; i++)
        if (lanes[i])
            static_cast<vote_argument *>(lanes[i])->ballot = ballot;
}

namespace {
constexpr unsigned ALL = 0xffffffffu;
struct ldmatrix_argument {
    uint32_t *r;
    char row[16]; /* as it was when its lane came: lanes meet here, but memory is not in order */
};
template <int N, bool TRANS> void ldmatrix_compute(void **lanes, unsigned) {
    for (int m = 0; m < N; m++) {
        uint16_t matrix[8][8];
        for (int i = 0; i < 8; i++)
            memcpy(matrix[i], static_cast<ldmatrix_argument *>(lanes[8 * m + i])->row, 16);
        for (int l = 0; l < 32; l++) {
            int major = l / 4, minor = 2 * (l % 4);
            uint16_t low = TRANS ? matrix[minor][major] : matrix[major][minor];
            uint16_t high = TRANS ? matrix[minor + 1][major] : matrix[major][minor + 1];
            static_cast<ldmatrix_argument *>(lanes[l])->r[m] = (uint32_t)high << 16 | low;
        }
    }
}
struct mma_argument {
    float *d;
    const uint32_t *a, *b;
};
float low(uint32_t pair) {
    return sim_bits<float>(pair << 16);
}
float high(uint32_t pair) {
    return sim_bits<float>(pair & 0xffff0000u);
}
void mma_compute(void **lanes, unsigned) {
    float a[16][16], b[16][8], d[16][8];
    for (int l = 0; l < 32; l++) {
        const mma_argument *x = static_cast<mma_argument *>(lanes[l]);
        int g = l / 4, t = l % 4;
        for (int r = 0; r < 4; r++) {
            int row = g + 8 * (r % 2), column = 2 * t + 8 * (r / 2);
            a[row][column] = low(x->a[r]);
            a[row][column + 1] = high(x->a[r]);
        }
        for (int r = 0; r < 2; r++) {
            b[2 * t + 8 * r][g] = low(x->b[r]);
            b[2 * t + 8 * r + 1][g] = high(x->b[r]);
        }
        for (int i = 0; i < 4; i++)
            d[g + 8 * (i / 2)][2 * t + i % 2] = x->d[i];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                d[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++)
            static_cast<mma_argument *>(lanes[l])->d[i] =
                d[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
}
} // namespace

void ldmatrix(uint32_t *r, const void *row, int n, bool trans, const site &at) {
    ldmatrix_argument x;
    x.r = r;
    if (lane() < 8 * n && ((uintptr_t)row % 16 || !in_space(space::shared, row)))
        die("%s: %s (%s:%d) of %p: no 16-byte aligned address in shared memory",
            where_now().c_str(), at.what, at.file, at.line, row);
    if (lane() < 8 * n)
        memcpy(x.row, row, sizeof x.row);
    auto compute = n == 4 ? (trans ? ldmatrix_compute<4, true> : ldmatrix_compute<4, false>)
                          : (trans ? ldmatrix_compute<2, true> : ldmatrix_compute<2, false>);
    collective(ALL, at, &x, compute);
}

void mma(float *d, const uint32_t *a, const uint32_t *b, const site &at) {
    mma_argument x = {d, a, b};
    collective(ALL, at, &x, mma_compute);
}

} // namespace cuda_sim
