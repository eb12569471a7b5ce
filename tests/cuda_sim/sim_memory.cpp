/* Guarded memory: every allocation between two inaccessible pages and flush with the second one,
 * filled with NaN, never handed out twice; canaries in what alignment leaves over. */
#include "sim_internal.h"

#include <array>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace cuda_sim {

namespace {
constexpr size_t PAGE = 4096, LEAD = 64; /* LEAD: canary in front */
constexpr int POISON = 0xff;
struct arena {
    size_t reserve;
    char *base, *next;
    std::map<const char *, region *> live, freed; /* by base; freed ones for messages */
};
/* By space. Never destroyed, like all that the simulator holds: memory may be freed at exit. */
auto &arenas = *new std::array<arena, 3>{{{(size_t)1 << 40, nullptr, nullptr, {}, {}},
                                          {(size_t)1 << 38, nullptr, nullptr, {}, {}},
                                          {(size_t)1 << 36, nullptr, nullptr, {}, {}}}};
int device_key = -1;

arena &arena_of(space where) {
    arena &a = arenas[(size_t)where];
    if (!a.base) {
        void *p =
            mmap(nullptr, a.reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
            die("cannot reserve address space");
        a.base = a.next = (char *)p;
        if (where == space::device)
            device_key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    }
    return a;
}
bool all_poison(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] != POISON)
            return false;
    return true;
}
size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}
char *pages_of(const region *r) {
    return (char *)((uintptr_t)r->base / PAGE * PAGE);
}
} // namespace

device_access::device_access() : before(device_key > 0 ? pkey_get(device_key) : 0) {
    if (device_key > 0)
        pkey_set(device_key, 0);
}
device_access::~device_access() {
    if (device_key > 0)
        pkey_set(device_key, (unsigned)before);
}

region *region_make(space where, size_t bytes, size_t align) {
    static uint64_t serial;
    arena &a = arena_of(where);
    size_t room = round_up(bytes ? bytes : 1, align), pages = round_up(room + LEAD, PAGE);
    if (a.next + pages + 2 * PAGE > a.base + a.reserve)
        die("simulated address space is used up");
    char *first = a.next + PAGE;
    a.next = first + pages;
    int rw = PROT_READ | PROT_WRITE;
    if (where == space::device && device_key > 0 ? pkey_mprotect(first, pages, rw, device_key)
                                                 : mprotect(first, pages, rw))
        die("cannot map %zu bytes", pages);
    region *r = new region{first + pages - room, bytes, room, where, true, ++serial, nullptr};
    a.live[r->base] = r;
    device_access access;
    memset(first, POISON, pages);
    return r;
}

void region_free(region *r) {
    arena &a = arena_of(r->where);
    r->live = false;
    a.live.erase(r->base);
    a.freed[r->base] = r;
    char *first = pages_of(r);
    size_t pages = (size_t)(r->base + r->room - first);
    /* Fresh inaccessible pages give the memory back and merge with their neighbours. */
    if (mmap(first, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED)
        die("cannot unmap");
}

void region_poison(region *r) {
    memset(r->base, POISON, r->room);
}

bool in_space(space where, const void *p) {
    const arena &a = arenas[(size_t)where];
    return a.base && (const char *)p >= a.base && (const char *)p < a.base + a.reserve;
}

static arena *arena_holding(const void *p) {
    for (arena &a : arenas)
        if (a.base && (const char *)p >= a.base && (const char *)p < a.base + a.reserve)
            return &a;
    return nullptr;
}

/* The one at p or below it. */
static region *below(const std::map<const char *, region *> &regions, const void *p) {
    auto after = regions.upper_bound((const char *)p);
    return after == regions.begin() ? nullptr : std::prev(after)->second;
}

region *region_nearest(const void *p) {
    arena *a = arena_holding(p);
    region *best = nullptr;
    ptrdiff_t least = PTRDIFF_MAX;
    for (auto *regions : {a ? &a->live : nullptr, a ? &a->freed : nullptr}) {
        if (!regions)
            continue;
        auto above = regions->upper_bound((const char *)p);
        for (region *r : {below(*regions, p), above == regions->end() ? nullptr : above->second}) {
            if (!r)
                continue;
            ptrdiff_t past = (const char *)p - (r->base + (ptrdiff_t)r->bytes);
            ptrdiff_t before = r->base - (const char *)p;
            ptrdiff_t away = std::max({past, before, (ptrdiff_t)0});
            if (away < least) {
                least = away;
                best = r;
            }
        }
    }
    return best;
}

region *region_find(const void *p) {
    arena *a = arena_holding(p);
    region *r = a ? below(a->live, p) : nullptr;
    return r && (const char *)p <= r->base + r->bytes ? r : nullptr;
}

std::string region_describe(const void *p) {
    region *r = region_nearest(p);
    if (!r)
        return "no memory of the device";
    static const char *const kind[] = {"device memory", "pinned memory", "shared array"};
    char text[256];
    long long at = (const char *)p - r->base;
    snprintf(text, sizeof text, "%s%s%s %llu of %zu bytes%s: byte %lld (%lld past its end)",
             kind[(int)r->where], r->name ? " " : "", r->name ? r->name : "",
             (unsigned long long)r->serial, r->bytes, r->live ? "" : ", already freed", at,
             at - (long long)r->bytes);
    return text;
}

void check_canaries(const char *after) {
    device_access access;
    for (arena &a : arenas)
        for (auto &at : a.live) {
            const region *r = at.second;
            if (!all_poison(r->base + r->bytes, r->room - r->bytes))
                die("%s wrote past the end of %s", after,
                    region_describe(r->base + r->bytes).c_str());
            if (!all_poison(r->base - LEAD, LEAD))
                die("%s wrote in front of %s", after, region_describe(r->base).c_str());
        }
}

void check_range(const char *call, const char *what, const void *p, size_t bytes, space where) {
    region *r = region_find(p);
    if (!r || r->where != where)
        die("%s: %s %p is no live %s memory (%s)", call, what, p,
            where == space::device ? "device" : "pinned", region_describe(p).c_str());
    if ((const char *)p + bytes > r->base + r->bytes)
        die("%s: %s, %zu bytes, reach beyond %s", call, what, bytes, region_describe(p).c_str());
}

void check_host_range(const char *call, const char *what, const void *p, size_t bytes) {
    if (in_space(space::pinned, p))
        check_range(call, what, p, bytes, space::pinned);
    else if (!p || in_space(space::device, p) || in_space(space::shared, p))
        die("%s: %s %p is no host memory (%s)", call, what, p, region_describe(p).c_str());
}

} // namespace cuda_sim
