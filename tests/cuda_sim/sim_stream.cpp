/* Streams and events. Nothing runs when it is asked for: what waits runs one piece of work after
 * the other, each drawn from the streams that can go on, until what it waits for is done. */
#include "sim_stream.h"

#include <cstdlib>
#include <ctime>

namespace cuda_sim {

const char *running;

namespace {
auto &streams = *new std::set<CUstream_st *>;
auto &events = *new std::set<CUevent_st *>;
/* The live streams in order of creation, for reproducible draws. */
auto &order = *new std::vector<CUstream_st *>;
CUstream_st default_stream = {{}, true, 0, {}};

double now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
CUstream_st *actual(cudaStream_t stream) {
    return !stream || stream == cudaStreamLegacy ? &default_stream : stream;
}
bool can_go_on(const CUstream_st *s) {
    if (s->queue.empty())
        return false;
    const queued &w = s->queue.front();
    return !w.awaits || w.awaits->completed >= w.count;
}
void run_front(CUstream_st *s) {
    queued w = std::move(s->queue.front());
    s->queue.pop_front();
    if (w.record) {
        w.record->completed = std::max(w.record->completed, w.count);
        w.record->seconds = now();
    } else if (w.run) {
        run_now(w.what, w.run);
    }
}
template <class Done> void run_until(const char *call, Done done) {
    while (!done()) {
        std::vector<CUstream_st *> able;
        for (CUstream_st *s : order)
            if (can_go_on(s))
                able.push_back(s);
        if (can_go_on(&default_stream))
            able.push_back(&default_stream);
        if (able.empty())
            die("%s: waits for ever: every stream waits for an event of another", call);
        run_front(able[random_below((uint32_t)able.size())]);
    }
}
void run_blocking_streams(const char *call) {
    run_until(call, [] {
        for (CUstream_st *s : order)
            if (s->blocking && !s->queue.empty())
                return false;
        return true;
    });
}
void append(CUstream_st *s, queued w) {
    /* The default stream and blocking ones take turns. */
    if (s == &default_stream)
        run_blocking_streams("the default stream");
    else if (s->blocking)
        run_until("the default stream", [] { return default_stream.queue.empty(); });
    s->queue.push_back(std::move(w));
}
void check_event(const char *call, cudaEvent_t event) {
    if (!events.count(event))
        die("%s: %p is no live event", call, (void *)event);
}
} // namespace

void check_stream(const char *call, cudaStream_t stream) {
    if (actual(stream) != &default_stream && !streams.count(stream))
        die("%s: %p is no live stream", call, (void *)stream);
}

void run_now(const char *what, const std::function<void()> &run) {
    const char *before = running;
    fault_handler_install();
    running = what;
    {
        device_access access;
        run();
    }
    running = before;
}

void run_all() {
    run_until("cudaDeviceSynchronize", [] {
        for (CUstream_st *s : order)
            if (!s->queue.empty())
                return false;
        return default_stream.queue.empty();
    });
}

cudaError_t enqueue(cudaStream_t stream, const char *what, std::function<void()> run) {
    check_stream(what, stream);
    if (capture *c = capture_of(stream)) {
        if (!c->valid)
            return set_error(cudaErrorStreamCaptureInvalidated);
        c->nodes.push_back({what, std::move(run), stream->after});
        stream->after = {c->nodes.size() - 1};
        return cudaSuccess;
    }
    append(actual(stream), {what, std::move(run), nullptr, nullptr, 0});
    return cudaSuccess;
}

} // namespace cuda_sim

using namespace cuda_sim;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    SIM_LOCK;
    if (!stream || flags > cudaStreamNonBlocking)
        die("cudaStreamCreateWithFlags: flags %u", flags);
    *stream = new CUstream_st{{}, flags == cudaStreamDefault, 0, {}};
    streams.insert(*stream);
    order.push_back(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    SIM_LOCK;
    if (!streams.count(stream))
        die("cudaStreamDestroy: %p is no live stream", (void *)stream);
    if (capture_of(stream))
        die("cudaStreamDestroy: the stream is being captured");
    run_until("cudaStreamDestroy", [=] { return stream->queue.empty(); });
    streams.erase(stream);
    order.erase(std::find(order.begin(), order.end(), stream));
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    SIM_LOCK;
    check_stream("cudaStreamSynchronize", stream);
    if (capture_refuses("cudaStreamSynchronize"))
        return set_error(cudaErrorStreamCaptureUnsupported);
    if (actual(stream) == &default_stream)
        run_blocking_streams("cudaStreamSynchronize");
    run_until("cudaStreamSynchronize", [=] { return actual(stream)->queue.empty(); });
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    SIM_LOCK;
    check_stream("cudaStreamQuery", stream);
    if (capture_refuses("cudaStreamQuery"))
        return set_error(cudaErrorStreamCaptureUnsupported);
    CUstream_st *s = actual(stream); /* asking takes time, in which work goes on */
    run_until("cudaStreamQuery", [=] { return s->queue.empty() || random_below(4) == 0; });
    return s->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize(void) {
    SIM_LOCK;
    if (capture_refuses("cudaDeviceSynchronize"))
        return set_error(cudaErrorStreamCaptureUnsupported);
    run_all();
    return cudaSuccess;
}
cudaError_t cudaDeviceReset(void) {
    return cudaDeviceSynchronize();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    SIM_LOCK;
    if (!event || flags > (cudaEventBlockingSync | cudaEventDisableTiming))
        die("cudaEventCreateWithFlags: flags %u", flags);
    auto state = std::make_shared<event_state>();
    state->timing = !(flags & cudaEventDisableTiming);
    *event = new CUevent_st{state};
    events.insert(*event);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    SIM_LOCK;
    check_event("cudaEventDestroy", event);
    events.erase(event);
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    SIM_LOCK;
    check_event("cudaEventRecord", event);
    check_stream("cudaEventRecord", stream);
    event_state *e = event->state.get();
    e->capture_id = 0;
    if (capture *c = capture_of(stream)) {
        e->capture_id = c->id;
        e->after = stream->after;
        return cudaSuccess;
    }
    append(actual(stream), {"cudaEventRecord", nullptr, event->state, nullptr, ++e->recorded});
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    SIM_LOCK;
    check_event("cudaStreamWaitEvent", event);
    check_stream("cudaStreamWaitEvent", stream);
    if (flags)
        die("cudaStreamWaitEvent: flags %u", flags);
    event_state *e = event->state.get();
    capture *c = capture_of(stream);
    if (e->capture_id) {
        capture *from = nullptr;
        for (capture *other : captures)
            if (other->id == e->capture_id)
                from = other;
        if (!from || (c && c != from))
            die("cudaStreamWaitEvent: the event was last recorded in a capture that is over or is "
                "another one");
        if (!c) { /* the stream joins the capture */
            actual(stream)->capture_id = from->id;
            actual(stream)->after.clear();
        }
        stream->after.insert(e->after.begin(), e->after.end());
        return cudaSuccess;
    }
    if (c && e->recorded) {
        c->valid = false;
        return set_error(cudaErrorStreamCaptureIsolation);
    }
    if (e->recorded && !c)
        append(actual(stream),
               {"cudaStreamWaitEvent", nullptr, nullptr, event->state, e->recorded});
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    SIM_LOCK;
    check_event("cudaEventSynchronize", event);
    if (event->state->capture_id || capture_refuses("cudaEventSynchronize"))
        return set_error(cudaErrorStreamCaptureUnsupported);
    event_state *e = event->state.get();
    uint64_t recorded = e->recorded;
    run_until("cudaEventSynchronize", [=] { return e->completed >= recorded; });
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    SIM_LOCK;
    check_event("cudaEventQuery", event);
    if (event->state->capture_id || capture_refuses("cudaEventQuery"))
        return set_error(cudaErrorStreamCaptureUnsupported);
    event_state *e = event->state.get();
    run_until("cudaEventQuery",
              [=] { return e->completed >= e->recorded || random_below(4) == 0; });
    return e->completed >= e->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    SIM_LOCK;
    check_event("cudaEventElapsedTime", start);
    check_event("cudaEventElapsedTime", end);
    for (const event_state *e : {start->state.get(), end->state.get()}) {
        if (!e->timing || !e->recorded || e->capture_id)
            die("cudaEventElapsedTime: an event that was not recorded, or without timing");
        if (e->completed < e->recorded)
            return set_error(cudaErrorNotReady);
    }
    *milliseconds = (float)(1e3 * (end->state->seconds - start->state->seconds));
    return cudaSuccess;
}

} /* extern "C" */
