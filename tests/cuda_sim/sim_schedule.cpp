/* Kernels on the CPU: one block after the other in drawn order, every CUDA thread on a fiber, the
 * next thread drawn whenever one waits. A thread that never waits costs no switch: the fiber that
 * finished it runs the next one. Waiting for what cannot come ends the program, naming who waits.
 */
#include "sim_internal.h"

#include <boost/context/detail/fcontext.hpp>
#include <numeric>
#include <pthread.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#endif
#ifdef SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cuda_sim {

uint64_t current_launch;

namespace {
using namespace boost::context::detail;

constexpr size_t STACK = 256 * 1024, GUARD = 4096;
constexpr int MOST_THREADS = 1024, LANES = 32;

struct fiber {
    fcontext_t context;
    char *stack; /* lowest usable address */
    void *fake_stack;
};
struct copy {
    char *to;
    const char *from; /* NULL: zeros */
    size_t bytes;
};
struct warp;
struct thread {
    fiber *on; /* NULL: not started */
    warp *in;
    int lane;
    uint3 index;
    site waits; /* what NULL: does not wait */
    int barrier_count;
    bool ended;
    std::vector<copy> copies;   /* cp.async on their way, oldest first */
    std::vector<size_t> groups; /* copies in each committed group, oldest first */
    size_t uncommitted;
};
struct gathering { /* lanes of a warp on their way to one collective */
    unsigned mask, arrived;
    site at;
    void *lanes[LANES];
};
struct warp {
    int n, n_ready;
    thread *ready[LANES];
    gathering pending[LANES];
};

thread threads[MOST_THREADS];
warp warps[MOST_THREADS / LANES];
thread *self;
warp *able[MOST_THREADS / LANES],
    *current; /* those with a thread that is ready; the one that ran */
int n_able, n_ended, n_thread;
thread *at_barrier[MOST_THREADS];
int n_at_barrier, n_true;
site barrier_at;
const std::function<void()> *body;
fiber host; /* the caller of run_grid */
#ifdef SIM_ASAN
void *host_bottom; /* its stack */
size_t host_size;
#endif
auto &idle = *new std::vector<fiber *>, &all_fibers = *new std::vector<fiber *>;
std::vector<std::pair<shared_slot *, region *>> in_use;
auto &spare = /* by bytes and alignment */
    *new std::map<std::pair<size_t, size_t>, std::vector<region *>>;
region *dynamic;

void arrive(transfer_t t) {
    *static_cast<fcontext_t *>(t.data) = t.fctx;
}
void jump(fiber *from, fiber *to, bool to_host) {
#ifdef SIM_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to_host ? host_bottom : to->stack,
                                   to_host ? host_size : STACK);
#endif
    (void)to_host;
    arrive(jump_fcontext(to->context, &from->context));
#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

[[noreturn]] void stuck();

void make_ready(thread *t) {
    warp *w = t->in;
    t->waits.what = nullptr;
    if (w->n_ready == 0)
        able[n_able++] = w;
    w->ready[w->n_ready++] = t;
}

/* Any thread that is ready; of the same warp as before mostly, whose stacks are in the cache. */
thread *draw() {
    if (!n_able)
        return nullptr;
    uint64_t bits = random_bits();
    if (!current->n_ready || bits % 32 == 0)
        current = able[random_below((uint32_t)n_able)];
    uint32_t i = (uint32_t)((bits >> 32) * (uint32_t)current->n_ready >> 32);
    thread *t = current->ready[i];
    current->ready[i] = current->ready[--current->n_ready];
    if (!current->n_ready) {
        n_able--;
        *std::find(able, able + n_able, current) = able[n_able];
    }
    return t;
}
void become(thread *t) {
    self = t;
    threadIdx = t->index;
}

void fiber_main(transfer_t t);
fiber *fiber_take() {
    if (!idle.empty()) {
        fiber *f = idle.back();
        idle.pop_back();
        return f;
    }
    void *p = mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED || mprotect(p, GUARD, PROT_NONE))
        die("no memory for a thread's stack");
    fiber *f = new fiber{nullptr, (char *)p + GUARD, nullptr};
    /* Tops at different places, or a thousand stacks would share a few sets of the cache. */
    size_t colour = all_fibers.size() % 61 * 192;
    f->context = make_fcontext(f->stack + STACK - colour, STACK - colour, fiber_main);
    all_fibers.push_back(f);
    return f;
}

void switch_to(fiber *from, thread *t) {
    become(t);
    if (!t->on)
        t->on = fiber_take();
    jump(from, t->on, false);
}

/* `self` was put where it waits: another one runs until it is drawn again. */
void suspend() {
    thread *me = self, *next = draw();
    if (!next)
        stuck();
    if (next == me)
        return;
    switch_to(me->on, next);
    /* whoever came back here has made `self` me */
}

void fiber_main(transfer_t t) {
#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    arrive(t);
    for (;;) {
        (*body)();
        fiber *mine = self->on;
        self->ended = true;
        self->on = nullptr;
        n_ended++;
        thread *next = draw();
        if (next && !next->on) {
            next->on = mine;
            become(next);
            continue;
        }
        idle.push_back(mine);
        if (next) {
            switch_to(mine, next);
        } else {
            if (n_ended < n_thread)
                stuck();
            self = nullptr;
            jump(mine, &host, true);
        }
    }
}

std::string name_of(const thread *t) {
    char text[64];
    snprintf(text, sizeof text, "thread (%u, %u, %u)", t->index.x, t->index.y, t->index.z);
    return text;
}

/* Nobody can run: say who waits for what, a line for each place, and who is missing. */
void stuck() {
    std::string text;
    std::vector<const thread *> seen;
    for (int i = 0; i < n_thread; i++) {
        const thread *t = &threads[i];
        bool known = !t->waits.what;
        for (const thread *s : seen)
            known |= s->waits.line == t->waits.line && !strcmp(s->waits.what, t->waits.what);
        if (known)
            continue;
        seen.push_back(t);
        int n = 0;
        for (int j = 0; j < n_thread; j++)
            n += threads[j].waits.what && threads[j].waits.line == t->waits.line &&
                 !strcmp(threads[j].waits.what, t->waits.what);
        char line[512];
        snprintf(line, sizeof line, "; %d wait at %s (%s:%d), first %s", n, t->waits.what,
                 t->waits.file, t->waits.line, name_of(t).c_str());
        text += line;
    }
    int first = 0;
    while (first < n_thread && !threads[first].ended)
        first++;
    self = nullptr;
    die("kernel %s, block (%u, %u, %u): divergent: %d of %d threads have ended%s%s%s", running,
        blockIdx.x, blockIdx.y, blockIdx.z, n_ended, n_thread, n_ended ? ", first " : "",
        n_ended ? name_of(&threads[first]).c_str() : "", text.c_str());
}

bool same_site(const site &a, const site &b) {
    return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file)) &&
           (a.what == b.what || !strcmp(a.what, b.what));
}
[[noreturn]] void diverged(const site &mine, const site &other) {
    die("%s: divergent: comes to %s (%s:%d) while others wait at %s (%s:%d)", where_now().c_str(),
        mine.what, mine.file, mine.line, other.what, other.file, other.line);
}

region *shared_take(size_t bytes, size_t align) {
    auto &pool = spare[{bytes, align}];
    if (pool.empty())
        return region_make(space::shared, bytes, align);
    region *r = pool.back();
    pool.pop_back();
    return r;
}

void run_block() {
    n_able = n_ended = n_at_barrier = n_true = 0;
    for (auto &use : in_use)
        region_poison(use.second);
    if (dynamic)
        region_poison(dynamic);
    for (int i = 0; i <= (n_thread - 1) / LANES; i++)
        warps[i].n = warps[i].n_ready = 0;
    current = warps;
    uint3 at = {0, 0, 0};
    for (int i = 0; i < n_thread; i++) {
        thread *t = &threads[i];
        t->in = &warps[i / LANES];
        t->lane = i % LANES;
        make_ready(t);
        t->on = nullptr;
        t->index = at;
        t->ended = false;
        t->copies.clear();
        t->groups.clear();
        t->uncommitted = 0;
        if (++at.x == blockDim.x) {
            at.x = 0;
            if (++at.y == blockDim.y) {
                at.y = 0;
                at.z++;
            }
        }
    }
    thread *first = draw();
    become(first);
    first->on = fiber_take();
    jump(&host, first->on, false);
}
} // namespace

bool in_fiber_guard(const void *p) {
    for (const fiber *f : all_fibers)
        if ((const char *)p >= f->stack - GUARD && (const char *)p < f->stack)
            return true;
    return false;
}

std::string where_now() {
    char text[512];
    if (!running)
        return "host code";
    if (!self)
        return running;
    snprintf(text, sizeof text, "kernel %s, block (%u, %u, %u), %s", running, blockIdx.x,
             blockIdx.y, blockIdx.z, name_of(self).c_str());
    return text;
}

void run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared_bytes,
              const std::function<void()> &thread_body) {
#ifdef SIM_ASAN
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &host_bottom, &host_size);
    pthread_attr_destroy(&attributes);
#endif
    current_launch++;
    gridDim = grid;
    blockDim = block;
    body = &thread_body;
    n_thread = (int)(block.x * block.y * block.z);
    dynamic = shared_bytes ? shared_take(shared_bytes, 128) : nullptr;
    if (dynamic)
        dynamic->name = "dynamic";
    {
        device_access access;
        uint64_t n_block = (uint64_t)grid.x * grid.y * grid.z;
        std::vector<uint32_t> order(n_block);
        std::iota(order.begin(), order.end(), 0u);
        for (uint64_t left = n_block; left > 0; left--) {
            uint32_t k = random_below((uint32_t)left), b = order[k];
            order[k] = order[left - 1];
            blockIdx = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
            run_block();
        }
    }
    check_canaries(kernel);
    for (auto &use : in_use)
        spare[{use.second->bytes, 16}].push_back(use.second);
    in_use.clear();
    if (dynamic)
        spare[{dynamic->bytes, 128}].push_back(dynamic);
    dynamic = nullptr;
}

void shared_make(shared_slot *slot) {
    size_t total = slot->bytes;
    for (auto &use : in_use)
        total += use.second->bytes;
    if (total > STATIC_SHARED_LIMIT)
        die("%s: static shared arrays take %zu bytes, a block has %zu", where_now().c_str(), total,
            STATIC_SHARED_LIMIT);
    if (total + (dynamic ? dynamic->bytes : 0) > chip().shared_limit)
        die("%s: shared memory takes %zu bytes, a block has %zu", where_now().c_str(),
            total + dynamic->bytes, chip().shared_limit);
    region *r = shared_take(slot->bytes, 16);
    region_poison(r);
    r->name = slot->name;
    slot->data = r->base;
    slot->launch = current_launch;
    in_use.emplace_back(slot, r);
}

void *shared_dynamic() {
    if (!dynamic)
        die("%s: uses dynamic shared memory, launched with none", where_now().c_str());
    return dynamic->base;
}

int lane() {
    return self->lane;
}

void give_way() {
    if (!n_able)
        return;
    make_ready(self);
    suspend();
}

int barrier(const site &at, bool predicate) {
    if (!self)
        die("%s outside a kernel", at.what);
    spoil_copies();
    if (!n_at_barrier)
        barrier_at = at;
    else if (!same_site(at, barrier_at))
        diverged(at, barrier_at);
    n_true += predicate;
    if (n_at_barrier + 1 < n_thread) {
        self->waits = at;
        at_barrier[n_at_barrier++] = self;
        suspend();
        return self->barrier_count;
    }
    int count = n_true, n = n_at_barrier;
    n_at_barrier = n_true = 0;
    for (int i = 0; i < n; i++) {
        at_barrier[i]->barrier_count = count;
        make_ready(at_barrier[i]);
    }
    give_way();
    return count;
}

void collective(unsigned mask, const site &at, void *argument,
                void (*compute)(void **lanes, unsigned mask)) {
    if (!self)
        die("%s outside a kernel", at.what);
    int me = self->lane;
    warp &w = *self->in;
    if (!(mask >> me & 1u))
        die("%s: %s (%s:%d) with mask %08x, which lacks this lane (%d)", where_now().c_str(),
            at.what, at.file, at.line, mask, me);
    gathering *g = nullptr;
    for (int i = 0; i < w.n && !g; i++)
        if (w.pending[i].mask == mask)
            g = &w.pending[i];
    if (g && !same_site(g->at, at))
        diverged(at, g->at);
    if (!g) { /* others, with another mask, may still be on their way somewhere else */
        g = &w.pending[w.n++];
        g->mask = mask;
        g->arrived = 0;
        g->at = at;
        if (~mask)
            memset(g->lanes, 0, sizeof g->lanes);
    }
    g->arrived |= 1u << me;
    g->lanes[me] = argument;
    if (g->arrived != mask) {
        self->waits = at;
        suspend();
        return;
    }
    compute(g->lanes, mask);
    w.n--;
    if (g != &w.pending[w.n])
        *g = w.pending[w.n];
    thread *first = self - me;
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1u && i != me)
            make_ready(first + i);
}

/* cp.async: the destination is undefined from here to the wait, so it is NaN until then, also
 * where someone has written to it meanwhile. */
void spoil_copies() {
    for (const copy &c : self->copies)
        memset(c.to, 0xff, c.bytes);
}
void cp_async(void *shared, const void *global, size_t bytes, bool valid) {
    if ((uintptr_t)shared % bytes || (valid && (uintptr_t)global % bytes))
        die("%s: cp.async from %p to %p: not %zu-byte aligned", where_now().c_str(), global, shared,
            bytes);
    if (!in_space(space::shared, shared))
        die("%s: cp.async to %p, which is not shared memory", where_now().c_str(), shared);
    if (valid)
        (void)*static_cast<const volatile char *>(global); /* a bad address shows here */
    memset(shared, 0xff, bytes);
    self->copies.push_back(
        {static_cast<char *>(shared), valid ? static_cast<const char *>(global) : nullptr, bytes});
    self->uncommitted++;
}
void cp_async_commit_group() {
    self->groups.push_back(self->uncommitted);
    self->uncommitted = 0;
}
void cp_async_wait_group(int left) {
    size_t n_done = 0, n_group = self->groups.size() - std::min(self->groups.size(), (size_t)left);
    for (size_t i = 0; i < n_group; i++)
        for (size_t end = n_done + self->groups[i]; n_done < end; n_done++) {
            const copy &c = self->copies[n_done];
            if (c.from)
                memcpy(c.to, c.from, c.bytes);
            else
                memset(c.to, 0, c.bytes);
        }
    self->copies.erase(self->copies.begin(), self->copies.begin() + (ptrdiff_t)n_done);
    self->groups.erase(self->groups.begin(), self->groups.begin() + (ptrdiff_t)n_group);
    give_way();
}

} // namespace cuda_sim

void __trap() {
    cuda_sim::die("%s: __trap", cuda_sim::where_now().c_str());
}
