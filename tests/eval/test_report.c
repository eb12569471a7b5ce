/* The report: well-formed, complete, honest about what is missing or NaN, safe against its input.
 */
#include "core/file.h"
#include "core/json.h"
#include "eval/report.h"

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(expr)                                                                                   \
    do {                                                                                           \
        if ((expr) != STATUS_OK)                                                                   \
            fail_msg("%s", status_message());                                                      \
    } while (0)

static char folder[] = "/tmp/regroup-report-XXXXXX";
static int n_run;

static char *run_path(const char *name) {
    static char path[4][4096];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/run%d%s%s", folder, n_run, *name ? "/" : "", name);
    return path[turn];
}

static void new_run(void) {
    n_run++;
    OK(path_mkdirs(run_path("eval")));
}

static void put(const char *name, const char *text) {
    OK(file_write(run_path(name), text, (int64_t)strlen(text)));
}

/* An evaluation; values are JSON text, so "null" stands for NaN. */
static void put_eval(const char *name, const char *kv_bytes, const char *ppl, const char *nll,
                     int kv_heads) {
    char text[2048], file[256];
    snprintf(
        text, sizeof text,
        "{\"version\":\"1\",\"compute_dtype\":\"float32\",\"protocol\":{\"name\":\"rows\","
        "\"rule\":\"r\",\"window\":256,\"stride\":256},\"data\":{\"path\":\"a<b&c.u16\","
        "\"hash_fnv1a64\":\"00ff\",\"tokens_counted\":16320,\"windows\":64},"
        "\"environment\":{\"cpu\":\"an <odd> CPU\",\"memory_bytes\":2147483648},"
        "\"models\":[{\"model\":\"m\",\"attention\":\"GQA\",\"parameters\":260032,\"heads\":8,"
        "\"kv_heads\":%d,\"kv_cache\":{\"bytes_per_token_formula\":%s,"
        "\"bytes_per_token_allocated\":%s},\"perplexity\":{\"value\":%s,\"se\":0.01,\"nll\":%s,"
        "\"nll_se\":0.002},\"divergence\":{\"kl\":0.25,\"kl_se\":0.01,\"agreement\":0.765},"
        "\"speed\":[{\"context\":512,\"batch\":1,\"prefill_tokens_per_s\":{\"median\":12345,"
        "\"min\":12000,\"max\":13000},\"decode_tokens_per_s\":{\"median\":678,\"min\":600,"
        "\"max\":700}}]}]}",
        kv_heads, kv_bytes, kv_bytes, ppl, nll);
    snprintf(file, sizeof file, "eval/%s.json", name);
    put(file, text);
}

static void put_log(const char *id, const char *text) {
    char name[128];
    snprintf(name, sizeof name, "train/%s", id);
    OK(path_mkdirs(run_path(name)));
    snprintf(name, sizeof name, "train/%s/log.jsonl", id);
    put(name, text);
}

static char *load(const char *name) {
    struct text t = {0};
    OK(file_read(run_path(name), 0, &t));
    return t.data;
}

static bool name_char(char c) {
    return isalnum((unsigned char)c) || c == '-' || c == ':' || c == '_';
}

/* Well-formed as XML: tags nest, attributes are quoted and unique enough, entities are known, no
 * bare '<' or '&'. Returns what is wrong, or NULL. */
static const char *check_xml(const char *s, const char **where) {
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    char stack[64][16];
    int depth = 0;
    if (!strncmp(s, "<!DOCTYPE html>", 15))
        s += 15;
    for (; *s; s++) {
        *where = s;
        if (*s == '&') {
            bool known = false;
            for (int i = 0; i < 5; i++)
                known |= !strncmp(s, entities[i], strlen(entities[i]));
            if (!known)
                return "unknown entity";
        }
        if (*s != '<')
            continue;
        bool closing = s[1] == '/';
        char name[16];
        int n = 0;
        for (s += closing ? 2 : 1; name_char(*s); s++)
            if (n < 15)
                name[n++] = *s;
        name[n] = 0;
        if (!n)
            return "a tag without a name";
        if (closing) {
            if (*s != '>' || !depth || strcmp(stack[--depth], name))
                return "a closing tag that nothing opened";
            continue;
        }
        while (isspace((unsigned char)*s)) {
            while (isspace((unsigned char)*s))
                s++;
            if (!name_char(*s))
                break;
            while (name_char(*s))
                s++;
            if (s[0] != '=' || s[1] != '"')
                return "an attribute without a quoted value";
            for (s += 2; *s && *s != '"'; s++)
                if (*s == '<')
                    return "'<' in an attribute";
            s += *s == '"';
        }
        if (s[0] == '/' && s[1] == '>') {
            s++;
        } else if (*s == '>') {
            if (depth == 64)
                return "too deep";
            strcpy(stack[depth++], name);
        } else {
            return "a tag that does not end";
        }
    }
    return depth ? "an open tag at the end" : NULL;
}

static char *checked_html(void) {
    char *html = load("report.html");
    const char *where, *wrong = check_xml(html, &where);
    if (wrong)
        fail_msg("%s: %.80s", wrong, where);
    assert_null(strstr(html, "<script"));
    assert_null(strstr(html, "href"));
    assert_null(strstr(html, "url("));
    return html;
}

static void has(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("no '%s'", part);
}

static void the_checker_can_fail(void **state) {
    static const char *const bad[] = {"<a>",  "<a></b>", "<a b=c></a>", "a & b", "<a b=\"<\"></a>",
                                      "</a>", "<a",      "< a></a>"};
    const char *where;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!check_xml(bad[i], &where))
            fail_msg("'%s' passed", bad[i]);
    assert_null(check_xml("<!DOCTYPE html><a b=\"1\" c=\"&lt;\"><d/>x &amp; y</a>", &where));
}

static const char full_run[] =
    "{\"name\":\"a <b>bold</b> & \\\"quoted\\\" run\",\"source\":\"models/x\",\"created\":"
    "\"2026-01-02T03:04:05Z\",\"version\":\"9.8\",\"environment\":{\"cpu\":\"Chip & Co\"},"
    "\"config\":{\"steps\":123,\"text\":\"</pre><script>\"},\"variants\":["
    "{\"id\":\"mean-kv2\",\"kv_heads\":2,\"method\":\"mean\",\"converted\":\"c\",\"trained\":\"t\"}"
    ","
    "{\"id\":\"first<kv2>\",\"kv_heads\":2,\"method\":\"first\",\"converted\":\"c\","
    "\"trained\":null},"
    "{\"id\":\"mean-kv1\",\"kv_heads\":1,\"method\":\"mean\",\"converted\":\"c\",\"trained\":\"t\"}"
    ","
    "{\"id\":\"broken-kv4\",\"kv_heads\":4,\"method\":\"mean\",\"converted\":\"c\","
    "\"trained\":\"t\"}]}";

static void a_full_run(void **state) {
    (void)state;
    new_run();
    put("run.json", full_run);
    put_eval("teacher", "640", "3.6361", "1.29092", 8);
    put_eval("mean-kv2-converted", "160", "82.9", "4.418", 2);
    put_eval("mean-kv2-distilled", "160", "4.7162", "1.551", 2);
    put_eval("first<kv2>-converted", "160", "48.5", "3.88", 2);
    put_eval("broken-kv4-converted", "320", "null", "null", 4); /* NaN */
    put_eval("broken-kv4-distilled", "320", "null", "800", 4);  /* overflows: infinite */
    put_log("mean-kv2", "{\"step\":0,\"eval\":{\"nll\":4.418}}\n"
                        "{\"step\":1,\"loss\":3.1}\n{\"step\":2,\"loss\":2.5}\n"
                        "{\"step\":2,\"eval\":{\"nll\":9.9}}\n"
                        "{\"step\":2,\"loss\":2.0}\n" /* resumed: logged again */
                        "{\"step\":2,\"eval\":{\"nll\":1.551}}\n{\"step\":3,\"lo");
    OK(report_write(run_path(""), NULL));

    char *html = checked_html();
    has(html, "<h1>a &lt;b&gt;bold&lt;/b&gt; &amp; &quot;quoted&quot; run</h1>");
    assert_null(strstr(html, "<b>bold"));
    static const char *const parts[] = {
        "mean-kv2",
        "first&lt;kv2&gt;",
        "mean-kv1",
        "broken-kv4",
        "4×",
        "+29.7 %",
        "4.716",
        "NaN",
        "∞",
        "not measured yet",
        "Chip &amp; Co",
        "a&lt;b&amp;c.u16",
        "16,320",
        "12,345",
        "678",
        "&quot;steps&quot;:",
        "123",
        "held-out 4.418 → 1.551 in 2 steps",
        "9.8",
        "76.5 %",
        "Not drawn: broken-kv4 (converted), whose perplexity is NaN",
        "Not drawn: broken-kv4 (distilled), whose perplexity is ∞",
        "<title id=",
        "<desc id=",
        "prefers-color-scheme:dark",
        "class=\"wide\"",
        "class=\"narrow\""};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        has(html, parts[i]);
    memory_free(html);

    char *markdown = load("report.md");
    has(markdown, "| mean-kv2 | distilled ★ | GQA, 2 of 8 | 160 | 4.716");
    has(markdown, "first\\<kv2\\>");
    has(markdown, "| mean-kv1 | converted | not measured yet");
    has(markdown, "| broken-kv4 | converted | GQA, 4 of 8 | 320 | NaN");
    memory_free(markdown);

    struct json *j;
    OK(json_load(run_path("report.json"), &j));
    const struct json *v = json_first(json_get(j, "variants"));
    assert_int_equal(json_len(json_get(j, "variants")), 4);
    assert_true(fabs(json_number(json_get(json_get(v, "distilled_vs_source"), "perplexity_ratio")) -
                     4.7162 / 3.6361) < 1e-12);
    const struct json *held = json_get(json_get(v, "curve"), "held_out_nll");
    assert_int_equal(json_len(held), 2); /* the repeated step once, its later value */
    assert_true(json_number(json_next(json_first(json_next(json_first(held))))) == 1.551);
    assert_int_equal(json_len(json_get(json_get(v, "curve"), "training_loss")), 2);
    v = json_next(json_next(v));
    assert_true(json_is_null(json_get(v, "converted")));
    assert_int_equal(json_int(json_get(json_get(j, "config"), "steps")), 123);
    json_free(j);
}

/* Labels of the quality chart: no two rectangles overlap, all inside the picture. */
static void labels_do_not_collide(void **state) {
    (void)state;
    struct text run = {0};
    new_run();
    OK(text_puts(&run, "{\"name\":\"many\",\"variants\":["));
    for (int i = 0; i < 6; i++) {
        char id[32], name[64], ppl[32];
        snprintf(id, sizeof id, "%s-kv%d", i % 2 ? "first" : "mean", 4 >> i / 2);
        OK(text_printf(&run, "%s{\"id\":\"%s\",\"kv_heads\":%d,\"trained\":\"t\"}", i ? "," : "",
                       id, 4 >> i / 2));
        snprintf(name, sizeof name, "%s-converted", id);
        snprintf(ppl, sizeof ppl, "%g", 40.0 + 3 * i);
        put_eval(name, i < 2 ? "320" : i < 4 ? "160" : "80", ppl, "4", 4 >> i / 2);
        snprintf(name, sizeof name, "%s-distilled", id);
        snprintf(ppl, sizeof ppl, "%g", 4.0 + 0.2 * i);
        put_eval(name, i < 2 ? "320" : i < 4 ? "160" : "80", ppl, "1.4", 4 >> i / 2);
    }
    OK(text_puts(&run, "]}"));
    put("run.json", run.data);
    put_eval("teacher", "640", "3.6361", "1.29092", 8);
    OK(report_write(run_path(""), "A title"));
    char *html = checked_html();
    has(html, "<h1>A title</h1>");
    /* The frontier: the teacher and, at each cache size, the better of the two distilled. */
    struct json *j;
    OK(json_load(run_path("report.json"), &j));
    for (const struct json *v = json_first(json_get(j, "variants")); v; v = json_next(v)) {
        const struct json *trained = json_get(v, "distilled_vs_source");
        assert_true(json_is_bool(json_get(trained, "pareto")));
        assert_int_equal(json_true(json_get(trained, "pareto")),
                         !strncmp(json_string(json_get(v, "id")), "mean", 4));
        assert_false(json_true(json_get(json_get(v, "converted_vs_source"), "pareto")));
    }
    json_free(j);
    double x[64], y[64], w[64];
    int n = 0;
    char *end = strstr(html, "class=\"narrow\"");
    assert_non_null(end);
    for (char *at = html; (at = strstr(at, "<text class=\"mark\"")) && at < end && n < 64; at++) {
        assert_int_equal(sscanf(at, "<text class=\"mark\" x=\"%lf\" y=\"%lf\"", &x[n], &y[n]), 2);
        int letters = 0;
        bool in_tag = false;
        const char *last = strstr(at, "</text>");
        for (const char *c = at; c < last; c++) {
            in_tag |= *c == '<';
            letters += !in_tag;
            in_tag &= *c != '>';
        }
        w[n++] = 6.4 * letters;
    }
    assert_int_equal(n, 13);
    for (int i = 0; i < n; i++) {
        assert_true(x[i] >= 0 && x[i] + w[i] <= 888 && y[i] > 12 && y[i] < 420);
        for (int k = 0; k < i; k++)
            if (fabs(y[i] - y[k]) < 12 && x[i] < x[k] + w[k] && x[k] < x[i] + w[i])
                fail_msg("labels %d and %d overlap", k, i);
    }
    memory_free(html);
    text_free(&run);
}

static void an_empty_run_says_so(void **state) {
    (void)state;
    new_run();
    put("run.json", "{\"variants\":[{\"id\":\"mean-kv2\",\"trained\":\"t\"}]}");
    OK(report_write(run_path(""), NULL));
    char *html = checked_html();
    has(html, "Not measured yet");
    has(html, "mean-kv2");
    has(html, "<h1>run"); /* the folder's name */
    memory_free(html);
    put("run.json", "{\"variants\":[]}");
    OK(report_write(run_path(""), NULL));
    memory_free(checked_html());
}

static void a_training_folder_alone(void **state) {
    (void)state;
    new_run();
    put("log.jsonl", "{\"step\":0,\"eval\":{\"nll\":3.5}}\n{\"step\":1,\"loss\":3.25}\n"
                     "{\"step\":2,\"loss\":null}\n{\"step\":3,\"loss\":3}\n");
    OK(report_write(run_path(""), NULL));
    char *html = checked_html();
    has(html, "<path class=\"loss\"");
    assert_null(strstr(html, "nan"));
    memory_free(html);
}

static void refused(const char *message) {
    assert_int_equal(report_write(run_path(""), NULL), STATUS_FAILED);
    if (!strstr(status_message(), message))
        fail_msg("'%s' does not say '%s'", status_message(), message);
    assert_false(path_exists(run_path("report.html")));
}

static void bad_input_is_named(void **state) {
    (void)state;
    new_run();
    refused("neither run.json nor log.jsonl");
    put("run.json", "{\"variants\":[");
    refused("run.json");
    put("run.json", "[]");
    refused("expected an object");
    put("run.json", "{\"variants\":5}");
    refused("'variants'");
    put("run.json", "{\"variants\":[{\"id\":\"../x\"}]}");
    refused("'../x' cannot be a file's name");
    put("run.json", "{\"variants\":[{\"kv_heads\":2}]}");
    refused("id");
    put("run.json", "{\"variants\":[{\"id\":\"v\",\"trained\":\"t\"}]}");
    put("eval/v-converted.json", "{\"models\":[]}");
    refused("v-converted.json: expected an evaluation");
    put("eval/v-converted.json", "{");
    refused("v-converted.json");
    OK(dir_remove(run_path("eval")));
    put_log("v", "{\"step\":1,\"loss\":1}\n{\"step\":\n{\"step\":3,\"loss\":1}\n");
    refused("log.jsonl line 2");
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state) {
    (void)state;
    return dir_remove(folder) != STATUS_OK;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_checker_can_fail),    cmocka_unit_test(a_full_run),
        cmocka_unit_test(labels_do_not_collide),   cmocka_unit_test(an_empty_run_says_so),
        cmocka_unit_test(a_training_folder_alone), cmocka_unit_test(bad_input_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
