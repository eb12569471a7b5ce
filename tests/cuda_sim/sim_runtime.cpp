/* The runtime's calls on devices, errors and memory. */
#include "sim_internal.h"

#include <cstdlib>
#include <set>

using namespace cuda_sim;

namespace cuda_sim {
const gpu &chip() {
    static const gpu a100 = {"simulated A100", 8, 108, 40, 163 * 1024},
                     h200 = {"simulated H200", 9, 132, 60, 227 * 1024};
    const char *sm = getenv("REGROUP_SIM_SM");
    if (sm && strcmp(sm, "80") && strcmp(sm, "90"))
        die("REGROUP_SIM_SM is '%s'; expected 80 or 90", sm);
    return sm && !strcmp(sm, "80") ? a100 : h200;
}

static int64_t n_malloc;
static size_t in_use_bytes, limit_bytes = (size_t)4 << 30;

static const char *kind_name(enum cudaMemcpyKind kind) {
    static const char *const names[] = {"host to host", "host to device", "device to host",
                                        "device to device", "default"};
    return (unsigned)kind < 5 ? names[kind] : "?";
}

/* What a copy may touch, said when it is asked for and again when it runs. */
static void check_copy(const char *call, const void *to, const void *from, size_t bytes,
                       enum cudaMemcpyKind kind) {
    if ((unsigned)kind > cudaMemcpyDefault)
        die("%s: no such kind of copy: %d", call, (int)kind);
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice ||
                     (kind == cudaMemcpyDefault && in_space(space::device, to));
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice ||
                       (kind == cudaMemcpyDefault && in_space(space::device, from));
    std::string name = std::string(call) + ", " + kind_name(kind);
    if (to_device)
        check_range(name.c_str(), "destination", to, bytes, space::device);
    else
        check_host_range(name.c_str(), "destination", to, bytes);
    if (from_device)
        check_range(name.c_str(), "source", from, bytes, space::device);
    else
        check_host_range(name.c_str(), "source", from, bytes);
    const char *a = (const char *)to, *b = (const char *)from;
    if (a < b + bytes && b < a + bytes)
        die("%s: source and destination overlap", call);
}

static cudaError_t allocate(const char *call, void **p, size_t bytes, space where) {
    SIM_LOCK;
    fault_handler_install();
    if (!p)
        die("%s: NULL for the address", call);
    if (capture_refuses(call))
        return set_error(cudaErrorStreamCaptureUnsupported);
    n_malloc++;
    *p = nullptr;
    if (where == space::device && bytes > limit_bytes - std::min(limit_bytes, in_use_bytes))
        return set_error(cudaErrorMemoryAllocation);
    if (bytes == 0)
        return cudaSuccess;
    *p = region_make(where, bytes, 16)->base;
    if (where == space::device)
        in_use_bytes += bytes;
    return cudaSuccess;
}
static cudaError_t release(const char *call, void *p, space where) {
    SIM_LOCK;
    if (!p)
        return cudaSuccess;
    if (capture_refuses(call))
        return set_error(cudaErrorStreamCaptureUnsupported);
    run_all(); /* as the runtime does: freeing waits for the device */
    region *r = region_find(p);
    if (!r || r->base != p || r->where != where)
        die("%s: %p was not allocated, or is freed already (%s)", call, p,
            region_describe(p).c_str());
    check_canaries(call);
    if (where == space::device)
        in_use_bytes -= r->bytes;
    region_free(r);
    return cudaSuccess;
}

static cudaError_t last_error;
cudaError_t set_error(cudaError_t error) {
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

static bool no_device() {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible && (!*visible || !strcmp(visible, "-1"));
}
} // namespace cuda_sim

extern "C" {

int64_t cuda_sim_malloc_count(void) {
    SIM_LOCK;
    return n_malloc;
}
void cuda_sim_memory_limit(size_t bytes) {
    SIM_LOCK;
    limit_bytes = bytes;
}

const char *cudaGetErrorName(cudaError_t error) {
    return cudaGetErrorString(error);
}
const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined:
        return "capturing stream has unjoined work";
    case cudaErrorGraphExecUpdateFailure:
        return "the graph update was not performed";
    default:
        return "simulated error";
    }
}
cudaError_t cudaGetLastError(void) {
    SIM_LOCK;
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) {
    SIM_LOCK;
    return last_error;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = no_device() ? 0 : 1;
    return no_device() ? set_error(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return no_device() ? set_error(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (no_device())
        return set_error(cudaErrorNoDevice);
    return device == 0 ? cudaSuccess : set_error(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    if (no_device() || device != 0)
        return set_error(no_device() ? cudaErrorNoDevice : cudaErrorInvalidDevice);
    *out = {};
    snprintf(out->name, sizeof out->name, "%s", chip().name);
    out->totalGlobalMem = limit_bytes;
    out->sharedMemPerBlock = STATIC_SHARED_LIMIT;
    out->sharedMemPerBlockOptin = chip().shared_limit;
    out->sharedMemPerMultiprocessor = chip().shared_limit + 1024;
    out->regsPerBlock = 65536;
    out->warpSize = 32;
    out->maxThreadsPerBlock = 1024;
    out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    out->maxGridSize[0] = 0x7fffffff;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->major = chip().major;
    out->multiProcessorCount = chip().n_multiprocessor;
    out->memoryBusWidth = 6144;
    out->l2CacheSize = chip().l2_mib << 20;
    out->maxThreadsPerMultiProcessor = 2048;
    out->maxBlocksPerMultiProcessor = 32;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess)
        return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = p.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)p.sharedMemPerBlock;
        break;
    case cudaDevAttrWarpSize:
        *value = p.warpSize;
        break;
    case cudaDevAttrClockRate:
        *value = 1980000;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = p.multiProcessorCount;
        break;
    case cudaDevAttrMemoryClockRate:
        *value = 3201000;
        break;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = p.memoryBusWidth;
        break;
    case cudaDevAttrL2CacheSize:
        *value = p.l2CacheSize;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = p.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = p.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)p.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)p.sharedMemPerBlockOptin;
        break;
    default:
        die("cudaDeviceGetAttribute: attribute %d is not simulated", (int)attribute);
    }
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute, int value) {
    if (!function || value < 0 || (size_t)value > chip().shared_limit)
        die("cudaFuncSetAttribute: %d bytes of shared memory, a block has %zu", value,
            chip().shared_limit);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    SIM_LOCK;
    *total = limit_bytes;
    *free = limit_bytes - std::min(limit_bytes, in_use_bytes);
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t bytes) {
    return allocate("cudaMalloc", p, bytes, space::device);
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    return allocate("cudaMallocHost", p, bytes, space::pinned);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned int) {
    return allocate("cudaHostAlloc", p, bytes, space::pinned);
}
cudaError_t cudaFree(void *p) {
    return release("cudaFree", p, space::device);
}
cudaError_t cudaFreeHost(void *p) {
    return release("cudaFreeHost", p, space::pinned);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    SIM_LOCK;
    if (bytes == 0)
        return cudaSuccess;
    check_copy("cudaMemcpyAsync", to, from, bytes, kind);
    return enqueue(stream, "cudaMemcpyAsync", [=] {
        check_copy("cudaMemcpyAsync (as it runs)", to, from, bytes, kind);
        memcpy(to, from, bytes);
    });
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    SIM_LOCK;
    if (capture_refuses("cudaMemcpy"))
        return set_error(cudaErrorStreamCaptureImplicit);
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    SIM_LOCK;
    if (bytes == 0)
        return cudaSuccess;
    check_range("cudaMemsetAsync", "destination", to, bytes, space::device);
    return enqueue(stream, "cudaMemsetAsync", [=] {
        check_range("cudaMemsetAsync (as it runs)", "destination", to, bytes, space::device);
        memset(to, value, bytes);
    });
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, nullptr);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *p) {
    SIM_LOCK;
    region *r = region_find(p);
    *out = {};
    out->type = !r                          ? cudaMemoryTypeUnregistered
                : r->where == space::device ? cudaMemoryTypeDevice
                                            : cudaMemoryTypeHost;
    return cudaSuccess;
}

} /* extern "C" */

namespace cuda_sim {

void check_kernel_pointer(const char *kernel, int argument, const void *p) {
    if (!p)
        return;
    region *r = region_find(p);
    if (!r || r->where == space::shared)
        die("kernel %s: argument %d, %p, is no live device memory (%s)", kernel, argument, p,
            region_describe(p).c_str());
}

/* "(k<8, true>)", as CUDA_LAUNCH had to be given it, without the parentheses. */
static const char *kernel_name(const char *as_written) {
    static std::set<std::string> names;
    if (*as_written != '(')
        return as_written;
    return names.insert(std::string(as_written + 1, strlen(as_written) - 2)).first->c_str();
}

void launch(const char *as_written, dim3 grid, dim3 block, int64_t shared_bytes,
            cudaStream_t stream, std::function<void()> body, const char *file, int line) {
    SIM_LOCK;
    const char *kernel = kernel_name(as_written);
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    if (!threads || threads > 1024 || block.z > 64)
        die("kernel %s (%s:%d): block (%u, %u, %u): a block has 1 to 1024 threads", kernel, file,
            line, block.x, block.y, block.z);
    if (!blocks || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        die("kernel %s (%s:%d): grid (%u, %u, %u): x is at most 2^31 - 1, y and z 65535, none 0",
            kernel, file, line, grid.x, grid.y, grid.z);
    if (shared_bytes < 0 || (uint64_t)shared_bytes > chip().shared_limit)
        die("kernel %s (%s:%d): %lld bytes of shared memory, a block has %zu", kernel, file, line,
            (long long)shared_bytes, chip().shared_limit);
    (void)enqueue(stream, kernel,
                  [=] { run_grid(kernel, grid, block, (size_t)shared_bytes, body); });
}

} // namespace cuda_sim
