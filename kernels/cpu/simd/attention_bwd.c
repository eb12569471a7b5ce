/* Gradients of attention (Dao 2023, FlashAttention-2). An item of work is one KV head and every
 * n_split-th block of its query rows: it recomputes P tile by tile from the log-sum-exp, finishes
 * dQ of its blocks and sums dK and dV over them and over the group in accumulators of its own, so
 * nothing is raced; the accumulators of a KV head are then added in a fixed order. */
#include "core/parallel.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/simd/attention_tile.h"

#include <omp.h>

enum { BLOCK_ROWS = 96 };

struct plan {
    const struct attention_bwd_args *args;
    const struct attention_args *a;
    int64_t group, block_queries, block_rows; /* block_rows: whole strips */
    int64_t n_block, n_pair, n_split;         /* n_pair: batch x KV heads */
    int64_t n_key, ld;                        /* in whole tiles, in whole vectors */
    bool bf16, kv_bf16;
};

struct work {       /* one thread's */
    float *q, *d_o; /* [block_rows, ld]; q times scale */
    float *q_panels, *d_o_panels;
    float *d_q;               /* [block_rows, ld], lacking the factor scale */
    float *lse, *sum;         /* [block_rows]; sum: D = rowsum(d_o * o) */
    float *p, *d_s;           /* [block_rows, TILE_KEYS] */
    float *keys;              /* [TILE_KEYS, ld] */
    float *keys_t, *values_t; /* [head_dim, TILE_KEYS] */
    float *d_k, *d_v;         /* [n_key, ld] */
};

static int64_t work_floats(const struct plan *pl) {
    return pl->block_rows * (3 * pl->ld + 2 * pl->a->head_dim + 2 + 2 * TILE_KEYS) +
           TILE_KEYS * (pl->ld + 2 * pl->a->head_dim);
}

static int64_t sums_floats(const struct plan *pl) {
    return 2 * pl->n_key * pl->ld;
}

static float *take(float **next, int64_t n) {
    float *mine = *next;
    *next += n;
    return mine;
}

static struct work work_at(const struct plan *pl, float *base, int64_t thread, float *sums) {
    int64_t rows = pl->block_rows, d = pl->a->head_dim;
    float *next = base + thread * work_floats(pl);
    struct work w = {.d_k = sums, .d_v = sums + pl->n_key * pl->ld};
    w.q = take(&next, rows * pl->ld);
    w.d_o = take(&next, rows * pl->ld);
    w.d_q = take(&next, rows * pl->ld);
    w.p = take(&next, rows * TILE_KEYS);
    w.d_s = take(&next, rows * TILE_KEYS);
    w.keys = take(&next, TILE_KEYS * pl->ld);
    w.keys_t = take(&next, TILE_KEYS * d);
    w.values_t = take(&next, TILE_KEYS * d);
    w.q_panels = take(&next, rows * d);
    w.d_o_panels = take(&next, rows * d);
    w.lse = take(&next, rows);
    w.sum = take(&next, rows);
    return w;
}

/* Everything of the block's rows that does not depend on the key. */
static void load_block(const struct plan *pl, const struct row_block *q, struct work *w) {
    const struct attention_args *a = pl->a;
    pack_queries(w->q, pl->ld, w->q_panels, &a->q, q, a->head_dim, (float)a->scale, pl->bf16);
    pack_queries(w->d_o, pl->ld, w->d_o_panels, &pl->args->d_o, q, a->head_dim, 1, pl->bf16);
    for (int64_t r = 0; r < q->n_row; r++) {
        const float *d_o = w->d_o + r * pl->ld, *o = w->d_q;
        if (pl->bf16)
            load_row(w->d_q, a->o.data, row_at(&a->o, q, r), a->head_dim, 1, true);
        else
            load_row(w->d_q, a->o.data, row_at(&a->o, q, r), a->head_dim, 1, false);
        vf sum = vf_set(0);
        for (int64_t c = 0; c < pl->ld; c += VF_LEN)
            sum = vf_fma(vf_load(d_o + c), vf_load(o + c), sum);
        w->sum[r] = vf_hsum(sum);
        w->lse[r] = ((const float *)a->lse)[row_lse(a, q, r)];
    }
    memset(w->d_q, 0, sizeof(float) * (size_t)(pl->block_rows * pl->ld));
}

static void zero(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        x[i] = 0;
}

/* P and dS = P (dP - D) of rows [row, row + n) against the tile, zero where masked; dQ += dS K. */
static void strip_backward(const struct plan *pl, const struct row_block *q, struct work *w,
                           int64_t row, int64_t n, int64_t tile, int64_t tile_end) {
    const struct attention_args *a = pl->a;
    int64_t lo[TILE_ROWS], hi[TILE_ROWS];
    visible_in_tile(a, q, row, n, tile, tile_end, lo, hi);
    int64_t from = lo[0] / TILE_COLS * TILE_COLS, n_vec = vectors(hi[n - 1] - from);
    float *p = w->p + row * TILE_KEYS, *d_s = w->d_s + row * TILE_KEYS;
    if (hi[n - 1] <= lo[0])
        from = n_vec = 0;
    int64_t panel = row * a->head_dim, end = from + n_vec * VF_LEN;
    if (n_vec) {
        tile_scores(n, n_vec, a->head_dim, w->q_panels + panel, w->keys_t + from, p + from);
        tile_scores(n, n_vec, a->head_dim, w->d_o_panels + panel, w->values_t + from, d_s + from);
    }
    for (int64_t i = 0; i < n; i++, p += TILE_KEYS, d_s += TILE_KEYS) {
        zero(p, from), zero(p + end, TILE_KEYS - end);
        zero(d_s, from), zero(d_s + end, TILE_KEYS - end);
        vf lse = vf_set(w->lse[row + i]), sum = vf_set(w->sum[row + i]);
        bool whole = lo[i] <= from && hi[i] >= end;
        for (int64_t j = from; j < end; j += VF_LEN) {
            vf pj = vf_exp(vf_load(p + j) - lse), dj = pj * (vf_load(d_s + j) - sum);
            if (!whole) {
                vu see = lanes_between(j, lo[i], hi[i]);
                pj = (vf)((vu)pj & see), dj = (vf)((vu)dj & see);
            }
            vf_store(p + j, pj);
            vf_store(d_s + j, dj);
        }
    }
    if (n_vec)
        tile_weigh(n, pl->ld / VF_LEN, hi[n - 1] - from, w->d_s + row * TILE_KEYS + from,
                   w->keys + from * pl->ld, pl->ld, w->d_q + row * pl->ld, pl->ld);
}

/* keys x width += (rows x keys)^T (rows x width) */
static void gather(int64_t m, int64_t n_vec, int64_t k, const float *p, const float *rows,
                   int64_t ld, float *sums) {
    tile_strip(m, n_vec, k, p, 1, TILE_KEYS, rows, ld, false, sums, ld, TILE_ADD, NULL);
}

/* dV += P^T dO and dK += dS^T Q for the tile, each strip of keys over the rows that see it. */
static void keys_backward(const struct plan *pl, const struct row_block *q, struct work *w,
                          int64_t tile, int64_t n_key) {
    int64_t position = pl->a->q_first + q->first; /* of the first row */
    for (int64_t j = 0; j < n_key; j += TILE_ROWS) {
        int64_t m = n_key - j < TILE_ROWS ? n_key - j : TILE_ROWS;
        int64_t first = (tile + j - position) * q->group, end = q->n_row;
        first = first > 0 ? first : 0;
        if (pl->a->window > 0) {
            int64_t last = (tile + j + m - 1 + pl->a->window - position) * q->group;
            end = last < end ? last : end;
        }
        if (first >= end)
            continue;
        int64_t at = first * TILE_KEYS + j, out = (tile + j) * pl->ld, n_vec = pl->ld / VF_LEN;
        gather(m, n_vec, end - first, w->p + at, w->d_o + first * pl->ld, pl->ld, w->d_v + out);
        gather(m, n_vec, end - first, w->d_s + at, w->q + first * pl->ld, pl->ld, w->d_k + out);
    }
}

static void block_backward(const struct plan *pl, const struct row_block *q, struct work *w) {
    const struct attention_args *a = pl->a;
    int64_t kv_head = q->head / q->group, tile_first, tile_end, d = a->head_dim;
    load_block(pl, q, w);
    tiles_seen(a, q, &tile_first, &tile_end);
    for (int64_t tile = tile_first * TILE_KEYS; tile < tile_end * TILE_KEYS; tile += TILE_KEYS) {
        int64_t end = tile + TILE_KEYS < a->n_key ? tile + TILE_KEYS : a->n_key, n = end - tile;
        pack_rows(w->keys, pl->ld, &a->k, q->batch, kv_head, tile, n, d, pl->kv_bf16);
        pack_transposed(w->keys_t, &a->k, q->batch, kv_head, tile, n, d, pl->kv_bf16);
        pack_transposed(w->values_t, &a->v, q->batch, kv_head, tile, n, d, pl->kv_bf16);
        for (int64_t row = 0; row < q->n_row; row += TILE_ROWS) {
            int64_t rows = q->n_row - row < TILE_ROWS ? q->n_row - row : TILE_ROWS;
            strip_backward(pl, q, w, row, rows, tile, end);
        }
        keys_backward(pl, q, w, tile, n);
    }
    for (int64_t r = 0; r < q->n_row; r++) {
        int64_t at = row_at(&pl->args->d_q, q, r);
        if (pl->bf16)
            store_row(pl->args->d_q.data, at, w->d_q + r * pl->ld, d, (float)a->scale, true);
        else
            store_row(pl->args->d_q.data, at, w->d_q + r * pl->ld, d, (float)a->scale, false);
    }
}

/* The blocks of one item; every second round runs backwards, because later blocks see more keys. */
static void item_backward(const struct plan *pl, int64_t pair, int64_t split, struct work *w) {
    const struct attention_args *a = pl->a;
    memset(w->d_k, 0, sizeof(float) * (size_t)sums_floats(pl));
    for (int64_t round = 0; round * pl->n_split < pl->n_block; round++) {
        int64_t turn = round % 2 ? pl->n_split - 1 - split : split;
        int64_t first = (round * pl->n_split + turn) * pl->block_queries;
        if (first >= a->n_query)
            continue;
        int64_t rest = a->n_query - first;
        int64_t n = rest < pl->block_queries ? rest : pl->block_queries;
        struct row_block q = {.batch = pair / a->n_kv_head,
                              .head = pair % a->n_kv_head * pl->group,
                              .group = pl->group,
                              .first = first,
                              .n_row = n * pl->group};
        block_backward(pl, &q, w);
    }
}

/* Write dK and dV of one KV head: the n_split accumulators from `sums` on, added in order. */
static void store_keys(const struct plan *pl, int64_t pair, float *sums) {
    const struct heads *out[2] = {&pl->args->d_k, &pl->args->d_v};
    int64_t d = pl->a->head_dim, n_kv = pl->a->n_kv_head;
    for (int64_t s = 1; s < pl->n_split; s++)
        for (int64_t i = 0; i < sums_floats(pl); i += VF_LEN)
            vf_store(sums + i, vf_load(sums + i) + vf_load(sums + s * sums_floats(pl) + i));
    for (int which = 0; which < 2; which++)
        for (int64_t j = 0; j < pl->a->n_key; j++) {
            const float *from = sums + (which * pl->n_key + j) * pl->ld;
            int64_t at = head_at(out[which], pair / n_kv, j, pair % n_kv);
            if (pl->bf16)
                store_row(out[which]->data, at, from, d, 1, true);
            else
                store_row(out[which]->data, at, from, d, 1, false);
        }
}

static struct plan plan_backward(const struct attention_bwd_args *args, int64_t threads) {
    const struct attention_args *a = &args->fwd;
    struct plan pl = {.args = args,
                      .a = a,
                      .group = a->n_head / a->n_kv_head,
                      .n_pair = a->n_batch * a->n_kv_head,
                      .bf16 = a->dtype == DTYPE_BF16,
                      .kv_bf16 = a->kv_dtype == DTYPE_BF16};
    pl.block_queries = BLOCK_ROWS / pl.group > 1 ? BLOCK_ROWS / pl.group : 1;
    pl.block_queries = pl.block_queries < a->n_query ? pl.block_queries : a->n_query;
    pl.block_rows = (pl.block_queries * pl.group + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    pl.n_block = (a->n_query + pl.block_queries - 1) / pl.block_queries;
    pl.n_key = (a->n_key + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS;
    pl.ld = vectors(a->head_dim) * VF_LEN;
    pl.n_split = (2 * threads + pl.n_pair - 1) / pl.n_pair;
    pl.n_split = threads > 1 && pl.n_split < pl.n_block ? pl.n_split : threads > 1 ? pl.n_block : 1;
    return pl;
}

enum status ISA(attention_bwd)(struct backend *be, const struct attention_bwd_args *args) {
    const struct attention_args *a = &args->fwd;
    if (a->n_batch < 1 || a->n_query < 1 || a->n_key < 1)
        return STATUS_OK;
    int64_t threads = parallel_threads();
    struct plan pl = plan_backward(args, threads);
    int64_t n_item = pl.n_pair * pl.n_split, n_sums = pl.n_split > 1 ? n_item : threads;
    int64_t floats = n_sums * sums_floats(&pl) + threads * work_floats(&pl);
    float *sums;
    TRY(cpu_scratch(be, SCRATCH_OP, floats * (int64_t)sizeof(float), (void **)&sums));
    float *base = sums + n_sums * sums_floats(&pl);

#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t item = 0; item < n_item; item++) {
        int64_t pair = item / pl.n_split, mine = pl.n_split > 1 ? item : parallel_id();
        struct work w = work_at(&pl, base, parallel_id(), sums + mine * sums_floats(&pl));
        item_backward(&pl, pair, item % pl.n_split, &w);
        if (pl.n_split == 1)
            store_keys(&pl, pair, w.d_k);
    }
    if (pl.n_split == 1)
        return STATUS_OK;
#pragma omp parallel for schedule(static)
    for (int64_t pair = 0; pair < pl.n_pair; pair++)
        store_keys(&pl, pair, sums + pair * pl.n_split * sums_floats(&pl));
    return STATUS_OK;
}
