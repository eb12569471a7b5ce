/* Attention for training, prefill and cached decode in one blocked pass with an online softmax
 * (Dao 2023, FlashAttention-2): a task is a block of query rows of one KV head, walking the keys
 * those rows see tile by tile. With fewer tasks than threads (decode) the keys are split too and
 * the partial results combined in a fixed order. Masked weights are never multiplied, so whatever
 * lies under the mask, NaN too, does not reach the output; what is visible does. */
#include "core/parallel.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/simd/attention_tile.h"

#include <omp.h>

enum { BLOCK_ROWS = 192, SPLIT_MIN_TILES = 2 };

struct plan {
    const struct attention_args *a;
    int64_t group, block_queries, block_rows; /* block_rows: whole strips */
    int64_t n_block, n_tile, n_task, n_split, max_split;
    int64_t ld; /* head_dim in whole vectors */
};

/* What is known of a block after some keys: o is sum_j exp(s_j - top) v_j, sum its denominator. */
struct partial {
    float *o;         /* [block_rows, ld] */
    float *top, *sum; /* [block_rows] */
};

struct tiles {     /* one thread's */
    float *panels; /* queries: [block_rows / TILE_ROWS, head_dim, TILE_ROWS] */
    float *keys;   /* [head_dim, TILE_KEYS] */
    float *values; /* [TILE_KEYS, ld] */
    float *p;      /* [TILE_ROWS, TILE_KEYS] */
    float *lanes;  /* [block_rows, VF_LEN]: denominators, a partial sum per lane */
};

static int64_t partial_floats(const struct plan *pl) {
    return pl->block_rows * (pl->ld + 2);
}

static int64_t tiles_floats(const struct plan *pl) {
    return pl->block_rows * (pl->a->head_dim + VF_LEN) +
           TILE_KEYS * (pl->a->head_dim + pl->ld + TILE_ROWS);
}

static struct partial partial_at(const struct plan *pl, float *base, int64_t index) {
    float *o = base + index * partial_floats(pl), *top = o + pl->block_rows * pl->ld;
    return (struct partial){o, top, top + pl->block_rows};
}

static struct tiles tiles_at(const struct plan *pl, float *base, int64_t index) {
    struct tiles t;
    t.panels = base + index * tiles_floats(pl);
    t.keys = t.panels + pl->block_rows * pl->a->head_dim;
    t.values = t.keys + TILE_KEYS * pl->a->head_dim;
    t.p = t.values + TILE_KEYS * pl->ld;
    t.lanes = t.p + TILE_KEYS * TILE_ROWS;
    return t;
}

static struct row_block block_of(const struct plan *pl, int64_t task) {
    const struct attention_args *a = pl->a;
    /* The last blocks see the most keys: first, so that the threads finish together. */
    int64_t block = pl->n_block - 1 - task / (a->n_batch * a->n_kv_head);
    int64_t head = task % (a->n_batch * a->n_kv_head);
    int64_t first = block * pl->block_queries, rest = a->n_query - first;
    int64_t n = rest < pl->block_queries ? rest : pl->block_queries;
    return (struct row_block){.batch = head / a->n_kv_head,
                              .head = head % a->n_kv_head * pl->group,
                              .group = pl->group,
                              .first = first,
                              .n_row = n * pl->group};
}

/* The values of a tile: packed, or where they lie when they are read only once or twice. */
struct values {
    const void *data;
    int64_t ld;
    bool bf16;
};

/* o = o * factor (when given) + p values over the tile's keys [first, end). */
static void weigh(const struct plan *pl, int64_t n, int64_t first, int64_t end, const float *p,
                  const struct values *v, float *o, const float *factor) {
    int64_t n_out = pl->ld / VF_LEN, k = end > first ? end - first : 0;
    const char *data = v->data;
    data += first * v->ld * (v->bf16 ? 2 : 4);
    if (factor && v->bf16)
        tile_strip(n, n_out, k, p + first, TILE_KEYS, 1, data, v->ld, true, o, pl->ld, TILE_SCALE,
                   factor);
    else if (factor)
        tile_strip(n, n_out, k, p + first, TILE_KEYS, 1, data, v->ld, false, o, pl->ld, TILE_SCALE,
                   factor);
    else if (v->bf16)
        tile_strip(n, n_out, k, p + first, TILE_KEYS, 1, data, v->ld, true, o, pl->ld, TILE_ADD,
                   NULL);
    else
        tile_strip(n, n_out, k, p + first, TILE_KEYS, 1, data, v->ld, false, o, pl->ld, TILE_ADD,
                   NULL);
}

/* Rows [row, row + n) of the block against the keys [tile, tile_end) in t. */
static void attend_strip(const struct plan *pl, const struct row_block *q, struct tiles *t,
                         struct partial *part, int64_t row, int64_t n, int64_t tile,
                         int64_t tile_end, const struct values *v) {
    const struct attention_args *a = pl->a;
    int64_t lo[TILE_ROWS], hi[TILE_ROWS];
    visible_in_tile(a, q, row, n, tile, tile_end, lo, hi);
    int64_t from = lo[0] / TILE_COLS * TILE_COLS, n_vec = vectors(hi[n - 1] - from);
    if (hi[n - 1] <= lo[0])
        return;
    tile_scores(n, n_vec, a->head_dim, t->panels + row * a->head_dim, t->keys + from, t->p + from);

    float top[16], factor[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        float *s = t->p + i * TILE_KEYS + from;
        if (lo[i] > from || hi[i] < from + n_vec * VF_LEN)
            for (int64_t j = 0; j < n_vec; j++) {
                vu see = lanes_between(from + j * VF_LEN, lo[i], hi[i]);
                vu hidden = (vu)vf_set(-INFINITY) & ~see;
                vf_store(s + j * VF_LEN, (vf)(((vu)vf_load(s + j * VF_LEN) & see) | hidden));
            }
        vf high = vf_load(s);
        for (int64_t j = 1; j < n_vec; j++)
            high = vf_max(high, vf_load(s + j * VF_LEN));
        float old = part->top[row + i], now = vf_hmax(high);
        now = now > old ? now : old;
        part->top[row + i] = now;
        /* No visible key so far: any finite number makes exp(-inf - top) the zero it must be. */
        top[i] = now == -INFINITY ? 0 : now;
        factor[i] = old - top[i];
    }
    for (int64_t i = 0; i < n; i += VF_LEN)
        vf_store(factor + i, vf_exp(vf_load(factor + i)));
    for (int64_t i = 0; i < n; i++) {
        float *s = t->p + i * TILE_KEYS + from, *lanes = t->lanes + (row + i) * VF_LEN;
        vf sum = vf_load(lanes) * factor[i];
        for (int64_t j = 0; j < n_vec; j++) {
            vf p = vf_exp(vf_load(s + j * VF_LEN) - top[i]);
            vf_store(s + j * VF_LEN, p);
            sum += p;
        }
        vf_store(lanes, sum);
    }

    /* Keys [core, core_end) are seen by every row; the others by each row alone. */
    float *o = part->o + row * pl->ld, *p = t->p;
    int64_t core = lo[n - 1], core_end = hi[0];
    bool ragged = core > lo[0];
    if (core >= core_end)
        core = core_end = ragged ? hi[n - 1] : lo[0];
    if (ragged)
        for (int64_t i = 0; i < n; i++)
            weigh(pl, 1, lo[i], hi[i] < core ? hi[i] : core, p + i * TILE_KEYS, v, o + i * pl->ld,
                  factor + i);
    weigh(pl, n, core, core_end, p, v, o, ragged ? NULL : factor);
    for (int64_t i = 0; i < n; i++) {
        int64_t first = lo[i] > core_end ? lo[i] : core_end;
        if (first < hi[i])
            weigh(pl, 1, first, hi[i], p + i * TILE_KEYS, v, o + i * pl->ld, NULL);
    }
}

/* The block's rows against tiles [tile_first, tile_end) of keys. */
static void attend(const struct plan *pl, const struct row_block *q, struct tiles *t,
                   struct partial *part, int64_t tile_first, int64_t tile_end) {
    const struct attention_args *a = pl->a;
    int64_t kv_head = q->head / q->group;
    bool kv_bf16 = a->kv_dtype == DTYPE_BF16;
    int64_t strips = (q->n_row + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    pack_queries(part->o, pl->ld, t->panels, &a->q, q, a->head_dim, (float)a->scale,
                 a->dtype == DTYPE_BF16);
    memset(part->o, 0, sizeof(float) * (size_t)(strips * pl->ld));
    memset(t->lanes, 0, sizeof(float) * (size_t)(q->n_row * VF_LEN));
    for (int64_t r = 0; r < q->n_row; r++)
        part->top[r] = -INFINITY;
    /* Few rows: the values are read once, so a packed copy would only cost. */
    bool few = q->n_row <= 2 * TILE_ROWS, direct = few && a->head_dim == pl->ld;
    for (int64_t tile = tile_first * TILE_KEYS; tile < tile_end * TILE_KEYS; tile += TILE_KEYS) {
        int64_t end = tile + TILE_KEYS < a->n_key ? tile + TILE_KEYS : a->n_key;
        int64_t next = end + TILE_KEYS < a->n_key ? end + TILE_KEYS : a->n_key;
        prefetch_rows(&a->k, q->batch, kv_head, end, next, a->head_dim, kv_bf16);
        pack_transposed(t->keys, &a->k, q->batch, kv_head, tile, end - tile, a->head_dim, kv_bf16);
        prefetch_rows(&a->v, q->batch, kv_head, end, next, a->head_dim, kv_bf16);
        if (!direct)
            pack_rows(t->values, pl->ld, &a->v, q->batch, kv_head, tile, end - tile, a->head_dim,
                      kv_bf16);
        struct values v = {t->values, pl->ld, false};
        if (direct)
            v = (struct values){(const char *)a->v.data +
                                    head_at(&a->v, q->batch, tile, kv_head) * (kv_bf16 ? 2 : 4),
                                a->v.row, kv_bf16};
        for (int64_t row = 0; row < q->n_row; row += TILE_ROWS) {
            int64_t n = q->n_row - row < TILE_ROWS ? q->n_row - row : TILE_ROWS;
            attend_strip(pl, q, t, part, row, n, tile, end, &v);
        }
    }
    for (int64_t r = 0; r < q->n_row; r++)
        part->sum[r] = vf_hsum(vf_load(t->lanes + r * VF_LEN));
}

/* Divide by the denominator and write o and lse. Without a visible key o is zero. */
static void finish(const struct plan *pl, const struct row_block *q, const struct partial *part) {
    const struct attention_args *a = pl->a;
    for (int64_t r = 0; r < q->n_row; r++) {
        float scale = part->sum[r] == 0 ? 0 : 1 / part->sum[r];
        const float *o = part->o + r * pl->ld;
        if (a->dtype == DTYPE_BF16)
            store_row(a->o.data, row_at(&a->o, q, r), o, a->head_dim, scale, true);
        else
            store_row(a->o.data, row_at(&a->o, q, r), o, a->head_dim, scale, false);
        if (a->lse)
            ((float *)a->lse)[row_lse(a, q, r)] = part->top[r] + logf(part->sum[r]);
    }
}

/* The first of n partial results becomes all of them, taken in order. */
static void combine(const struct plan *pl, const struct row_block *q, float *base, int64_t task) {
    struct partial all = partial_at(pl, base, task * pl->n_split);
    for (int64_t s = 1; s < pl->n_split; s++) {
        struct partial more = partial_at(pl, base, task * pl->n_split + s);
        for (int64_t r = 0; r < q->n_row; r++) {
            float top = all.top[r] > more.top[r] ? all.top[r] : more.top[r];
            float offset = top == -INFINITY ? 0 : top;
            float mine = expf(all.top[r] - offset), other = expf(more.top[r] - offset);
            all.top[r] = top;
            all.sum[r] = all.sum[r] * mine + more.sum[r] * other;
            for (int64_t c = 0; c < pl->ld; c += VF_LEN) {
                float *o = all.o + r * pl->ld + c;
                vf add = vf_load(more.o + r * pl->ld + c) * other;
                vf_store(o, vf_fma(vf_load(o), vf_set(mine), add));
            }
        }
    }
}

static struct plan plan_attention(const struct attention_args *a, int64_t threads) {
    struct plan pl = {.a = a, .group = a->n_head / a->n_kv_head};
    pl.block_queries = BLOCK_ROWS / pl.group;
    pl.block_queries = pl.block_queries < 1 ? 1 : pl.block_queries;
    pl.block_queries = pl.block_queries < a->n_query ? pl.block_queries : a->n_query;
    pl.block_rows = (pl.block_queries * pl.group + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    pl.ld = vectors(a->head_dim) * VF_LEN;
    pl.n_block = (a->n_query + pl.block_queries - 1) / pl.block_queries;
    pl.n_tile = (a->n_key + TILE_KEYS - 1) / TILE_KEYS;
    pl.n_task = a->n_batch * a->n_kv_head * pl.n_block;
    /* The scratch is sized for max_split whatever n_key is: decoding on does not reallocate. */
    pl.max_split = pl.n_task < threads ? 2 * threads / pl.n_task : 1;
    pl.n_split =
        pl.n_tile / SPLIT_MIN_TILES < pl.max_split ? pl.n_tile / SPLIT_MIN_TILES : pl.max_split;
    pl.n_split = pl.n_split < 1 ? 1 : pl.n_split;
    return pl;
}

enum status ISA(attention)(struct backend *be, const struct attention_args *a) {
    if (a->n_batch < 1 || a->n_query < 1 || a->n_key < 1)
        return STATUS_OK;
    int64_t threads = parallel_threads();
    struct plan pl = plan_attention(a, threads);
    int64_t n_partial = pl.max_split > 1 ? pl.n_task * pl.max_split : threads;
    int64_t floats = n_partial * partial_floats(&pl) + threads * tiles_floats(&pl);
    float *partials;
    TRY(cpu_scratch(be, SCRATCH_OP, floats * (int64_t)sizeof(float), (void **)&partials));
    float *tiles = partials + n_partial * partial_floats(&pl);

#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t item = 0; item < pl.n_task * pl.n_split; item++) {
        int64_t split = item % pl.n_split, first, end;
        struct row_block q = block_of(&pl, item / pl.n_split);
        struct tiles t = tiles_at(&pl, tiles, parallel_id());
        struct partial part = partial_at(&pl, partials, pl.n_split > 1 ? item : parallel_id());
        tiles_seen(a, &q, &first, &end);
        int64_t n = end > first ? end - first : 0;
        attend(&pl, &q, &t, &part, first + n * split / pl.n_split,
               first + n * (split + 1) / pl.n_split);
        if (pl.n_split == 1)
            finish(&pl, &q, &part);
    }
    if (pl.n_split == 1)
        return STATUS_OK;
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < pl.n_task; task++) {
        struct row_block q = block_of(&pl, task);
        struct partial part = partial_at(&pl, partials, task * pl.n_split);
        combine(&pl, &q, partials, task);
        finish(&pl, &q, &part);
    }
    return STATUS_OK;
}
