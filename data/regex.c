/* PCRE2 with Unicode properties. The classes whose meaning differs between the two engines are
 * spelled out: \s is White_Space, \w is letters, marks, digits and connectors, and
 * the numbers of Latin-1. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/regex.h"

#include "core/memory.h"
#include "core/text.h"

#include <ctype.h>
#include <pcre2.h>
#include <string.h>

struct regex {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static const char WORD[] =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

/* One escape of the pattern, p at the backslash; what it becomes goes to `out`. */
static enum status translate_escape(const char **p, bool in_class, const char *what,
                                    struct text *out) {
    char c = (*p)[1];
    *p += c ? 2 : 1;
    switch (c) {
    case 's':
        return text_puts(out, "\\p{White_Space}");
    case 'S':
        return text_puts(out, "\\P{White_Space}");
    case 'w':
        return text_printf(out, in_class ? "%s" : "[%s]", WORD);
    case 'W':
        if (!in_class)
            return text_printf(out, "[^%s]", WORD);
        break;
    case 'u': /* \uHHHH */
        for (int k = 0; k < 4; k++)
            if (!isxdigit((unsigned char)(*p)[k]))
                return status_fail(STATUS_FAILED, "%s: regex: \\u without four hex digits", what);
        TRY(text_printf(out, "\\x{%.4s}", *p));
        *p += 4;
        return STATUS_OK;
    case 'x':
        if (**p == '{')
            return text_puts(out, "\\x");
        break;
    case 'p':
    case 'P':
    case 'd':
    case 'D':
    case 'n':
    case 'r':
    case 't':
    case 'f':
        return text_printf(out, "\\%c", c);
    case 'A':
    case 'z':
    case 'Z':
        if (!in_class)
            return text_printf(out, "\\%c", c);
        break;
    default:
        if (c && !isalnum((unsigned char)c)) /* an escaped sign, or the first byte of one */
            return text_printf(out, (unsigned char)c < 0x80 ? "\\%c" : "%c", c);
    }
    return status_fail(STATUS_FAILED, "%s: regex escape \\%c%s is not supported", what, c ? c : ' ',
                       in_class ? " in a class" : "");
}

/* "(?m" lets the dot match a line's end there, and is something else here. */
static bool sets_multiline(const char *p) {
    if (strncmp(p, "(?", 2) != 0)
        return false;
    for (p += 2; isalpha((unsigned char)*p); p++)
        if (*p == 'm')
            return true;
    return false;
}

static enum status translate(const char *p, const char *what, struct text *out) {
    bool in_class = false;
    while (*p) {
        if (*p == '\\') {
            TRY(translate_escape(&p, in_class, what, out));
            continue;
        }
        if (in_class && (*p == '[' || strncmp(p, "&&", 2) == 0))
            return status_fail(STATUS_FAILED,
                               "%s: regex: classes within classes and && are not supported", what);
        if (!in_class && (strncmp(p, "(*", 2) == 0 || sets_multiline(p)))
            return status_fail(STATUS_FAILED, "%s: regex: \"%.3s\" is not supported", what, p);
        if (*p == '[' && !in_class) {
            in_class = true;
            int64_t head = p[1] == '^' ? 2 : 1;
            TRY(text_add(out, p, head));
            p += head;
            if (*p == ']') { /* a literal there, in both */
                TRY(text_puts(out, "\\]"));
                p++;
            }
            continue;
        }
        if (*p == ']')
            in_class = false;
        TRY(text_add(out, p++, 1));
    }
    return STATUS_OK;
}

enum status regex_compile(const char *pattern, bool literal, const char *what, struct regex **out) {
    enum status status;
    struct regex *r = NULL;
    struct text text = {0};
    *out = NULL;
    TRY_OUT(memory_alloc(1, (int64_t)sizeof *r, "regex", &r));
    TRY_OUT(literal ? text_puts(&text, pattern) : translate(pattern, what, &text));
    int error = 0;
    PCRE2_SIZE offset = 0;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | (literal ? PCRE2_LITERAL : PCRE2_MULTILINE);
    if (literal)
        options &= ~(uint32_t)PCRE2_UCP;
    r->code = pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), (PCRE2_SIZE)text.n, options,
                            &error, &offset, NULL);
    if (!r->code) {
        char detail[128];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)detail, sizeof detail);
        status =
            status_fail(STATUS_FAILED, "%s: regex \"%s\" is not valid: %s", what, pattern, detail);
        goto out;
    }
    uint32_t may_be_empty = 0;
    (void)pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty || text.n == 0) {
        status = status_fail(STATUS_FAILED,
                             "%s: regex \"%s\" can match nothing, which is not "
                             "supported",
                             what, pattern);
        goto out;
    }
    (void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* only speed is lost without it */
    r->match = pcre2_match_data_create(1, NULL);
    r->context = pcre2_match_context_create(NULL);
    r->stack = pcre2_jit_stack_create(32 * 1024, 16 * 1024 * 1024, NULL);
    if (!r->match || !r->context || !r->stack) {
        status = status_nomem("regex", 64 * 1024);
        goto out;
    }
    pcre2_jit_stack_assign(r->context, NULL, r->stack);
    *out = r;
    r = NULL;
out:
    text_free(&text);
    regex_free(r);
    return status;
}

void regex_free(struct regex *r) {
    if (!r)
        return;
    pcre2_code_free(r->code);
    pcre2_match_data_free(r->match);
    pcre2_match_context_free(r->context);
    pcre2_jit_stack_free(r->stack);
    memory_free(r);
}

enum status regex_next(struct regex *r, const char *text, int64_t n, int64_t from, int64_t *start,
                       int64_t *end) {
    int rc = pcre2_match(r->code, (PCRE2_SPTR)text, (PCRE2_SIZE)n, (PCRE2_SIZE)from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, r->match, r->context);
    *start = *end = -1;
    if (rc == PCRE2_ERROR_NOMATCH)
        return STATUS_OK;
    if (rc < 0) {
        char detail[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)detail, sizeof detail);
        return status_fail(STATUS_FAILED, "splitting the text near byte %lld failed: %s",
                           (long long)from, detail);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(r->match);
    *start = (int64_t)span[0];
    *end = (int64_t)span[1];
    return STATUS_OK;
}
