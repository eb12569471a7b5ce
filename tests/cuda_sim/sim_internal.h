/* Between the simulator's files. Work is queued by stream (sim_stream.cpp) and runs on the thread
 * that waits for it: kernels through sim_schedule.cpp, one block after the other, every CUDA
 * thread a fiber; memory of all kinds from guarded regions (sim_memory.cpp). */
#ifndef REGROUP_CUDA_SIM_INTERNAL_H
#define REGROUP_CUDA_SIM_INTERNAL_H

#include "cuda_runtime.h"
#include "cuda_sim.h"
#include "cuda_sim_device.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace cuda_sim {

extern std::recursive_mutex lock;
#define SIM_LOCK std::lock_guard<std::recursive_mutex> guard(cuda_sim::lock)

/* One line on what is wrong and where, then the end of the process (status 134). */
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string where_now(); /* "kernel k, block (0, 0, 0), thread (3, 0, 0)", or what else runs */

uint64_t random_bits();
inline uint32_t random_below(uint32_t n) {
    return (uint32_t)((random_bits() >> 32) * n >> 32);
}

/* Memory. Regions lie between inaccessible pages, end at one (to `align` bytes), start as NaN. */
enum class space { device, pinned, shared };
struct region {
    char *base;
    size_t bytes, room; /* room: bytes rounded up to the alignment; the rest is a canary */
    space where;
    bool live;
    uint64_t serial;  /* the how-manieth cudaMalloc */
    const char *name; /* of a shared array */
};
region *region_make(space where, size_t bytes, size_t align);
void region_free(region *r); /* its addresses stay inaccessible */
void region_poison(region *r);
region *region_find(const void *p);    /* the live one that holds p or ends at it, or NULL */
region *region_nearest(const void *p); /* NULL when p is in no simulated space */
bool in_space(space where, const void *p);
std::string region_describe(const void *p);
void check_canaries(const char *after);
void check_range(const char *call, const char *what, const void *p, size_t bytes, space where);
void check_host_range(const char *call, const char *what, const void *p, size_t bytes);
/* Device memory can be touched, by this thread, while one of these lives: host code that follows a
 * device pointer faults (where the processor has protection keys). */
class device_access {
    int before;

  public:
    device_access();
    ~device_access();
};
constexpr size_t STATIC_SHARED_LIMIT = 48 * 1024;
struct gpu { /* by REGROUP_SIM_SM: 80 is an A100, 90 (the default) an H200 */
    const char *name;
    int major, n_multiprocessor, l2_mib;
    size_t shared_limit; /* of a block */
};
const gpu &chip();

void run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes,
              const std::function<void()> &body);
void fault_handler_install();
bool in_fiber_guard(const void *p);

/* Work of a stream: run later, or kept as a node when the stream is being captured. */
cudaError_t enqueue(cudaStream_t stream, const char *what, std::function<void()> run);
void run_all();
extern const char *running; /* the work under way, or NULL */
/* Whether a capture forbids this call now; the capture is void then. */
bool capture_refuses(const char *call);
cudaError_t set_error(cudaError_t error); /* for cudaGetLastError; returns it */

} // namespace cuda_sim

#endif
