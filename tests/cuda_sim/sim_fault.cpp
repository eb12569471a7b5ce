/* How the simulator stops: one line that names the kernel, block and thread, then status 134. */
#include "sim_internal.h"

#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace cuda_sim {

std::recursive_mutex lock;

void die(const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "cuda-sim: %s\n", text);
    fflush(stderr);
    _exit(134);
}

namespace {
constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE};
struct sigaction before[3]; /* whose signals these were */

void on_fault(int signal, siginfo_t *info, void *context) {
    const void *at = info->si_addr;
    if (signal == SIGFPE && running)
        die("%s: division by zero", where_now().c_str());
    if (in_fiber_guard(at))
        die("%s: its stack overflowed (local arrays?)", where_now().c_str());
    bool ours =
        in_space(space::device, at) || in_space(space::pinned, at) || in_space(space::shared, at);
    if (!running && !ours) { /* not our business: the instruction faults again, without us */
        for (int i = 0; i < 3; i++)
            sigaction(SIGNALS[i], &before[i], nullptr);
        return;
    }
    bool write = static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_ERR] & 2;
    die("%s: bad %s at %p: %s", where_now().c_str(), write ? "write" : "read", at,
        region_describe(at).c_str());
}
} // namespace

/* Again before every piece of work: a test's framework may have put its own in between. */
void fault_handler_install() {
    static thread_local void *has_stack;
    if (!has_stack) {
        constexpr size_t size = 128 * 1024;
        stack_t stack = {};
        stack.ss_sp = malloc(size); /* the thread's for good */
        stack.ss_size = size;
        if (!stack.ss_sp || sigaltstack(&stack, nullptr))
            die("no stack for signals");
        has_stack = stack.ss_sp;
    }
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < 3; i++) {
        struct sigaction old;
        sigaction(SIGNALS[i], &action, &old);
        if (!(old.sa_flags & SA_SIGINFO) || old.sa_sigaction != on_fault)
            before[i] = old;
    }
}

namespace {
uint64_t random_state = [] {
    const char *seed = getenv("REGROUP_SIM_SEED");
    return seed ? strtoull(seed, nullptr, 0) : 1;
}();
}
uint64_t random_bits() { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

} // namespace cuda_sim

extern "C" void cuda_sim_seed(uint64_t seed) {
    SIM_LOCK;
    cuda_sim::random_state = seed * 0xd1342543de82ef95u + 1;
}
