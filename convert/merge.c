/* Head blocks: a K or V tensor (or bias) is n_in equal blocks, one a head. Every output block is
 * the mean of some input blocks, or one of them, or drawn; a tensor that stays is one block. */
#include "convert/merge.h"

#include "core/rng.h"

#include <math.h>
#include <string.h>

enum status merge_buffers_alloc(struct merge_buffers *b) {
    TRY(memory_alloc(MERGE_CHUNK, 8, "conversion buffer", &b->in));
    TRY(memory_alloc(MERGE_CHUNK, 8, "conversion buffer", &b->out));
    TRY(memory_alloc(MERGE_CHUNK, (int64_t)sizeof *b->value, "conversion buffer", &b->value));
    return memory_alloc(MERGE_CHUNK, (int64_t)sizeof *b->sum, "conversion buffer", &b->sum);
}

void merge_buffers_free(struct merge_buffers *b) {
    memory_free(b->in);
    memory_free(b->out);
    memory_free(b->value);
    memory_free(b->sum);
    *b = (struct merge_buffers){0};
}

/* Where an output block comes from: input blocks [first, first + n). */
struct source {
    int64_t first, n;
    bool seen; /* these bytes were read for an earlier block: do not count their NaN again */
};

static struct source block_source(const struct convert_item *item, enum merge_method method,
                                  int64_t g) {
    if (item->n_out >= item->n_in) {
        int64_t copies = item->n_out / item->n_in;
        return (struct source){g / copies, 1, g % copies != 0};
    }
    int64_t group = item->n_in / item->n_out;
    return (struct source){g * group, method == MERGE_MEAN ? group : 1, false};
}

/* Elements [at, at + n) of the tensor into b->in, counted. */
static enum status read_values(struct convert_item *item, int64_t at, int64_t n, bool count,
                               struct merge_buffers *b) {
    enum dtype t = item->from->dtype;
    TRY(checkpoint_read(item->from, at * dtype_size(t), n * dtype_size(t), b->in));
    if (count)
        nonfinite_scan(b->in, t, n, &item->found);
    return STATUS_OK;
}

enum status merge_put(struct convert_plan *p, int64_t i, int64_t at, int64_t n, const void *values,
                      enum dtype t, struct checkpoint_writer *w, struct merge_buffers *b) {
    struct convert_item *item = &p->items[i];
    enum dtype to = item->to.dtype;
    if (t != to) {
        struct nonfinite before = {0}, after = {0};
        dtype_convert(values, t, b->out, to, n);
        nonfinite_scan(b->out, to, n, &after);
        if (after.n_inf)
            nonfinite_scan(values, t, n, &before);
        item->n_overflow += after.n_inf - before.n_inf;
        values = b->out;
    }
    return checkpoint_writer_put(w, i, at * dtype_size(to), n * dtype_size(to), values);
}

/* The mean of the source blocks' elements [e, e + n): summed in fp64, so that a group of equal
 * heads gives back exactly that head, then rounded to fp32. b->value receives it, or b->sum when
 * the tensor is F64. */
static enum status mean_values(struct convert_item *item, struct source s, int64_t block, int64_t e,
                               int64_t n, struct merge_buffers *b) {
    enum dtype t = item->from->dtype;
    memset(b->sum, 0, (size_t)n * sizeof *b->sum);
    for (int64_t k = 0; k < s.n; k++) {
        TRY(read_values(item, (s.first + k) * block + e, n, true, b));
        if (t == DTYPE_F64) {
            for (int64_t j = 0; j < n; j++)
                b->sum[j] += ((const double *)b->in)[j];
        } else {
            dtype_convert(b->in, t, b->value, DTYPE_F32, n);
            for (int64_t j = 0; j < n; j++)
                b->sum[j] += (double)b->value[j];
        }
    }
    for (int64_t j = 0; j < n; j++) {
        b->sum[j] /= (double)s.n;
        b->value[j] = (float)b->sum[j];
    }
    return STATUS_OK;
}

/* Standard deviation of the tensor's finite values. */
static enum status spread(struct convert_item *item, struct merge_buffers *b, double *out) {
    enum dtype t = item->from->dtype;
    int64_t count = item->from->n_byte / dtype_size(t), used = 0;
    double sum = 0, squares = 0;
    for (int64_t at = 0; at < count; at += MERGE_CHUNK) {
        int64_t n = size_min(MERGE_CHUNK, count - at);
        TRY(read_values(item, at, n, true, b));
        dtype_convert(b->in, t, b->value, DTYPE_F32, n);
        for (int64_t j = 0; j < n; j++) {
            double v = (double)b->value[j];
            if (!isfinite(v))
                continue;
            sum += v;
            squares += v * v;
            used++;
        }
    }
    double mean = used ? sum / (double)used : 0;
    double variance = used ? squares / (double)used - mean * mean : 0;
    *out = variance > 0 ? sqrt(variance) : 0;
    return STATUS_OK;
}

static enum status redraw(struct convert_plan *p, int64_t i, struct checkpoint_writer *w,
                          struct merge_buffers *b) {
    struct convert_item *item = &p->items[i];
    int64_t count = item->to_bytes / dtype_size(item->to.dtype);
    /* A stream per tensor name: the same numbers whatever the order or the sharding. */
    uint64_t stream = hash_bytes(item->to.name, (int64_t)strlen(item->to.name), 0);
    struct rng rng = rng_stream(p->options.seed, stream);
    double std;
    TRY(spread(item, b, &std));
    for (int64_t at = 0; at < count; at += MERGE_CHUNK) {
        int64_t n = size_min(MERGE_CHUNK, count - at);
        for (int64_t j = 0; j < n; j++)
            b->value[j] = (float)(std * rng_normal(&rng));
        TRY(merge_put(p, i, at, n, b->value, DTYPE_F32, w, b));
    }
    return STATUS_OK;
}

enum status merge_stream(struct convert_plan *p, int64_t i, struct checkpoint_writer *w,
                         struct merge_buffers *b) {
    struct convert_item *item = &p->items[i];
    enum dtype t = item->from->dtype;
    if (!dtype_is_float(t))
        return checkpoint_writer_copy(w, i, item->from);
    if (item->redraw)
        return redraw(p, i, w, b);
    int64_t block = item->from->n_byte / dtype_size(t) / item->n_in;
    for (int64_t g = 0; g < item->n_out; g++) {
        struct source s = block_source(item, p->options.method, g);
        for (int64_t e = 0; e < block; e += MERGE_CHUNK) {
            int64_t n = size_min(MERGE_CHUNK, block - e), at = g * block + e;
            if (s.n == 1) {
                TRY(read_values(item, s.first * block + e, n, !s.seen, b));
                TRY(merge_put(p, i, at, n, b->in, t, w, b));
                continue;
            }
            TRY(mean_values(item, s, block, e, n, b));
            if (t == DTYPE_F64)
                TRY(merge_put(p, i, at, n, b->sum, DTYPE_F64, w, b));
            else
                TRY(merge_put(p, i, at, n, b->value, DTYPE_F32, w, b));
        }
    }
    return STATUS_OK;
}
