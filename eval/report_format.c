/* Numbers as people read them, and text that is safe inside HTML and SVG. */
#include "eval/report_data.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static int decimals(double v) {
    v = fabs(v);
    return v < 0.1 ? 4 : v < 10 ? 3 : v < 100 ? 2 : v < 1000 ? 1 : 0;
}

struct report_label report_number(double v) {
    struct report_label l;
    if (isnan(v))
        strcpy(l.s, "NaN");
    else if (isinf(v))
        strcpy(l.s, v < 0 ? "−∞" : "∞");
    else if (fabs(v) >= 1e5)
        snprintf(l.s, sizeof l.s, "%.2g", v);
    else
        snprintf(l.s, sizeof l.s, "%.*f", decimals(v), v);
    return l;
}

struct report_label report_with_error(double v, double se) {
    struct report_label l = report_number(v);
    size_t n = strlen(l.s);
    if (v == 0 && se == 0) /* exactly, e.g. KL to itself */
        return (struct report_label){"0"};
    if (isfinite(v) && isfinite(se) && fabs(v) < 1e5)
        snprintf(l.s + n, sizeof l.s - n, "\u00a0±\u00a0%.*f", decimals(v), se);
    return l;
}

struct report_label report_bytes(double n) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct report_label l;
    int u = 0;
    if (!isfinite(n)) {
        strcpy(l.s, "?");
        return l;
    }
    for (; n >= 1024 && u < 4; u++)
        n /= 1024;
    snprintf(l.s, sizeof l.s, "%.*f %s", n == floor(n) ? 0 : n < 10 ? 2 : 1, n, units[u]);
    return l;
}

struct report_label report_count(double n) {
    struct report_label l;
    char digits[48];
    if (!isfinite(n))
        return report_number(n);
    snprintf(digits, sizeof digits, "%.0f", fmin(fabs(n), 1e18));
    int length = (int)strlen(digits), at = 0;
    if (n < 0)
        l.s[at++] = '-';
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            l.s[at++] = ',';
        l.s[at++] = digits[i];
    }
    l.s[at] = 0;
    return l;
}

struct report_label report_percent(double ratio) {
    struct report_label l;
    double p = 100 * (ratio - 1);
    if (!isfinite(p))
        return report_number(p);
    snprintf(l.s, sizeof l.s, "%s%.*f %%", p < 0 ? "−" : "+", fabs(p) < 100 ? 1 : 0, fabs(p));
    return l;
}

struct report_label report_factor(double ratio) {
    struct report_label l;
    if (!isfinite(ratio))
        return report_number(ratio);
    snprintf(l.s, sizeof l.s, "%.*f×", fabs(ratio - round(ratio)) < 0.005 ? 0 : 2, ratio);
    return l;
}

struct report_label report_heads(const struct report_point *p) {
    struct report_label l;
    if (p->kv_least && p->kv_least < p->kv_heads && p->heads)
        snprintf(l.s, sizeof l.s, "%.16s, %d-%d of %d", p->attention ? p->attention : "?",
                 (int)p->kv_least, (int)p->kv_heads, (int)p->heads);
    else if (p->kv_heads && p->heads)
        snprintf(l.s, sizeof l.s, "%.16s, %" PRId64 " of %" PRId64,
                 p->attention ? p->attention : "?", p->kv_heads, p->heads);
    else if (p->kv_heads)
        snprintf(l.s, sizeof l.s, "%" PRId64, p->kv_heads);
    else
        snprintf(l.s, sizeof l.s, "%.16s, per layer", p->attention ? p->attention : "?");
    return l;
}

/* Length of the UTF-8 character at s, 0 if there is none that XML allows. */
static int character(const unsigned char *s) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    int n = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    uint32_t c = n == 1 ? s[0] : s[0] & (0x7fu >> n);
    if (s[0] > 0xf4 || (s[0] >= 0x80 && s[0] < 0xc2))
        return 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    bool control = c < 0x20 && c != '\t' && c != '\n' && c != '\r';
    bool not_text = (c >= 0xd800 && c < 0xe000) || c == 0xfffe || c == 0xffff || c > 0x10ffff;
    return control || not_text || c < least[n] ? 0 : n;
}

enum status report_escape(struct text *out, const char *s) {
    while (*s) {
        int n = character((const unsigned char *)s);
        const char *entity = *s == '&'    ? "&amp;"
                             : *s == '<'  ? "&lt;"
                             : *s == '>'  ? "&gt;"
                             : *s == '"'  ? "&quot;"
                             : *s == '\'' ? "&#39;"
                                          : NULL;
        if (!n)
            TRY(text_puts(out, "\xef\xbf\xbd"));
        else if (entity)
            TRY(text_puts(out, entity));
        else
            TRY(text_add(out, s, n));
        s += n ? n : 1;
    }
    return STATUS_OK;
}
