/* Open addressing with linear probing, at most half full. */
#include "data/vocab.h"

#include <string.h>

static uint64_t mix(uint64_t a, uint64_t b) {
    __uint128_t p = (__uint128_t)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

uint64_t vocab_hash(const char *bytes, int64_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ (uint64_t)n, last = 0;
    for (; n >= 8; n -= 8, bytes += 8) {
        uint64_t eight;
        memcpy(&eight, bytes, 8);
        h = mix(h ^ eight, 0xd6e8feb86659fd93u);
    }
    if (n)
        memcpy(&last, bytes, (size_t)n);
    h = mix(h ^ last, 0xa0761d6478bd642fu);
    return h ? h : 1;
}

static struct vocab_slot *slot_of(const struct vocab *v, uint64_t hash, const char *bytes,
                                  int64_t n) {
    uint64_t mask = (uint64_t)v->n_slot - 1;
    for (uint64_t i = hash & mask;; i = (i + 1) & mask) {
        struct vocab_slot *s = &v->slots[i];
        if (!s->hash || (s->hash == hash && s->n == n &&
                         memcmp(v->bytes.data + s->offset, bytes, (size_t)n) == 0))
            return s;
    }
}

static enum status vocab_rehash(struct vocab *v) {
    int64_t n_slot = v->n_slot ? v->n_slot * 2 : 1024;
    struct vocab_slot *fresh;
    TRY(memory_alloc(n_slot, (int64_t)sizeof *fresh, "vocabulary", &fresh));
    for (int64_t k = 0; k < v->n_slot; k++) {
        if (!v->slots[k].hash)
            continue;
        uint64_t i = v->slots[k].hash & (uint64_t)(n_slot - 1);
        while (fresh[i].hash)
            i = (i + 1) & (uint64_t)(n_slot - 1);
        fresh[i] = v->slots[k];
    }
    memory_free(v->slots);
    v->slots = fresh;
    v->n_slot = n_slot;
    return STATUS_OK;
}

enum status vocab_name(struct vocab *v, const char *bytes, int64_t n, int32_t id) {
    TRY(memory_grow(&v->tokens, &v->id_capacity, (int64_t)id + 1, (int64_t)sizeof *v->tokens,
                    "vocabulary"));
    for (; v->n_id <= id; v->n_id++)
        v->tokens[v->n_id].n = -1;
    v->tokens[id] = (struct vocab_token){v->bytes.n, (int32_t)n};
    return text_add(&v->bytes, bytes, n);
}

enum status vocab_add(struct vocab *v, const char *bytes, int64_t n, int32_t id, bool *duplicate) {
    *duplicate = vocab_find(v, bytes, n) >= 0;
    if (*duplicate)
        return STATUS_OK;
    if (v->n_used * 2 >= v->n_slot)
        TRY(vocab_rehash(v));
    TRY(vocab_name(v, bytes, n, id));
    uint64_t hash = vocab_hash(bytes, n);
    *slot_of(v, hash, bytes, n) = (struct vocab_slot){hash, v->tokens[id].offset, (int32_t)n, id};
    v->n_used++;
    return STATUS_OK;
}

int32_t vocab_find(const struct vocab *v, const char *bytes, int64_t n) {
    if (!v->n_slot)
        return -1;
    const struct vocab_slot *s = slot_of(v, vocab_hash(bytes, n), bytes, n);
    return s->hash ? s->id : -1;
}

const char *vocab_bytes(const struct vocab *v, int32_t id, int64_t *n) {
    *n = id >= 0 && id < v->n_id ? v->tokens[id].n : -1;
    return *n < 0 ? NULL : v->bytes.data + v->tokens[id].offset;
}

void vocab_free(struct vocab *v) {
    text_free(&v->bytes);
    memory_free(v->tokens);
    memory_free(v->slots);
    *v = (struct vocab){0};
}

static struct pair_slot *pair_slot_of(struct pair_slot *slots, int64_t n_slot, uint64_t key) {
    uint64_t mask = (uint64_t)n_slot - 1;
    uint64_t i = mix(key, 0x9e3779b97f4a7c15u) & mask;
    while (slots[i].key && slots[i].key != key)
        i = (i + 1) & mask;
    return &slots[i];
}

static uint64_t pair_key(uint32_t a, uint32_t b) {
    return ((uint64_t)a + 1) << 32 | b;
}

enum status pair_map_put(struct pair_map *m, uint32_t a, uint32_t b, int32_t rank, int32_t id) {
    if (m->n_used * 2 >= m->n_slot) {
        int64_t n_slot = m->n_slot ? m->n_slot * 2 : 1024;
        struct pair_slot *fresh;
        TRY(memory_alloc(n_slot, (int64_t)sizeof *fresh, "merges", &fresh));
        for (int64_t k = 0; k < m->n_slot; k++)
            if (m->slots[k].key)
                *pair_slot_of(fresh, n_slot, m->slots[k].key) = m->slots[k];
        memory_free(m->slots);
        m->slots = fresh;
        m->n_slot = n_slot;
    }
    struct pair_slot *s = pair_slot_of(m->slots, m->n_slot, pair_key(a, b));
    m->n_used += !s->key;
    *s = (struct pair_slot){pair_key(a, b), rank, id};
    return STATUS_OK;
}

const struct pair_slot *pair_map_find(const struct pair_map *m, uint32_t a, uint32_t b) {
    if (!m->n_slot)
        return NULL;
    const struct pair_slot *s = pair_slot_of(m->slots, m->n_slot, pair_key(a, b));
    return s->key ? s : NULL;
}

void pair_map_free(struct pair_map *m) {
    memory_free(m->slots);
    *m = (struct pair_map){0};
}

enum status trie_add(struct trie *t, const char *bytes, int64_t n, int32_t value) {
    int32_t node = 0;
    for (int64_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        int32_t first = i ? t->nodes[node].child : t->root[byte], k = first;
        while (k && t->nodes[k].byte != byte)
            k = t->nodes[k].sibling;
        if (!k) {
            TRY(memory_grow(&t->nodes, &t->capacity, t->n + 2, (int64_t)sizeof *t->nodes,
                            "special tokens"));
            t->n += !t->n; /* node 0 stands for "none" */
            k = (int32_t)t->n++;
            t->nodes[k] = (struct trie_node){0, first, -1, byte};
            if (i)
                t->nodes[node].child = k;
            else
                t->root[byte] = k;
        }
        node = k;
    }
    if (node)
        t->nodes[node].value = value;
    return STATUS_OK;
}

int32_t trie_longest(const struct trie *t, const char *text, int64_t n, int64_t *length) {
    int32_t value = -1;
    int32_t node = n ? t->root[(unsigned char)text[0]] : 0;
    for (int64_t i = 0; node;) {
        if (t->nodes[node].value >= 0) {
            value = t->nodes[node].value;
            *length = i + 1;
        }
        if (++i == n)
            break;
        node = t->nodes[node].child;
        while (node && t->nodes[node].byte != (unsigned char)text[i])
            node = t->nodes[node].sibling;
    }
    return value;
}

void trie_free(struct trie *t) {
    memory_free(t->nodes);
    *t = (struct trie){0};
}
