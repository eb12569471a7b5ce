/* UTF-8: validation once at the edge, cheap stepping afterwards. */
#ifndef REGROUP_CORE_UTF8_H
#define REGROUP_CORE_UTF8_H

#include <stdint.h>

/* Offset of the first byte that is not well-formed UTF-8 (Unicode's table 3-7); -1 if none. */
int64_t utf8_find_invalid(const char *text, int64_t n);

/* Bytes of the character that starts with `lead`; for text that was checked. */
static inline int utf8_length(char lead) {
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* The code point at p, in text that was checked. */
static inline uint32_t utf8_code(const char *p) {
    const unsigned char *c = (const unsigned char *)p;
    switch (utf8_length(*p)) {
    case 1:
        return c[0];
    case 2:
        return (uint32_t)(c[0] & 0x1f) << 6 | (c[1] & 0x3f);
    case 3:
        return (uint32_t)(c[0] & 0x0f) << 12 | (uint32_t)(c[1] & 0x3f) << 6 | (c[2] & 0x3f);
    default:
        return (uint32_t)(c[0] & 0x07) << 18 | (uint32_t)(c[1] & 0x3f) << 12 |
               (uint32_t)(c[2] & 0x3f) << 6 | (c[3] & 0x3f);
    }
}

/* The code point that ends just before `end`. */
static inline uint32_t utf8_last_code(const char *start, const char *end) {
    const char *p = end - 1;
    while (p > start && ((unsigned char)*p & 0xc0) == 0x80)
        p--;
    return utf8_code(p);
}

#endif
