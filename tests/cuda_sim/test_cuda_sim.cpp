/* The simulator itself: right answers where the code is right, and every kind of planted fault
 * found, as a changed result or as the end of the process with one line that says where. */
#include "cublasLt.h"
#include "cuda_sim.h"
#include "sim_test_kernels.cuh"

#include <cmath>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
}

static void ok(cudaError_t error) {
    assert_string_equal(cudaGetErrorString(error), "no error");
}

/* Device memory of n elements, with the host's values when given. */
template <class T> static T *device(size_t n, const T *host = nullptr) {
    void *p;
    ok(cudaMalloc(&p, n * sizeof(T)));
    if (host)
        ok(cudaMemcpy(p, host, n * sizeof(T), cudaMemcpyHostToDevice));
    return (T *)p;
}
template <class T> static std::vector<T> fetched(const T *p, size_t n) {
    std::vector<T> v(n);
    ok(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}
static std::vector<float> ramp(size_t n) {
    std::vector<float> v(n);
    for (size_t i = 0; i < n; i++)
        v[i] = (float)(i + 1);
    return v;
}

/* In a child process: ends with status 134 and a line that has all of these in it. */
static void stops(std::function<void()> f, std::vector<std::string> says) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        f();
        (void)cudaDeviceSynchronize();
        _exit(0);
    }
    close(ends[1]);
    char text[4096];
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = 0;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 134)
        fail_msg("went on, or ended otherwise (%x): %s", status, text);
    for (const std::string &s : says)
        if (!strstr(text, s.c_str()))
            fail_msg("'%s' is not in: %s", s.c_str(), text);
    assert_ptr_equal(strchr(text, '\n'), text + n - 1); /* one line */
}

/* Runs it under several orders: how many of them gave something else than `want`. */
static int wrong_orders(std::function<std::vector<float>()> run, const std::vector<float> &want) {
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        cuda_sim_seed(seed);
        wrong += run() != want; /* a NaN is unequal too */
    }
    return wrong;
}

static void threads_and_blocks_have_their_numbers(void **) {
    dim3 grid(3, 2, 2), block(4, 3, 5);
    const int n = 12 * 60;
    int *where = device<int>(n);
    unsigned *order = device<unsigned>(n), *ticket = device<unsigned>(1);
    std::vector<std::vector<unsigned>> orders;
    for (uint64_t seed : {1, 2, 1}) {
        cuda_sim_seed(seed);
        ok(cudaMemset(ticket, 0, sizeof *ticket));
        CUDA_LAUNCH(numbers, grid, block, 0, nullptr, where, order, ticket);
        std::vector<int> at = fetched(where, n);
        for (int i = 0; i < n; i++)
            assert_int_equal(at[(size_t)i], i);
        orders.push_back(fetched(order, n));
        std::set<unsigned> all(orders.back().begin(), orders.back().end());
        assert_int_equal(all.size(), n);
    }
    assert_true(orders[0] != orders[1]);
    assert_true(orders[0] == orders[2]);
}

static void shuffles_and_votes(void **) {
    const int n = 11;
    int *out = device<int>(32 * n);
    CUDA_LAUNCH(collectives, 1, 32, 0, nullptr, out);
    std::vector<int> got = fetched(out, 32 * n);
    unsigned thirds = 0;
    for (int l = 0; l < 32; l += 3)
        thirds |= 1u << l;
    for (int l = 0; l < 32; l++) {
        const int want[n] = {105,
                             100 + l / 8 * 8 + 1,
                             100 + (l ^ 6),
                             100 + (l + 3 < 32 ? l + 3 : l),
                             100 + (l % 16 + 3 < 16 ? l + 3 : l),
                             100 + (l % 8 >= 2 ? l - 2 : l),
                             (int)thirds,
                             1,
                             0,
                             100 + (l ^ 15),
                             31 * 16};
        for (int k = 0; k < n; k++)
            assert_int_equal(got[(size_t)(32 * k + l)], want[k]);
    }
}

static void fragments_are_the_manuals(void **) {
    std::vector<__nv_bfloat16> a(256), b(128);
    for (int i = 0; i < 256; i++)
        a[(size_t)i] = (float)(i * 37 % 101 - 50) / 8;
    for (int i = 0; i < 128; i++)
        b[(size_t)i] = (float)(i * 53 % 89 - 44) / 16;
    float *d = device<float>(128);
    int *differ = device<int>(32);
    CUDA_LAUNCH(fragments, 1, 32, 0, nullptr, device(256, a.data()), device(128, b.data()), d,
                differ);
    std::vector<float> got = fetched(d, 128);
    for (int x : fetched(differ, 32))
        assert_int_equal(x, 0);
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 8; j++) {
            float want = 0; /* exact: few bits */
            for (size_t k = 0; k < 16; k++)
                want += (float)a[i * 16 + k] * (float)b[k * 8 + j];
            assert_true(got[i * 8 + j] == want);
        }
}

template <class Kernel>
static std::vector<float> run_block(Kernel *kernel, int n_thread, size_t shared, size_t n) {
    std::vector<float> values = ramp(n);
    float *in = device(n, values.data()), *out = device<float>(n);
    CUDA_LAUNCH(kernel, 1, n_thread, shared, nullptr, in, out);
    ok(cudaDeviceSynchronize());
    std::vector<float> got = fetched(out, n);
    ok(cudaFree(in));
    ok(cudaFree(out));
    return got;
}

static void a_missing_barrier_changes_the_result(void **) {
    std::vector<float> once = ramp(256), twice_on = ramp(256), in_warp = ramp(32);
    for (size_t i = 0; i < 256; i++) {
        once[i] = (float)((i + 1) % 256 + 1);
        twice_on[i] = (float)((i + 2) % 256 + 1);
    }
    for (size_t i = 0; i < 32; i++)
        in_warp[i] = (float)((i + 1) % 32 + 1);
    assert_int_equal(wrong_orders([] { return run_block(rotate<SOUND>, 256, 0, 256); }, once), 0);
    assert_int_equal(wrong_orders([] { return run_block(rotate<FAULTY>, 256, 0, 256); }, once), 10);
    assert_int_equal(
        wrong_orders([] { return run_block(rotate_twice<SOUND>, 256, 0, 256); }, twice_on), 0);
    assert_int_equal(
        wrong_orders([] { return run_block(rotate_twice<FAULTY>, 256, 0, 256); }, twice_on), 10);
    assert_int_equal(wrong_orders([] { return run_block(rotate_warp<SOUND>, 32, 0, 32); }, in_warp),
                     0);
    std::vector<float> rows(32);
    for (size_t i = 0; i < 32; i++)
        rows[i] = (float)((i / 4 ^ 1) + 1);
    assert_int_equal(wrong_orders([] { return run_block(rows_of_others<SOUND>, 32, 0, 32); }, rows),
                     0);
    assert_int_equal(
        wrong_orders([] { return run_block(rows_of_others<FAULTY>, 32, 0, 32); }, rows), 10);
    assert_int_equal(
        wrong_orders([] { return run_block(rotate_warp<FAULTY>, 32, 0, 32); }, in_warp), 10);
}

static void copies_arrive_at_their_wait(void **) {
    const size_t n = 8 * 32;
    std::vector<float> want = ramp(n);
    for (size_t i = n / 2; i < n; i++)
        want[i] = (i - n / 2) / 4 % 2 ? 0 : want[i];
    auto sound = [] { return run_block(pipeline<SOUND>, 32, 8 * 32 * 4, 8 * 32); };
    auto faulty = [] { return run_block(pipeline<FAULTY>, 32, 8 * 32 * 4, 8 * 32); };
    assert_int_equal(wrong_orders(sound, want), 0);
    assert_int_equal(wrong_orders(faulty, want), 10);
    std::vector<float> got = faulty();
    for (size_t i = 0; i < n; i++)
        assert_true(i < n / 2 ? got[i] == want[i] : std::isnan(got[i]));

    std::vector<float> refilled(32);
    for (size_t i = 0; i < 32; i++)
        refilled[i] = (float)(128 - 4 * i) + 1;
    auto first_32 = [](std::vector<float> v) { return v.resize(32), v; };
    assert_int_equal(
        wrong_orders([=] { return first_32(run_block(refill<SOUND>, 32, 0, 128)); }, refilled), 0);
    assert_int_equal(
        wrong_orders([=] { return first_32(run_block(refill<FAULTY>, 32, 0, 128)); }, refilled),
        10);
    std::vector<float> reversed(32);
    for (size_t i = 0; i < 32; i++)
        reversed[i] = (float)(32 - i);
    assert_int_equal(wrong_orders([] { return run_block(reuse<SOUND>, 32, 0, 32); }, reversed), 0);
    assert_int_equal(wrong_orders([] { return run_block(reuse<FAULTY>, 32, 0, 32); }, reversed),
                     10);
}

static void memory_beyond_the_end_stops(void **) {
    float *in = device<float>(1000), *out = device<float>(1000);
    CUDA_LAUNCH(twice<SOUND>, 8, 128, 0, nullptr, in, out, 1000);
    ok(cudaDeviceSynchronize());
    stops([=] { CUDA_LAUNCH((twice<FAULTY>), 8, 128, 0, nullptr, in, out, 1000); },
          {"kernel twice<FAULTY>, block (7, 0, 0), thread (104, 0, 0)", "bad read",
           "of 4000 bytes: byte 4000"});
    stops([=] { CUDA_LAUNCH(write_at, 1, 1, 0, nullptr, out, 1000); },
          {"kernel write_at", "bad write", "byte 4000"});
    stops([=] { CUDA_LAUNCH(write_at, 1, 1, 0, nullptr, out, -1000); },
          {"kernel write_at", "bad write"});
    float *odd = device<float>(5); /* 12 bytes are left over up to the page's end */
    stops([=] { CUDA_LAUNCH(write_at, 1, 1, 0, nullptr, odd, 6); },
          {"write_at wrote past the end", "of 20 bytes"});
    stops([=] { CUDA_LAUNCH(write_at, 1, 1, 0, nullptr, odd, -1); },
          {"write_at wrote in front of", "of 20 bytes"});
    stops([=] { CUDA_LAUNCH(shared_beyond_static, 1, 32, 0, nullptr, out, 8); },
          {"kernel shared_beyond_static, block (0, 0, 0), thread (3, 0, 0)", "bad read",
           "shared array few", "of 32 bytes: byte 32"});
    stops([=] { CUDA_LAUNCH(shared_beyond_dynamic, 1, 32, 128, nullptr, out, 32); },
          {"kernel shared_beyond_dynamic", "thread (3, 0, 0)", "shared array dynamic"});
    stops([=] { (void)cudaMemsetAsync(out, 0, 4001, nullptr); }, {"cudaMemsetAsync", "beyond"});
    stops([=] { (void)fetched(out, 1001); }, {"cudaMemcpyAsync, device to host", "beyond"});
}

static void what_was_not_written_is_nan(void **) {
    float *out = device<float>(32);
    for (float x : fetched(out, 32))
        assert_true(std::isnan(x));
    ok(cudaMemset(out, 0, 128));
    CUDA_LAUNCH(uninitialised, 2, 32, 0, nullptr, out); /* nor by the block before */
    for (float x : fetched(out, 32))
        assert_true(std::isnan(x));
}

static void memory_after_its_end_stops(void **) {
    float *p = device<float>(8), *freed = device<float>(8);
    ok(cudaFree(freed));
    stops([=] { CUDA_LAUNCH(write_at, 1, 1, 0, nullptr, freed, 0); },
          {"kernel write_at", "argument 0", "already freed"});
    stops([=] { CUDA_LAUNCH(write_through, 1, 1, 0, nullptr, hidden_pointer{freed}); },
          {"kernel write_through, block (0, 0, 0), thread (0, 0, 0)", "already freed"});
    stops([=] { (void)cudaFree(freed); }, {"cudaFree", "freed already"});
    stops([=] { (void)cudaFree(p + 1); }, {"cudaFree", "was not allocated"});
    float host[8] = {};
    float *outside = host;
    stops([=] { CUDA_LAUNCH(write_at, 1, 1, 0, nullptr, outside, 0); },
          {"kernel write_at", "argument 0", "no live device memory"});
    stops([=] { (void)cudaMemcpy(p, freed, 32, cudaMemcpyDeviceToDevice); },
          {"source", "already freed"});
    stops([=] { (void)cudaMemcpy(p, outside, 32, cudaMemcpyDeviceToHost); },
          {"cudaMemcpyAsync, device to host", "destination"});
    int key = pkey_alloc(0, 0);
    if (key < 0) /* only with protection keys */
        return;
    pkey_free(key);
    stops([] { *device<float>(1) = 1; }, {"host code", "bad write", "device memory"});
}

static void divergence_stops(void **) {
    float *out = device<float>(64);
    stops([] { CUDA_LAUNCH(some_leave, 1, 64, 0, nullptr); },
          {"kernel some_leave, block (0, 0, 0)", "5 of 64 threads have ended",
           "59 wait at __syncthreads", "sim_test_kernels.cuh"});
    stops([] { CUDA_LAUNCH(two_barriers, 1, 64, 0, nullptr); },
          {"kernel two_barriers", "divergent: comes to __syncthreads"});
    stops([=] { CUDA_LAUNCH(lane_missing, 1, 32, 0, nullptr, out); },
          {"kernel lane_missing", "1 of 32 threads have ended, first thread (7, 0, 0)",
           "31 wait at __shfl_xor_sync"});
    stops([=] { CUDA_LAUNCH(two_collectives, 1, 32, 0, nullptr, out); },
          {"kernel two_collectives", "divergent"});
}

static void launches_have_limits(void **) {
    float *out = device<float>(64);
    stops([=] { CUDA_LAUNCH(uninitialised, 1, 1025, 0, nullptr, out); }, {"1025", "1024 threads"});
    stops([=] { CUDA_LAUNCH(uninitialised, 0, 32, 0, nullptr, out); }, {"grid (0, 1, 1)"});
    stops([=] { CUDA_LAUNCH(uninitialised, dim3(1, 65536), 32, 0, nullptr, out); }, {"65535"});
    stops([=] { CUDA_LAUNCH(uninitialised, 1, 32, 228 * 1024, nullptr, out); }, {"shared memory"});
    cudaStream_t gone;
    ok(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
    ok(cudaStreamDestroy(gone));
    stops([=] { CUDA_LAUNCH(uninitialised, 1, 32, 0, gone, out); }, {"no live stream"});
    cuda_sim_memory_limit(1 << 20);
    void *p;
    assert_int_equal(cudaMalloc(&p, 2 << 20), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    cuda_sim_memory_limit((size_t)4 << 30);
}

struct streams {
    cudaStream_t a, b;
    cudaEvent_t event;
    float *x, *y, *pinned;
};
static streams streams_open() {
    streams s;
    void *pinned;
    ok(cudaStreamCreateWithFlags(&s.a, cudaStreamNonBlocking));
    ok(cudaStreamCreateWithFlags(&s.b, cudaStreamNonBlocking));
    ok(cudaEventCreateWithFlags(&s.event, cudaEventDisableTiming));
    ok(cudaMallocHost(&pinned, 256 * sizeof(float)));
    s.pinned = (float *)pinned;
    s.x = device(256, ramp(256).data());
    s.y = device(256, ramp(256).data());
    return s;
}

/* The other stream doubles what the copy brings; FAULTY: without waiting for it. */
template <fault F> static std::vector<float> copy_then_double() {
    static streams s = streams_open();
    std::vector<float> got(256);
    for (size_t i = 0; i < 256; i++)
        s.pinned[i] = 10;
    ok(cudaMemset(s.x, 0, 1024));
    ok(cudaDeviceSynchronize());
    ok(cudaMemcpyAsync(s.x, s.pinned, 1024, cudaMemcpyHostToDevice, s.a));
    ok(cudaEventRecord(s.event, s.a));
    if (F == SOUND)
        ok(cudaStreamWaitEvent(s.b, s.event, 0));
    CUDA_LAUNCH(twice<SOUND>, 1, 256, 0, s.b, s.x, s.y, 256);
    ok(cudaMemcpyAsync(got.data(), s.y, 1024, cudaMemcpyDeviceToHost, s.b));
    ok(cudaStreamSynchronize(s.b));
    return got;
}

static void a_missing_event_wait_changes_the_result(void **) {
    std::vector<float> want(256, 20.f);
    assert_int_equal(wrong_orders(copy_then_double<SOUND>, want), 0);
    int wrong = wrong_orders(copy_then_double<FAULTY>, want);
    assert_true(wrong > 0);
}

static void work_is_done_late(void **) {
    streams s = streams_open();
    s.pinned[0] = 1;
    ok(cudaMemcpyAsync(s.x, s.pinned, 4, cudaMemcpyHostToDevice, s.a));
    s.pinned[0] = 2; /* too early: the copy has not run */
    ok(cudaStreamSynchronize(s.a));
    assert_true(fetched(s.x, 1)[0] == 2);
    ok(cudaMemcpyAsync(s.pinned, s.y, 4, cudaMemcpyDeviceToHost, s.a));
    assert_true(s.pinned[0] == 2);
    ok(cudaStreamSynchronize(s.a));
    assert_true(s.pinned[0] == 1);
}

static void graphs_replay_what_was_captured(void **) {
    streams s = streams_open();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphExecUpdateResultInfo update;
    float *z = device(256, ramp(256).data());
    auto record = [&](float *out, int n_launch) {
        ok(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
        CUDA_LAUNCH(twice<SOUND>, 1, 256, 0, s.a, s.x, s.y, 256);
        ok(cudaEventRecord(s.event, s.a)); /* the other stream takes part */
        ok(cudaStreamWaitEvent(s.b, s.event, 0));
        for (int i = 0; i < n_launch; i++)
            CUDA_LAUNCH(twice<SOUND>, 1, 256, 0, s.b, s.y, out, 256);
        ok(cudaEventRecord(s.event, s.b));
        ok(cudaStreamWaitEvent(s.a, s.event, 0));
        CUDA_LAUNCH(twice<SOUND>, 1, 256, 0, s.a, out, s.x, 256);
        ok(cudaStreamEndCapture(s.a, &graph));
    };
    record(s.y, 1);
    ok(cudaDeviceSynchronize());
    assert_true(fetched(s.x, 1)[0] == 1); /* captured, not run */
    ok(cudaGraphInstantiate(&exec, graph, 0));
    ok(cudaGraphDestroy(graph));
    for (int i = 0; i < 2; i++)
        ok(cudaGraphLaunch(exec, s.a));
    ok(cudaStreamSynchronize(s.a));
    assert_true(fetched(s.x, 1)[0] == 64);
    record(z, 1); /* the same but for an argument */
    ok(cudaGraphExecUpdate(exec, graph, &update));
    ok(cudaGraphDestroy(graph));
    ok(cudaGraphLaunch(exec, s.a));
    ok(cudaStreamSynchronize(s.a));
    assert_true(fetched(z, 1)[0] == 256 && fetched(s.x, 1)[0] == 512);
    record(z, 2);
    assert_int_equal(cudaGraphExecUpdate(exec, graph, &update), cudaErrorGraphExecUpdateFailure);
    (void)cudaGetLastError();
    ok(cudaGraphExecDestroy(exec));
    stops([=] { (void)cudaGraphLaunch(exec, nullptr); }, {"no live executable graph"});
}

static void captures_refuse_what_waits(void **) {
    streams s = streams_open();
    cudaGraph_t graph;
    void *p;
    std::function<cudaError_t()> refused[] = {
        [=] { return cudaStreamSynchronize(s.a); },
        [=] { return cudaDeviceSynchronize(); },
        [=, &p] { return cudaMalloc(&p, 4); },
        [=] { return cudaMemcpy(s.pinned, s.x, 4, cudaMemcpyDeviceToHost); },
        [=] { return cudaEventSynchronize(s.event); },
    };
    for (auto &call : refused) {
        ok(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
        assert_true(call() != cudaSuccess);
        assert_int_equal(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);
        assert_true(graph == nullptr);
    }
    ok(cudaEventRecord(s.event, s.b)); /* outside: a capture cannot wait for it */
    ok(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    assert_int_equal(cudaStreamWaitEvent(s.a, s.event, 0), cudaErrorStreamCaptureIsolation);
    assert_int_equal(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);
    ok(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    ok(cudaEventRecord(s.event, s.a));
    ok(cudaStreamWaitEvent(s.b, s.event, 0));
    CUDA_LAUNCH(twice<SOUND>, 1, 256, 0, s.b, s.x, s.y, 256); /* never joined again */
    assert_int_equal(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureUnjoined);
    (void)cudaGetLastError();
}

/* c [m, n] = a [m, k] b [k, n], column-major, packed but for b's columns, which are ld_b apart. */
struct product {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulHeuristicResult_t found;
    float *pa, *pb, *pc, *workspace;
};
static product product_open(uint64_t m, uint64_t n, uint64_t k, int64_t ld_b, size_t n_b) {
    product p;
    cublasLtMatmulPreference_t wish;
    uint64_t bytes = 1 << 20;
    uint32_t align = 16;
    int n_found;
    cublasLtCreate(&p.handle);
    cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&p.a, CUDA_R_32F, m, k, (int64_t)m);
    cublasLtMatrixLayoutCreate(&p.b, CUDA_R_32F, k, n, ld_b);
    cublasLtMatrixLayoutCreate(&p.c, CUDA_R_32F, m, n, (int64_t)m);
    cublasLtMatmulPreferenceCreate(&wish);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                         sizeof bytes);
    for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; i++)
        cublasLtMatmulPreferenceSetAttribute(wish, (cublasLtMatmulPreferenceAttributes_t)i, &align,
                                             sizeof align);
    cublasLtMatmulAlgoGetHeuristic(p.handle, p.desc, p.a, p.b, p.c, p.c, wish, 1, &p.found,
                                   &n_found);
    assert_int_equal(n_found, 1);
    p.pa = device(m * k, ramp(m * k).data());
    p.pb = device(n_b, ramp(n_b).data());
    p.pc = device<float>(m * n);
    p.workspace = device<float>(bytes / 4);
    return p;
}
static void product_run(const product &p, const float *a, size_t workspace) {
    float one = 1, zero = 0;
    cublasLtMatmul(p.handle, p.desc, &one, a, p.a, p.pb, p.b, &zero, p.pc, p.c, p.pc, p.c,
                   &p.found.algo, p.workspace, workspace, nullptr);
}

static void matrix_products_are_checked(void **) {
    product p = product_open(70, 6, 3, 5, 30);
    product_run(p, p.pa, p.found.workspaceSize);
    std::vector<float> got = fetched(p.pc, 70 * 6);
    for (size_t i = 0; i < 70; i++)
        for (size_t j = 0; j < 6; j++) {
            float want = 0; /* over what was NaN: beta is 0 */
            for (size_t k = 0; k < 3; k++)
                want += (float)(k * 70 + i + 1) * (float)(j * 5 + k + 1);
            assert_true(got[j * 70 + i] == want);
        }
    stops([] { product_open(4, 4, 4, 3, 16); }, {"cublasLtMatrixLayoutCreate", "leading"});
    stops(
        [] {
            product wide = product_open(4, 4, 4, 5, 16);
            product_run(wide, wide.pa, wide.found.workspaceSize);
        },
        {"cublasLtMatmul: b, 76 bytes, reach beyond", "of 64 bytes"});
    stops([=] { product_run(p, p.pa + 1, p.found.workspaceSize); },
          {"cublasLtMatmul", "a, 840 bytes, reach beyond"});
    stops([=] { product_run(p, ramp(210).data(), p.found.workspaceSize); },
          {"cublasLtMatmul: a", "no live device memory"});
    stops([=] { product_run(p, p.pa, 16); }, {"a workspace of 16 bytes"});
    stops(
        [=] {
            product other = product_open(70, 6, 3, 5, 30);
            other.found.algo = product_open(70, 6, 4, 5, 30).found.algo;
            product_run(other, other.pa, other.found.workspaceSize);
        },
        {"chosen for another product"});
    stops(
        [=] {
            product shifted = product_open(4, 4, 4, 4, 16);
            product_run(shifted, device<float>(17) + 1, shifted.found.workspaceSize);
        },
        {"cublasLtMatmul: a at", "aligned to 16 bytes"});
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_and_blocks_have_their_numbers),
        cmocka_unit_test(shuffles_and_votes),
        cmocka_unit_test(fragments_are_the_manuals),
        cmocka_unit_test(a_missing_barrier_changes_the_result),
        cmocka_unit_test(copies_arrive_at_their_wait),
        cmocka_unit_test(memory_beyond_the_end_stops),
        cmocka_unit_test(what_was_not_written_is_nan),
        cmocka_unit_test(memory_after_its_end_stops),
        cmocka_unit_test(divergence_stops),
        cmocka_unit_test(launches_have_limits),
        cmocka_unit_test(a_missing_event_wait_changes_the_result),
        cmocka_unit_test(work_is_done_late),
        cmocka_unit_test(graphs_replay_what_was_captured),
        cmocka_unit_test(captures_refuse_what_waits),
        cmocka_unit_test(matrix_products_are_checked),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
