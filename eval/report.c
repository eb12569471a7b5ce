/* Load once, write three files; report.html last, so its presence means all are there. */
#include "eval/report.h"

#include "core/file.h"
#include "eval/report_data.h"

enum status report_write(const char *dir, const char *title) {
    struct report r;
    TRY(report_load(dir, title, &r));
    struct text html = {0}, markdown = {0};
    struct json *j = report_json(&r);
    char *path;
    enum status status;
    TRY_OUT(report_html(&r, &html));
    TRY_OUT(report_markdown(&r, &markdown));
    TRY_OUT(path_join(&r.arena, dir, "report.json", &path));
    TRY_OUT(json_save(j, path));
    TRY_OUT(path_join(&r.arena, dir, "report.md", &path));
    TRY_OUT(file_write(path, markdown.data, markdown.n));
    TRY_OUT(path_join(&r.arena, dir, "report.html", &path));
    TRY_OUT(file_write(path, html.data, html.n));
out:
    json_free(j);
    text_free(&html);
    text_free(&markdown);
    report_free(&r);
    return status;
}
