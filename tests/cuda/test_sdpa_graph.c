/* cuDNN's own support checks on the graphs that sdpa_cudnn.c runs, without a GPU: the device is
 * described to cuDNN in JSON, and the toolkit's stub stands in for the driver where there is none.
 * That stub is where this ends: loading the kernels that cuDNN chose needs a driver. */
#include "kernels/cuda/sdpa_cudnn_graph.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

static const struct cudnn_api *api;

/* Every field that cuDNN up to 9.28 asks for; what differs between the GPUs as arguments. */
#define DEVICE(version, memory, sms, shared, sm_khz, memory_khz, bus, l2, name)                    \
    "{\"deviceVer\":" #version ",\"driverVer\":13000,\"cudaDeviceId\":0,\"pciDeviceId\":0,"        \
    "\"totalGlobalMem\":" #memory ",\"multiProcessorCount\":" #sms ",\"warpSize\":32,"             \
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"                    \
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"maxCtasPerSM\":32,"                    \
    "\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,"        \
    "\"maxSharedMemoryPerBlockOptin\":" #shared ",\"oversizedSharedMemoryPerBlock\":" #shared      \
    ",\"reservedSharedMemoryPerBlock\":1024,\"isTccDriver\":0,\"supportCoopLaunch\":1,"            \
    "\"smClockRateKHz\":" #sm_khz ",\"memClockRateKHz\":" #memory_khz ",\"memoryBusWidth\":" #bus  \
    ",\"l2CacheSize\":" #l2 ",\"deviceName\":\"" name "\"}"
static const char h200[] =
    DEVICE(900, 150754820096, 132, 232448, 1980000, 3201000, 6144, 62914560, "NVIDIA H200");
static const char a100[] =
    DEVICE(800, 85899345920, 108, 166912, 1410000, 1593000, 5120, 41943040, "NVIDIA A100");

/* Heads as the model lays them: q, k, v side by side in a row, o by itself; gradients the same. */
static struct sdpa_shape packed_shape(int64_t n_head, int64_t n_kv_head, int64_t head_dim,
                                      int64_t n_seq, bool backward) {
    struct sdpa_shape s = {.n_batch = 2,
                           .n_head = n_head,
                           .n_kv_head = n_kv_head,
                           .n_seq = n_seq,
                           .head_dim = head_dim,
                           .backward = backward,
                           .keep_lse = 1};
    for (int id = 0; id < SDPA_TENSOR_COUNT; id++) {
        bool alone = id == SDPA_O || id == SDPA_D_O;
        int64_t row = (alone ? n_head : n_head + 2 * n_kv_head) * head_dim;
        s.stride[id][0] = n_seq * row;
        s.stride[id][1] = row;
        s.stride[id][2] = head_dim;
    }
    return s;
}

static cudnnBackendDescriptor_t device_open(const char *json) {
    cudnnBackendDescriptor_t d;
    int64_t n = (int64_t)strlen(json) + 1;
    OK(cudnn_status(api, api->descriptor_create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d),
                    "device"));
    OK(cudnn_status(
        api, api->set(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, json),
        "device"));
    OK(cudnn_status(api, api->finalize(d), "device"));
    return d;
}

/* Whether cuDNN has an engine for it on the device; the reason, when not, in status_message(). */
static bool accepted(const char *json, const struct sdpa_shape *shape) {
    static struct sdpa_graph graph;
    struct sdpa_configs configs;
    if (sdpa_graph_open(api, NULL, shape, &graph) != STATUS_OK)
        return false;
    cudnnBackendDescriptor_t device = device_open(json);
    enum status status = sdpa_graph_configs(&graph, device, &configs);
    sdpa_graph_close(&graph);
    api->descriptor_destroy(device);
    return status == STATUS_OK;
}

static void expect(const char *json, int64_t n_head, int64_t n_kv_head, int64_t head_dim,
                   int64_t n_seq, bool backward, bool yes) {
    struct sdpa_shape shape = packed_shape(n_head, n_kv_head, head_dim, n_seq, backward);
    if (accepted(json, &shape) != yes)
        fail_msg("%s, heads %d/%d, head_dim %d, %d positions, %s: %s",
                 json == h200 ? "H200" : "A100", (int)n_head, (int)n_kv_head, (int)head_dim,
                 (int)n_seq, backward ? "backward" : "forward",
                 yes ? status_message() : "accepted");
}

static void test_shapes_are_accepted(void **state) {
    (void)state;
    const int64_t kv_heads[] = {16, 4, 1}, head_dims[] = {64, 128, 256}, lengths[] = {1000, 1024};
    for (int backward = 0; backward < 2; backward++)
        for (int k = 0; k < 3; k++)
            for (int d = 0; d < 3; d++)
                for (int t = 0; t < 2; t++)
                    expect(h200, 16, kv_heads[k], head_dims[d], lengths[t], backward, true);
}

static void test_forward_without_lse_is_accepted(void **state) {
    (void)state;
    struct sdpa_shape shape = packed_shape(16, 4, 128, 1024, false);
    shape.keep_lse = 0;
    if (!accepted(h200, &shape))
        fail_msg("%s", status_message());
}

/* What the checks refuse: without these the ones above would prove nothing. */
static void test_wrong_graphs_are_refused(void **state) {
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        expect(h200, 16, 5, 128, 1024, backward, false); /* heads do not group */
        expect(h200, 4, 16, 128, 1024, backward, false); /* more KV heads than heads */
        expect(h200, 16, 4, 100, 1024, backward, false); /* no multiple of 8 */
    }
    expect(h200, 16, 4, 264, 1024, true, false); /* too wide */
}

/* Ampere's backward ends at head_dim 128: a limit of cuDNN's, not of the graph. */
static void test_ampere(void **state) {
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        expect(a100, 16, 4, 64, 1024, backward, true);
        expect(a100, 16, 4, 128, 1024, backward, true);
        expect(a100, 16, 4, 256, 1024, backward, !backward);
    }
}

int main(void) {
    if (!dlopen("libcuda.so.1", RTLD_NOW) && !dlopen(STUB_DRIVER, RTLD_NOW)) {
        printf("skipped: neither a CUDA driver nor the toolkit's stub: %s\n", dlerror());
        return 77;
    }
    if (cudnn_api_get(&api) != STATUS_OK) {
        printf("skipped: %s\n", status_message());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes_are_accepted),
        cmocka_unit_test(test_forward_without_lse_is_accepted),
        cmocka_unit_test(test_wrong_graphs_are_refused),
        cmocka_unit_test(test_ampere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
