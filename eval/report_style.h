/* The report's style sheet: one column for text and charts, light, dark and paper from the same
 * class names. No fonts or scripts are fetched. */
#ifndef REGROUP_EVAL_REPORT_STYLE_H
#define REGROUP_EVAL_REPORT_STYLE_H

#define REPORT_PALETTE_LIGHT                                                                       \
    "--paper:#fff;--card:#f6f7f9;--ink:#1b2230;--muted:#5a6475;--rule:#dde1e8;"                    \
    "--after:#1f6feb;--before:#c4560f;--base:#3c4454;"
#define REPORT_PALETTE_DARK                                                                        \
    "--paper:#12151b;--card:#1a1f28;--ink:#e7eaf0;--muted:#9aa4b5;--rule:#2c3340;"                 \
    "--after:#6ea8ff;--before:#ff9a56;--base:#c3cad6;"

#define REPORT_STYLE                                                                               \
    ":root{color-scheme:light dark;" REPORT_PALETTE_LIGHT "}\n"                                    \
    "@media (prefers-color-scheme:dark){:root{" REPORT_PALETTE_DARK "}}\n"                         \
    "@media print{:root{color-scheme:light;" REPORT_PALETTE_LIGHT "}}\n"                           \
    "*{box-sizing:border-box}\n"                                                                   \
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-"      \
    "system,\"Segoe UI\",\"Liberation Sans\",\"DejaVu Sans\",sans-serif;"                          \
    "font-variant-numeric:tabular-nums}\n"                                                         \
    "main{max-width:59rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}\n"                            \
    "h1{font-size:1.9rem;line-height:1.2;margin:0;letter-spacing:-.015em;overflow-wrap:anywhere}"  \
    "\n"                                                                                           \
    "h2{font-size:1.2rem;margin:3rem 0 .35rem;letter-spacing:-.005em}\n"                           \
    "h3{font-size:.95rem;margin:0 0 .2rem;overflow-wrap:anywhere}\n"                               \
    "p{margin:.35rem 0 .8rem}.muted{color:var(--muted)}.small{font-size:.86rem}\n"                 \
    ".lead{font-size:1.2rem;line-height:1.5;margin:1.1rem 0 0;max-width:44rem}\n"                  \
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(19rem,100%),1fr));gap:"  \
    "1rem;"                                                                                        \
    "margin:1.6rem 0 0}\n"                                                                         \
    ".card{background:var(--card);border-radius:.6rem;padding:1rem 1.15rem 1.1rem;"                \
    "break-inside:avoid}\n"                                                                        \
    ".card h3{color:var(--muted);font-weight:500}\n"                                               \
    ".pair{display:grid;grid-template-columns:1fr 1fr;gap:.75rem}\n"                               \
    ".big{font-size:1.65rem;font-weight:650;line-height:1.2;letter-spacing:-.02em;display:block;"  \
    "white-space:nowrap}"                                                                          \
    "\n"                                                                                           \
    ".grid p{margin:0 0 .3rem}.pair .small{display:block;color:var(--muted);line-height:1.35}\n"   \
    ".grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(19rem,100%),1fr));"       \
    "gap:1.5rem 2rem;margin-top:1rem}.grid>*{break-inside:avoid;min-width:0}\n"                    \
    "svg{display:block;width:100%;height:auto;font:12px system-ui,-apple-system,\"Segoe UI\","     \
    "\"Liberation Sans\",\"DejaVu Sans\",sans-serif;font-variant-numeric:tabular-nums}\n"          \
    "svg.narrow{display:none}svg.curve,svg.speed{max-width:34rem}\n"                               \
    "@media (max-width:560px){svg.wide{display:none}svg.narrow{display:block}}\n"                  \
    "@media print{svg.wide{display:block}svg.narrow{display:none}}\n"                              \
    "text{fill:var(--ink)}.tick{fill:var(--muted)}.name{fill:var(--muted);font-weight:600}\n"      \
    ".mark{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}\n"       \
    ".value{font-weight:650}\n"                                                                    \
    "line.grid{stroke:var(--rule);stroke-width:1}.axis{stroke:var(--muted)}\n"                     \
    ".teacher-line{stroke:var(--base);stroke-width:1.25;stroke-dasharray:5 4}\n"                   \
    ".teacher-mark{fill:var(--base)}\n"                                                            \
    ".converted{fill:var(--paper);stroke:var(--before);stroke-width:2.25}\n"                       \
    ".frontier{stroke:var(--after);stroke-width:1.5;opacity:.45;fill:none}\n"                      \
    ".distilled{fill:var(--after);stroke:var(--paper);stroke-width:1.5}\n"                         \
    ".gain{stroke:var(--muted);stroke-width:1.25;stroke-dasharray:1.5 3.5;stroke-linecap:round}\n" \
    ".leader{stroke:var(--muted);stroke-width:.75}.error{stroke:var(--ink);stroke-width:1.25}\n"   \
    ".loss{fill:none;stroke:var(--before);stroke-width:1.25;opacity:.85}\n"                        \
    ".held{fill:none;stroke:var(--after);stroke-width:2.25;stroke-linejoin:round}\n"               \
    ".held-mark{fill:var(--after)}\n"                                                              \
    ".bar{fill:var(--after)}.bar-teacher{fill:var(--base)}\n"                                      \
    ".whisker{stroke:var(--muted);stroke-width:1.25}\n"                                            \
    ".key{display:inline-block;width:1.4rem;border-top:2.25px solid;vertical-align:.28em;"         \
    "margin-right:.35rem}.k{white-space:nowrap;margin-right:1.1rem}\n"                             \
    ".key.a{border-color:var(--after)}.key.b{border-color:var(--before)}\n"                        \
    ".key.t{border-top:1.5px dashed var(--base)}\n"                                                \
    ".scroll{overflow-x:auto;margin:.6rem 0}\n"                                                    \
    "table{border-collapse:collapse;font-size:.82rem;width:100%}\n"                                \
    "th,td{padding:.36rem .42rem;text-align:right;white-space:nowrap;"                             \
    "border-bottom:1px solid var(--rule)}\n"                                                       \
    "th{color:var(--muted);font-weight:600;vertical-align:bottom}\n"                               \
    "th:first-child,td:first-child{text-align:left;padding-left:0}\n"                              \
    "th:last-child,td:last-child{padding-right:0}tr.best "                                         \
    "td{font-weight:600}td.none{text-align:left;"                                                  \
    "color:var(--muted)}th:nth-child(-n+3),td:nth-child(-n+3){text-align:left}\n"                  \
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.2rem;margin:.6rem 0;"       \
    "font-size:.86rem}dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}\n"                 \
    "pre{background:var(--card);border-radius:.6rem;padding:.9rem 1.1rem;font:.8rem/1.5 "          \
    "ui-monospace,\"DejaVu Sans Mono\",monospace;white-space:pre-wrap;overflow-wrap:anywhere}\n"   \
    "footer{margin-top:3.5rem;border-top:1px solid var(--rule);padding-top:.8rem}\n"               \
    "@media print{body{font-size:11pt}main{max-width:none;padding:0}h2{break-after:avoid}"         \
    ".scroll{overflow:visible}table{font-size:8pt}th,td{padding:.3rem .35rem}}\n"                  \
    "@page{margin:18mm}\n"

#endif
