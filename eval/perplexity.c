/* Windows in batches through the model and the backend's fused head and loss, no gradients. */
#include "eval/perplexity.h"

#include "core/log.h"

#include <math.h>

struct estimate estimate_from_windows(const struct window_sum *windows, int64_t n) {
    double count = 0, sum = 0, squares = 0, spread = 0;
    int64_t n_used = 0;
    for (int64_t w = 0; w < n; w++) {
        count += (double)windows[w].n;
        sum += windows[w].sum;
        squares += windows[w].sum_squares;
        n_used += windows[w].n > 0;
    }
    struct estimate e = {.mean = sum / count, .se = NAN, .se_iid = NAN};
    if (count > 1) { /* rounding may leave a tiny negative; NaN must stay */
        double variance = (squares - count * e.mean * e.mean) / (count - 1);
        e.se_iid = sqrt((variance < 0 ? 0 : variance) / count);
    }
    if (n_used > 1) { /* ratio estimator, windows as clusters of unequal size */
        for (int64_t w = 0; w < n; w++) {
            double d = windows[w].sum - e.mean * (double)windows[w].n;
            spread += d * d;
        }
        e.se = sqrt(spread * (double)n_used / (double)(n_used - 1)) / count;
    }
    return e;
}

enum { NLL, KL, AGREE, N_OUTPUT };

struct scorer {
    struct backend *be;
    int64_t n_row, output_size;
    struct acts *acts, *teacher_acts;
    int32_t *host_inputs, *host_targets, *inputs, *targets;
    void *outputs, *host_outputs; /* [N_OUTPUT][n_row] */
};

static void scorer_close(struct scorer *s) {
    acts_close(s->acts);
    acts_close(s->teacher_acts);
    memory_free(s->host_inputs);
    memory_free(s->host_targets);
    memory_free(s->host_outputs);
    s->be->free(s->be, s->inputs);
    s->be->free(s->be, s->targets);
    s->be->free(s->be, s->outputs);
}

static enum status scorer_open(struct scorer *s, const struct model *m, const struct model *teacher,
                               int64_t n_batch, int64_t n_seq) {
    int64_t n_id;
    if (!size_mul(n_batch, n_seq, &s->n_row) || !size_mul(s->n_row, 8 * N_OUTPUT, &n_id))
        return status_fail(STATUS_USAGE, "batch: %lld windows of %lld tokens are too many",
                           (long long)n_batch, (long long)n_seq);
    int64_t id_bytes = s->n_row * (int64_t)sizeof(int32_t);
    int64_t output_bytes = s->n_row * N_OUTPUT * s->output_size;
    TRY(memory_alloc(s->n_row, sizeof(int32_t), "window ids", &s->host_inputs));
    TRY(memory_alloc(s->n_row, sizeof(int32_t), "window targets", &s->host_targets));
    TRY(memory_alloc(output_bytes, 1, "token losses", &s->host_outputs));
    TRY(s->be->alloc(s->be, id_bytes, "window ids", (void **)&s->inputs));
    TRY(s->be->alloc(s->be, id_bytes, "window targets", (void **)&s->targets));
    TRY(s->be->alloc(s->be, output_bytes, "token losses", &s->outputs));
    TRY(acts_open(m, ACTS_INFER, n_batch, n_seq, &s->acts));
    if (teacher)
        TRY(acts_open(teacher, ACTS_INFER, n_batch, n_seq, &s->teacher_acts));
    return STATUS_OK;
}

static struct tensor output_view(const struct scorer *s, int which, int64_t n_row) {
    char *at = (char *)s->outputs + which * s->n_row * s->output_size;
    return tensor_1d(s->output_size == 8 ? DTYPE_F64 : DTYPE_F32, at, n_row);
}

static double output_at(const struct scorer *s, int which, int64_t row) {
    const char *at = (const char *)s->host_outputs + which * s->n_row * s->output_size;
    return s->output_size == 8 ? ((const double *)at)[row] : (double)((const float *)at)[row];
}

/* host_inputs and host_targets hold the batch; host_outputs receive its losses. */
static enum status score_batch(struct scorer *s, const struct model *m, const struct model *teacher,
                               int64_t n_batch, int64_t n_seq) {
    struct backend *be = s->be;
    int64_t n_row = n_batch * n_seq, id_bytes = n_row * (int64_t)sizeof(int32_t);
    TRY(be->upload(be, STREAM_COMPUTE, s->inputs, s->host_inputs, id_bytes));
    TRY(be->upload(be, STREAM_COMPUTE, s->targets, s->host_targets, id_bytes));
    TRY(model_forward(m, s->acts, NULL, s->inputs, n_batch, n_seq));
    struct head_loss_args loss = {.hidden = acts_hidden(s->acts),
                                  .head = model_head(m),
                                  .targets = s->targets,
                                  .temperature = 1,
                                  .nll = output_view(s, NLL, n_row)};
    if (teacher) {
        TRY(model_forward(teacher, s->teacher_acts, NULL, s->inputs, n_batch, n_seq));
        loss.teacher_hidden = acts_hidden(s->teacher_acts);
        loss.teacher_head = model_head(teacher);
        loss.kl = output_view(s, KL, n_row);
        loss.agree = output_view(s, AGREE, n_row);
    }
    TRY(be->head_loss(be, &loss));
    TRY(be->download(be, STREAM_COMPUTE, s->host_outputs, s->outputs,
                     N_OUTPUT * s->n_row * s->output_size));
    return be->sync(be, STREAM_COMPUTE);
}

static void add_window(struct scorer *s, int which, int64_t first_row, int64_t n_row,
                       struct window_sum *out) {
    for (int64_t r = first_row; r < first_row + n_row; r++) {
        if (s->host_targets[r] < 0)
            continue;
        double x = output_at(s, which, r);
        out->n++;
        out->sum += x;
        out->sum_squares += x * x;
    }
}

enum status perplexity_measure(const struct model *m, const struct model *teacher,
                               const int32_t *ids, const struct window_plan *plan, int64_t n_batch,
                               struct perplexity *out) {
    if (teacher && teacher->config.n_vocab != m->config.n_vocab)
        return status_fail(
            STATUS_FAILED,
            "the teacher's vocabulary has %lld tokens and the model's %lld: KL needs "
            "the same vocabulary in both",
            (long long)teacher->config.n_vocab, (long long)m->config.n_vocab);
    double started = clock_seconds();
    n_batch = size_max(1, size_min(n_batch, plan->n_window));
    struct scorer s = {.be = m->be, .output_size = m->dtype == DTYPE_F64 ? 8 : 4};
    struct window_sum *sums[N_OUTPUT] = {0};
    struct progress progress = {0};
    int n_output = teacher ? N_OUTPUT : 1;
    enum status status = STATUS_OK;
    TRY_OUT(scorer_open(&s, m, teacher, n_batch, plan->n_seq));
    for (int i = 0; i < n_output; i++)
        TRY_OUT(memory_alloc(plan->n_window, sizeof *sums[i], "window sums", &sums[i]));

    progress_start(&progress, "perplexity", (double)(plan->n_window * plan->n_seq), "tokens");
    for (int64_t w = 0; w < plan->n_window; w += n_batch) {
        int64_t n = size_min(n_batch, plan->n_window - w);
        for (int64_t b = 0; b < n; b++)
            window_plan_fill(plan, w + b, ids, s.host_inputs + b * plan->n_seq,
                             s.host_targets + b * plan->n_seq);
        TRY_OUT(score_batch(&s, m, teacher, n, plan->n_seq));
        for (int64_t b = 0; b < n; b++)
            for (int i = 0; i < n_output; i++)
                add_window(&s, i, b * plan->n_seq, plan->n_seq, &sums[i][w + b]);
        progress_update(&progress, (double)((w + n) * plan->n_seq), NULL);
    }
    struct perplexity p = {.n_token = plan->n_counted, .n_window = plan->n_window};
    p.nll = estimate_from_windows(sums[NLL], plan->n_window);
    p.value = exp(p.nll.mean);
    p.se = p.value * (plan->n_window > 1 ? p.nll.se : p.nll.se_iid);
    if (teacher) {
        p.has_teacher = true;
        p.kl = estimate_from_windows(sums[KL], plan->n_window);
        p.agree = estimate_from_windows(sums[AGREE], plan->n_window);
    }
    p.seconds = clock_seconds() - started;
    *out = p;
out:
    progress_end(&progress);
    for (int i = 0; i < N_OUTPUT; i++)
        memory_free(sums[i]);
    scorer_close(&s);
    return status;
}
