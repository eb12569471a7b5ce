/* The simulator's side of kernels/cuda/cuda_device.cuh: launches, shared memory, and the PTX
 * wrappers with the fragment layouts of the PTX manual. */
#ifndef REGROUP_CUDA_SIM_DEVICE_H
#define REGROUP_CUDA_SIM_DEVICE_H

#include "device_functions.h"

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace cuda_sim {

/* Checks the launch and queues it; thread_body runs once for every thread. */
void launch(const char *kernel, dim3 grid, dim3 block, int64_t shared_bytes, cudaStream_t stream,
            std::function<void()> thread_body, const char *file, int line);
void check_kernel_pointer(const char *kernel, int argument, const void *p);

template <class T> void check_argument(const char *kernel, int i, const T &v) {
    if constexpr (std::is_pointer_v<T>)
        check_kernel_pointer(kernel, i, (const void *)v);
}
template <class... P, class... A>
void launch_kernel(const char *name, const char *file, int line, void (*kernel)(P...), dim3 grid,
                   dim3 block, int64_t shared_bytes, cudaStream_t stream, const A &...args) {
    static_assert(sizeof...(P) == sizeof...(A), "as many arguments as the kernel takes");
    std::tuple<P...> values(static_cast<P>(args)...);
    int i = 0;
    std::apply([&](const auto &...v) { (check_argument(name, i++, v), ...); }, values);
    launch(
        name, grid, block, shared_bytes, stream, [=] { std::apply(kernel, values); }, file, line);
}

/* One static shared array, found again by every thread of the block. */
struct shared_slot {
    const char *name;
    size_t bytes;
    void *data;
    uint64_t launch; /* for which `data` is right */
};
extern uint64_t current_launch;
void shared_make(shared_slot *slot);
inline void *shared_find(shared_slot *slot) {
    if (__builtin_expect(slot->launch != current_launch, 0))
        shared_make(slot);
    return slot->data;
}
void *shared_dynamic();

void cp_async(void *shared, const void *global, size_t bytes, bool valid);
void cp_async_commit_group();
void cp_async_wait_group(int n);
void ldmatrix(uint32_t *r, const void *row, int n, bool trans, const site &at);
void mma(float *d, const uint32_t *a, const uint32_t *b, const site &at);

} // namespace cuda_sim

#define CUDA_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                \
    cuda_sim::launch_kernel(#kernel, __FILE__, __LINE__, kernel, dim3(grid), dim3(block),          \
                            (int64_t)(shared_bytes), stream, ##__VA_ARGS__)

#define SHARED_ARRAY(type, name, count)                                                            \
    static cuda_sim::shared_slot name##_slot = {#name, sizeof(type) * (size_t)(count), nullptr,    \
                                                0};                                                \
    type *const name = static_cast<type *>(cuda_sim::shared_find(&name##_slot))
#define SHARED_DYNAMIC(type, name)                                                                 \
    type *const name = static_cast<type *>(cuda_sim::shared_dynamic())

inline void cp_async_16(void *shared, const void *global, bool valid) {
    cuda_sim::cp_async(shared, global, 16, valid);
}
inline void cp_async_4(void *shared, const void *global, bool valid) {
    cuda_sim::cp_async(shared, global, 4, valid);
}
inline void cp_async_commit() {
    cuda_sim::cp_async_commit_group();
}
template <int N> inline void cp_async_wait() {
    cuda_sim::cp_async_wait_group(N);
}
inline void ldmatrix_x4(uint32_t *r, const void *row, SIM_SITE) {
    cuda_sim::ldmatrix(r, row, 4, false, SIM_AT("ldmatrix_x4"));
}
inline void ldmatrix_x4_trans(uint32_t *r, const void *row, SIM_SITE) {
    cuda_sim::ldmatrix(r, row, 4, true, SIM_AT("ldmatrix_x4_trans"));
}
inline void ldmatrix_x2(uint32_t *r, const void *row, SIM_SITE) {
    cuda_sim::ldmatrix(r, row, 2, false, SIM_AT("ldmatrix_x2"));
}
inline void ldmatrix_x2_trans(uint32_t *r, const void *row, SIM_SITE) {
    cuda_sim::ldmatrix(r, row, 2, true, SIM_AT("ldmatrix_x2_trans"));
}
inline void mma_bf16_16x8x16(float *d, const uint32_t *a, const uint32_t *b, SIM_SITE) {
    cuda_sim::mma(d, a, b, SIM_AT("mma_bf16_16x8x16"));
}

#endif
