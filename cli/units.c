/* Sizes as people read and write them. */
#include "cli/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit_text unit_bytes(int64_t n) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    struct unit_text t;
    double v = (double)n;
    int u = 0;
    while (v >= 1024 && u < 6) {
        v /= 1024;
        u++;
    }
    snprintf(t.s, sizeof t.s, "%.*f %s", u == 0 || v >= 100 ? 0 : v >= 10 ? 1 : 2, v, units[u]);
    return t;
}

struct unit_text unit_count(int64_t n) {
    struct unit_text t;
    char digits[32];
    int len = snprintf(digits, sizeof digits, "%lld", (long long)n), out = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0 && digits[i - 1] != '-')
            t.s[out++] = ',';
        t.s[out++] = digits[i];
    }
    t.s[out] = 0;
    return t;
}

enum status unit_parse_bytes(const char *text, const char *option, int64_t *out) {
    static const struct {
        const char *suffix;
        double scale;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"KB", 1e3},
                 {"MB", 1e6},
                 {"GB", 1e9},
                 {"TB", 1e12},
                 {"KiB", 1024},
                 {"MiB", 1048576},
                 {"GiB", 1073741824.0},
                 {"TiB", 1099511627776.0}};
    char *end;
    double v = strtod(text, &end);
    while (*end == ' ')
        end++;
    for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++)
        if (!strcasecmp(end, units[i].suffix) && v * units[i].scale >= 1 &&
            v * units[i].scale < 9e18) {
            *out = (int64_t)(v * units[i].scale);
            return STATUS_OK;
        }
    return status_fail(STATUS_USAGE,
                       "option '%s': expected a size such as 5GB or 500MiB, found '%s'", option,
                       text);
}

enum status unit_parse_percent(const char *text, const char *option, double *out) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || strcmp(end, "%") || !(v > 0 && v <= 100))
        return status_fail(
            STATUS_USAGE,
            "option '%s': expected a share above 0%%, up to 100%%, such as 25%%, found '%s'",
            option, text);
    *out = v / 100;
    return STATUS_OK;
}
