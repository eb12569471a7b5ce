/* Inputs and comparisons of the op tests. */
#include "op_checks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void op_values_copy(const struct op_case *c, struct op_values *to, const struct op_values *v) {
    for (int i = 0; i < c->n_buffer; i++)
        memcpy(to->v[i], v->v[i], (size_t)c->buffer[i].count * sizeof(double));
}

enum status op_inputs(struct backend *oracle, const struct op_case *c, enum dtype dtype,
                      struct op_values *v) {
    op_values_fill(c, 7, v);
    op_values_round(c, dtype, v);
    if (!c->prepare)
        return STATUS_OK;
    struct op_values made;
    TRY(op_values_open(c, &made));
    op_values_copy(c, &made, v);
    enum status status = op_call(oracle, c, DTYPE_F64, c->prepare, &made);
    for (int i = 0; i < c->n_buffer; i++)
        if (c->buffer[i].role == ROLE_DERIVED)
            memcpy(v->v[i], made.v[i], (size_t)c->buffer[i].count * sizeof(double));
    op_values_close(&made);
    op_values_round(c, dtype, v);
    return status;
}

bool op_buffer_is_output(const struct op_buffer *b) {
    return b->role == ROLE_OUT || b->role == ROLE_INOUT;
}

struct error {
    double most, square, size; /* largest, root mean square, largest true value */
};
static struct error error_of(const double *x, const double *truth, int64_t n) {
    struct error e = {0};
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(x[i] - truth[i]);
        if (!(d <= e.most) && !isnan(e.most))
            e.most = d; /* a NaN stays */
        e.square += d * d;
        e.size = fmax(e.size, fabs(truth[i]));
    }
    e.square = sqrt(e.square / (double)n);
    return e;
}

int op_compare(const struct op_case *c, enum dtype dtype, const char *who,
               const struct op_values *got, const struct op_values *unit,
               const struct op_values *truth) {
    int bad = 0;
    for (int i = 0; i < c->n_buffer; i++) {
        const struct op_buffer *b = &c->buffer[i];
        if (!op_buffer_is_output(b) || !b->count)
            continue;
        struct error e = error_of(got->v[i], truth->v[i], b->count);
        struct error u = error_of(unit->v[i], truth->v[i], b->count);
        double floor = 0x1p-23 * e.size;
        if (e.most <= 2 * u.most + floor && e.square <= 2 * u.square + floor)
            continue;
        fprintf(stderr,
                "%s %s %s %s, %s: error %.3g (rms %.3g), yardstick %.3g (rms %.3g), "
                "largest value %.3g\n",
                c->op, c->shape, dtype_name(dtype), who, b->name, e.most, e.square, u.most,
                u.square, e.size);
        bad++;
    }
    return bad;
}

int op_differing(const struct op_case *c, const struct op_values *a, const struct op_values *b) {
    int differing = 0;
    for (int i = 0; i < c->n_buffer; i++)
        differing += op_buffer_is_output(&c->buffer[i]) && c->buffer[i].count &&
                     memcmp(a->v[i], b->v[i], (size_t)c->buffer[i].count * sizeof(double));
    return differing;
}

bool op_buffer_takes_nan(const struct op_buffer *b) {
    return b->kind != BUFFER_I32 && b->role != ROLE_OUT && b->role != ROLE_FORWARD && b->count;
}

int op_hidden_nans(const struct op_case *c, enum dtype dtype, const char *who,
                   const struct op_buffer *poisoned, const struct op_values *want,
                   const struct op_values *got, int64_t *seen) {
    int bad = 0;
    for (int i = 0; i < c->n_buffer; i++) {
        int64_t hidden = 0;
        for (int64_t j = 0; op_buffer_is_output(&c->buffer[i]) && j < c->buffer[i].count; j++) {
            *seen += isnan(want->v[i][j]);
            hidden += isnan(want->v[i][j]) && !isnan(got->v[i][j]);
        }
        if (!hidden)
            continue;
        fprintf(stderr, "%s %s %s %s: NaN in %s hidden at %lld places of %s\n", c->op, c->shape,
                dtype_name(dtype), who, poisoned->name, (long long)hidden, c->buffer[i].name);
        bad++;
    }
    return bad;
}
