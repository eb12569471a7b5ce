/* Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
#include "core/utf8.h"

#include <string.h>

int64_t utf8_find_invalid(const char *text, int64_t n) {
    const unsigned char *p = (const unsigned char *)text;
    int64_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= 8 && (memcpy(&eight, p + i, 8), !(eight & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        unsigned char c = p[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        int length = c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 : 4;
        if (c < 0xc2 || c > 0xf4 || length > n - i)
            return i;
        unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
        unsigned char high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        if (p[i + 1] < low || p[i + 1] > high)
            return i;
        for (int k = 2; k < length; k++)
            if ((p[i + k] & 0xc0) != 0x80)
                return i;
        i += length;
    }
    return -1;
}
