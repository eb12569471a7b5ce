/* Linux: /proc/cpuinfo, uname, sysconf. */
#include "eval/environment.h"

#include "core/parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static void set_cpu_name(struct json *o) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (!value || strncmp(line, "model name", 10))
            continue;
        value += strspn(value, ": \t");
        value[strcspn(value, "\n")] = 0;
        json_set_string(o, "cpu", value);
        break;
    }
    if (f)
        fclose(f);
}

struct json *environment_json(const struct backend *be) {
    struct json *o = json_object();
    json_set_string(o, "version", REGROUP_VERSION);
    if (be) {
        json_set_string(o, "backend", be->name);
        json_set_string(o, "backend_detail", be->detail);
    }
    json_set_int(o, "threads", parallel_threads());
    set_cpu_name(o);
    json_set_int(o, "cpus", sysconf(_SC_NPROCESSORS_ONLN));
    json_set_int(o, "memory_bytes", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    struct utsname u;
    if (!uname(&u)) {
        char system[256];
        snprintf(system, sizeof system, "%.60s %.120s %.60s", u.sysname, u.release, u.machine);
        json_set_string(o, "system", system);
    }
#ifdef __VERSION__
    json_set_string(o, "compiler",
#ifdef __clang__
                    __VERSION__
#else
                    "GCC " __VERSION__
#endif
    );
#endif
    return o;
}

void environment_time(char out[32]) {
    const char *fixed = getenv("SOURCE_DATE_EPOCH");
    time_t now = fixed && *fixed ? (time_t)strtoll(fixed, NULL, 10) : time(NULL);
    struct tm t;
    if (!gmtime_r(&now, &t) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &t))
        out[0] = 0;
}
