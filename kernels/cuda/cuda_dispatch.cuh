/* What the memory-bound ops share on the host: the choice of the element type, of 16-byte or
 * single-element accesses, and of launch sizes. */
#ifndef REGROUP_KERNELS_CUDA_CUDA_DISPATCH_CUH
#define REGROUP_KERNELS_CUDA_CUDA_DISPATCH_CUH

#include "kernels/cuda/cuda_device.cuh"

#include <algorithm>

/* Elements of `t` in 16 bytes if every pointer is aligned to them and every count (width, stride)
 * a multiple of them; else 1. NULL pointers fit always. */
template <class... P>
inline int vec_for(enum dtype t, std::initializer_list<int64_t> counts, const P *...pointers) {
    int n = 16 / (int)dtype_size(t);
    bool fits = (aligned_16(pointers) && ... && true);
    for (int64_t count : counts)
        fits = fits && count % n == 0;
    return fits ? n : 1;
}

inline int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
/* Threads of a block that has `work` items: whole warps, at least one, at most `most`. */
inline int block_for(int64_t work, int most) {
    return (int)std::min<int64_t>(most, std::max<int64_t>(1, divide_up(work, WARP)) * WARP);
}

inline enum status cuda_check_dtype(const char *op, enum dtype t) {
    if (t == DTYPE_F32 || t == DTYPE_BF16)
        return STATUS_OK;
    return status_fail(STATUS_FAILED, "%s: cuda computes in F32 and BF16, not in %s", op,
                       dtype_name(t));
}

/* The statements with T the type that a dtype accepted by cuda_check_dtype names, and N the
 * elements that vec_for chose for it. */
#define WITH_TYPE(dtype_, T, ...)                                                                  \
    do {                                                                                           \
        if ((dtype_) == DTYPE_F32) {                                                               \
            using T = float;                                                                       \
            __VA_ARGS__                                                                            \
        } else {                                                                                   \
            using T = __nv_bfloat16;                                                               \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)
#define WITH_VEC(dtype_, n_, T, N, ...)                                                            \
    WITH_TYPE(dtype_, T, {                                                                         \
        if ((n_) == 1) {                                                                           \
            constexpr int N = 1;                                                                   \
            __VA_ARGS__                                                                            \
        } else {                                                                                   \
            constexpr int N = VEC<T>;                                                              \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    })

#endif
