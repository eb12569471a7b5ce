/* Every op on its benchmark shapes: time, GB/s, GF/s, and the share of the floor that the machine
 * sets: the larger of least bytes / copy bandwidth and operations / matmul peak, both measured
 * here in the same run. bench_ops [op name's beginning] [backend] */
#include "core/log.h"
#include "op_cases.h"

#include <stdio.h>
#include <string.h>

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};

/* Best of at least 5 runs and 0.4 seconds: other work on the machine only ever adds time. What
 * fits in the caches (small shapes) can beat the bandwidth floor, which is memory's. */
static enum status best_time(struct op_instance *x, double *best) {
    double begun = clock_seconds();
    *best = 1e30;
    for (int n = 0; n < 5 || clock_seconds() - begun < 0.4; n++) {
        double start = clock_seconds();
        int repeat = 0;
        do {
            TRY(x->c->run(x->be, x->c, x->dtype, x->data));
            TRY(x->be->sync(x->be, STREAM_COMPUTE));
            repeat++;
        } while (clock_seconds() - start < 1e-4);
        double t = (clock_seconds() - start) / repeat;
        *best = t < *best ? t : *best;
    }
    return STATUS_OK;
}

static enum status measure(struct backend *be, const struct op_case *c, enum dtype dtype,
                           double *best) {
    struct op_values v;
    struct op_instance x;
    TRY(op_values_open(c, &v));
    op_values_fill(c, 1, &v);
    enum status status = op_instance_open(be, c, dtype, &x);
    if (status == STATUS_OK) {
        status = op_instance_write(&x, &v);
        if (status == STATUS_OK && c->prepare)
            status = c->prepare(be, c, dtype, x.data);
        if (status == STATUS_OK)
            status = best_time(&x, best);
        op_instance_close(&x);
    }
    op_values_close(&v);
    return status;
}

/* The floor's two numbers: `add` far beyond the caches, and the large matmul. */
static enum status measure_floor(struct backend *be, enum dtype dtype, double *bandwidth,
                                 double *peak) {
    struct op_case c;
    double t;
    for (int64_t k = 0; op_case_get(k, &c); k++) {
        if (!c.bench || (strcmp(c.op, "add") && strcmp(c.op, "matmul")))
            continue;
        if (c.flop > 0 && c.flop < 4e9)
            continue;
        TRY(measure(be, &c, dtype, &t));
        double *best = c.flop > 0 ? peak : bandwidth;
        double rate = (c.flop > 0 ? c.flop : op_case_bytes(&c, dtype)) / t;
        *best = rate > *best ? rate : *best;
    }
    return STATUS_OK;
}

static enum status bench(const char *prefix, struct backend *be) {
    double bandwidth = 0, peak[2] = {0, 0};
    for (int d = 0; d < 6; d++) /* three rounds: a floor taken too low flatters everything */
        TRY(measure_floor(be, dtypes[d % 2], &bandwidth, &peak[d % 2]));
    printf("%s: %s\nfloor: %.1f GB/s (add), %.0f GF/s F32 and %.0f GF/s BF16 (large matmul)\n",
           be->name, be->detail, bandwidth * 1e-9, peak[0] * 1e-9, peak[1] * 1e-9);
    printf("%-22s %-28s %-5s %10s %8s %8s %6s\n", "op", "shape", "dtype", "us", "GB/s", "GF/s",
           "floor");
    struct op_case c;
    for (int64_t k = 0; op_case_get(k, &c); k++)
        for (int d = 0; d < 2; d++) {
            double t;
            if (!c.bench || strncmp(c.op, prefix, strlen(prefix)))
                continue;
            TRY(measure(be, &c, dtypes[d], &t));
            double bytes = op_case_bytes(&c, dtypes[d]), least = bytes / bandwidth;
            least = c.flop / peak[d] > least ? c.flop / peak[d] : least;
            printf("%-22s %-28s %-5s %10.1f %8.1f %8.1f %5.0f%%\n", c.op, c.shape,
                   dtype_name(dtypes[d]), t * 1e6, bytes / t * 1e-9, c.flop / t * 1e-9,
                   100 * least / t);
            fflush(stdout);
        }
    return STATUS_OK;
}

int main(int argc, char **argv) {
    struct backend *be;
    enum status status = backend_open(argc > 2 ? argv[2] : "cpu", &be);
    if (status == STATUS_OK) {
        status = bench(argc > 1 ? argv[1] : "", be);
        backend_close(be);
    }
    if (status != STATUS_OK)
        fprintf(stderr, "bench_ops: %s\n", status_message());
    return status != STATUS_OK;
}
