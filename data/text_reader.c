/* Documents out of text files: .jsonl has one a line, any other name is one; gzip with .gz. */
#include "core/file.h"
#include "core/json.h"
#include "core/utf8.h"
#include "data/tokens.h"

#include <string.h>
#include <zlib.h>

struct text_reader {
    char *path;
    gzFile file;
    bool json_lines, gzip, done;
    int64_t line, n_document;
    struct text buffer; /* read from the file, from `start` on not yet used */
    int64_t start;
    struct json *document; /* of the current line */
    struct text where;     /* "file line 12" */
    struct arena arena;    /* path */
};

static bool ends_with(const char *name, int64_t n, const char *tail) {
    int64_t n_tail = (int64_t)strlen(tail);
    return n >= n_tail && memcmp(name + n - n_tail, tail, (size_t)n_tail) == 0;
}

enum status text_reader_open(const char *path, struct text_reader **out) {
    struct text_reader *r;
    int64_t n = (int64_t)strlen(path);
    *out = NULL;
    bool gzip = ends_with(path, n, ".gz");
    n -= gzip ? 3 : 0;
    bool json_lines = ends_with(path, n, ".jsonl");
    if (path_is_dir(path))
        return status_fail(STATUS_FAILED, "%s: a folder; expected a text file", path);
    TRY(memory_alloc(1, (int64_t)sizeof *r, "text reader", &r));
    r->gzip = gzip;
    r->json_lines = json_lines;
    enum status status = arena_strdup(&r->arena, path, &r->path);
    if (status == STATUS_OK) {
        r->file = gzopen(path, "rbe");
        if (!r->file)
            status = status_errno("cannot open %s", path);
        else if (!!gzdirect(r->file) == gzip)
            status = status_fail(STATUS_FAILED,
                                 gzip ? "%s: named .gz, but not gzip data"
                                      : "%s: gzip data, but not named .gz",
                                 path);
    }
    if (status != STATUS_OK)
        text_reader_close(r);
    else
        *out = r;
    return status;
}

void text_reader_close(struct text_reader *r) {
    if (!r)
        return;
    if (r->file)
        (void)gzclose(r->file);
    json_free(r->document);
    text_free(&r->buffer);
    text_free(&r->where);
    arena_free(&r->arena);
    memory_free(r);
}

/* More of the file behind the buffer's content; sets r->done at the end. */
static enum status read_more(struct text_reader *r) {
    char chunk[1 << 16];
    int got = gzread(r->file, chunk, sizeof chunk);
    int error = Z_OK;
    const char *detail = gzerror(r->file, &error);
    if (got < 0 || error != Z_OK) {
        if (error == Z_ERRNO)
            return status_errno("cannot read %s", r->path);
        if (error == Z_BUF_ERROR)
            return status_fail(STATUS_FAILED,
                               "%s: the gzip data ends early, after %lld bytes of text: was the "
                               "download cut?",
                               r->path, (long long)gztell(r->file));
        return status_fail(STATUS_FAILED, "%s: damaged gzip data: %s", r->path, detail);
    }
    r->done = got == 0;
    return text_add(&r->buffer, chunk, got);
}

static enum status next_whole(struct text_reader *r, const char **text, int64_t *n) {
    if (r->done)
        return STATUS_OK;
    while (!r->done)
        TRY(read_more(r));
    if (r->buffer.n == 0)
        return status_fail(STATUS_FAILED, "%s: empty; expected text", r->path);
    int64_t bad = utf8_find_invalid(r->buffer.data, r->buffer.n);
    if (bad >= 0) {
        int64_t line = 1;
        for (int64_t i = 0; i < bad; i++)
            line += r->buffer.data[i] == '\n';
        return status_fail(STATUS_FAILED,
                           "%s: invalid UTF-8 at byte %lld (line %lld): convert the file to UTF-8",
                           r->path, (long long)bad, (long long)line);
    }
    *text = r->buffer.data;
    *n = r->buffer.n;
    return STATUS_OK;
}

/* The next line without its end; *n = -1 at the end of the file. */
static enum status next_line(struct text_reader *r, const char **line, int64_t *n) {
    int64_t searched = r->start;
    for (;;) {
        const char *newline = r->buffer.n > searched ? memchr(r->buffer.data + searched, '\n',
                                                              (size_t)(r->buffer.n - searched))
                                                     : NULL;
        if (newline || (r->done && r->buffer.n > r->start)) {
            *line = r->buffer.data + r->start;
            *n = (newline ? newline : r->buffer.data + r->buffer.n) - *line;
            r->start += *n + (newline != NULL);
            r->line++;
            return STATUS_OK;
        }
        *n = -1;
        if (r->done)
            return STATUS_OK;
        if (r->start) { /* what was used makes room */
            memmove(r->buffer.data, r->buffer.data + r->start, (size_t)(r->buffer.n - r->start));
            r->buffer.n -= r->start;
            r->start = 0;
        }
        searched = r->buffer.n;
        TRY(read_more(r));
    }
}

/* A \u0000 would end the string early. */
static bool escapes_nul(const char *line, int64_t n) {
    for (int64_t i = 0; i + 5 < n; i++) {
        if (line[i] != '\\')
            continue;
        if (memcmp(line + i + 1, "u0000", 5) == 0)
            return true;
        i++;
    }
    return false;
}

static enum status next_json(struct text_reader *r, const char **text, int64_t *n) {
    const char *line;
    do {
        TRY(next_line(r, &line, n));
        if (*n < 0)
            return r->n_document ? STATUS_OK
                                 : status_fail(STATUS_FAILED,
                                               "%s: empty; expected on each line a JSON object "
                                               "with the field \"text\"",
                                               r->path);
    } while ((int64_t)strspn(line, " \t\r\n") >= *n);
    r->where.n = 0;
    TRY(text_printf(&r->where, "%s line %lld", r->path, (long long)r->line));
    int64_t bad = utf8_find_invalid(line, *n);
    if (bad >= 0)
        return status_fail(STATUS_FAILED, "%s: invalid UTF-8 at its byte %lld", r->where.data,
                           (long long)bad);
    if (escapes_nul(line, *n))
        return status_fail(STATUS_FAILED, "%s: \\u0000 in text is not supported: remove it",
                           r->where.data);
    json_free(r->document);
    r->document = NULL;
    TRY(json_parse(line, *n, r->where.data, &r->document));
    if (!json_is_object(r->document))
        return status_fail(STATUS_FAILED, "%s: expected a JSON object with the field \"text\"",
                           r->where.data);
    TRY(json_need_string(r->document, r->where.data, "text", text));
    *n = (int64_t)strlen(*text);
    r->n_document++;
    return STATUS_OK;
}

enum status text_reader_next(struct text_reader *r, const char **text, int64_t *n) {
    *text = NULL;
    *n = -1;
    return r->json_lines ? next_json(r, text, n) : next_whole(r, text, n);
}
