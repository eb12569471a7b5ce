/* Every op declared once: its buffers, how they are filled, how it is called, what it costs. The
 * same declaration is a value test, a gradient test (test_ops.c) and a benchmark
 * (bench/bench_ops.c). Host values are doubles; an instance holds them on a backend in a dtype. */
#ifndef REGROUP_TESTS_KERNELS_OP_CASES_H
#define REGROUP_TESTS_KERNELS_OP_CASES_H

#include "kernels/backend.h"

enum { CASE_DIMS = 10, CASE_BUFFERS = 14 };

enum buffer_kind {
    BUFFER_COMPUTE, /* the compute dtype */
    BUFFER_GRAD,    /* F32, or F64 when computing in F64 */
    BUFFER_BF16,    /* that dtype, or F64 when computing in F64 */
    BUFFER_F16,
    BUFFER_I32,
    BUFFER_F32, /* always */
    BUFFER_F64, /* always */
};
enum buffer_role {
    ROLE_IN,      /* read */
    ROLE_DERIVED, /* read; made by `prepare` from the other inputs */
    ROLE_OUT,     /* written, whatever it held before */
    ROLE_INOUT,   /* read and written; untouched gaps must stay as they were */
    ROLE_FORWARD, /* output of `forward`: only gradient tests use it */
};
struct op_buffer {
    const char *name;
    enum buffer_kind kind;
    enum buffer_role role;
    int64_t count, traffic;        /* elements; those a call has to touch */
    double low, high;              /* filled uniformly */
    const char *seed_of, *grad_of; /* loss += sum(this * seed_of); this = d loss / d grad_of */
};

struct op_case;
typedef enum status op_function(struct backend *, const struct op_case *, enum dtype,
                                void *const *data);
struct op_case {
    const char *op;
    int64_t dim[CASE_DIMS];
    char shape[96]; /* for people */
    int n_buffer;
    struct op_buffer buffer[CASE_BUFFERS];
    op_function *run, *prepare, *forward; /* prepare, forward: may be NULL */
    double flop;                          /* 0: only bytes count */
    bool bench;                           /* a shape for the benchmark, too big for the tests */
};

/* The i-th declaration; false when there is none. */
bool op_case_get(int64_t i, struct op_case *out);
enum dtype op_buffer_dtype(const struct op_buffer *b, enum dtype dtype);
int64_t op_buffer_find(const struct op_case *c, const char *name); /* -1: none */
double op_case_bytes(const struct op_case *c, enum dtype dtype);   /* least traffic */

struct op_values {
    double *v[CASE_BUFFERS];
};
enum status op_values_open(const struct op_case *c, struct op_values *out) MUST_USE;
void op_values_close(struct op_values *v);
/* Inputs filled, outputs NaN. */
void op_values_fill(const struct op_case *c, uint64_t seed, struct op_values *v);
/* Each buffer rounded to what it is when computing in `dtype`. */
void op_values_round(const struct op_case *c, enum dtype dtype, struct op_values *v);

struct op_instance {
    struct backend *be;
    const struct op_case *c;
    enum dtype dtype;
    void *data[CASE_BUFFERS];
    void *staging; /* host side of transfers */
};
enum status op_instance_open(struct backend *be, const struct op_case *c, enum dtype dtype,
                             struct op_instance *out) MUST_USE;
void op_instance_close(struct op_instance *x);
enum status op_instance_write(struct op_instance *x, const struct op_values *v) MUST_USE;
enum status op_instance_read(struct op_instance *x, struct op_values *v) MUST_USE;
/* write, call, read: values in, values out. */
enum status op_call(struct backend *be, const struct op_case *c, enum dtype dtype, op_function *f,
                    struct op_values *v) MUST_USE;

/* cpu-ref computing in single precision: the yardstick for low-precision code. */
enum status op_yardstick_open(struct backend **out) MUST_USE;
/* The same, attention's P and dS rounded as tensor cores take them. */
enum status op_yardstick_tensor_open(struct backend **out) MUST_USE;

#endif
