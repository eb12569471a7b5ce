/* See train_run.h. */
#include "train/train_run.h"

#include "core/file.h"
#include "core/log.h"
#include "core/parallel.h"
#include "train/state.h"
#include "train/train_data.h"
#include "train/train_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* The only state outside a run: what a signal handler may touch. */
static volatile sig_atomic_t stop_requested;

static void request_stop(int signal_number) {
    (void)signal_number;
    stop_requested = 1;
}

/* Everything one run owns; {0} is closed. */
struct run {
    const struct train_config *config;
    struct arena arena;
    struct backend *be;
    struct model *student, *teacher;
    struct train_data data;
    struct trainer trainer;
    struct batcher heldout;
    struct train_log log;
    struct run_state state;
    double loss;
    double began; /* the first step that was not yet logged */
    int lock;     /* OUT, held open; -1: not yet */
};

static void close_run(struct run *r) {
    train_log_close(&r->log);
    batcher_close(&r->heldout);
    if (r->trainer.be)
        trainer_close(&r->trainer);
    model_close(r->student);
    model_close(r->teacher);
    train_data_close(&r->data);
    backend_close(r->be);
    if (r->lock >= 0)
        close(r->lock);
    arena_free(&r->arena);
}

static bool objective_is(const struct train_config *c, const char *name) {
    return !strcmp(c->objective, name);
}

static const char *model_dir(const struct train_config *c) {
    return objective_is(c, "pretrain") ? c->model_config : c->student;
}

/* One process at a time in OUT: the lock goes with the process, however it ends. */
static enum status lock_out(struct run *r) {
    r->lock = open(r->config->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->lock < 0)
        return status_errno("cannot open folder %s", r->config->out);
    if (flock(r->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return status_fail(STATUS_FAILED, "another process is training in %s; wait or stop it",
                           r->config->out);
    return STATUS_OK;
}

static enum status remove_in_out(struct run *r, const char *name) {
    char *path;
    TRY(path_join(&r->arena, r->config->out, name, &path));
    return dir_remove(path); /* fine when there is none */
}

/* Make OUT ready. *resume: OUT/last is there and is to be continued. */
static enum status prepare_out(struct run *r, enum train_start start, bool *resume) {
    static const char *const ours[] = {"log.jsonl", "config.resolved.json"};
    const char *out = r->config->out;
    char **names;
    int64_t n = 0;
    *resume = false;
    if (path_exists(out)) {
        if (!path_is_dir(out))
            return status_fail(STATUS_FAILED, "%s exists and is not a folder", out);
        TRY(dir_list(&r->arena, out, &names, &n));
    }
    bool is_run = false;
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < 2; k++) {
            size_t len = strlen(ours[k]); /* a run killed at its first write has only a .partial- */
            is_run |= !strncmp(names[i], ours[k], len) &&
                      (!names[i][len] || !strncmp(names[i] + len, ".partial-", 9));
        }
    if (n && start == TRAIN_NEW)
        return status_fail(STATUS_FAILED,
                           "%s exists; continue it with --resume, replace it with --force, or give "
                           "another out",
                           out);
    if (n && !is_run)
        return status_fail(STATUS_FAILED, "%s is no training run; give another out", out);
    TRY(path_mkdirs(out));
    TRY(lock_out(r));
    for (int64_t i = 0; i < n; i++) /* of a process that was killed: the lock says it is gone */
        if (strstr(names[i], ".partial-"))
            TRY(remove_in_out(r, names[i]));
    if (start == TRAIN_RESUME && state_exists(out)) {
        *resume = true;
        return STATUS_OK;
    }
    if (start == TRAIN_RESUME)
        log_info("%s holds no checkpoint yet: starting at step 1", out);
    TRY(remove_in_out(r, "last"));
    TRY(remove_in_out(r, "best"));
    return STATUS_OK;
}

static enum status open_data(struct run *r) {
    struct model_config config;
    TRY(model_config_load(model_dir(r->config), &config));
    if (r->config->seq_len > config.max_position)
        log_warn("seq_len %lld is beyond the model's max_position_embeddings %lld",
                 (long long)r->config->seq_len, (long long)config.max_position);
    return train_data_open(r->config, model_dir(r->config), config.n_vocab, &r->data);
}

static enum status check_dtype(struct run *r) {
    enum dtype dtype = train_config_dtype(r->config);
    if (r->be->has_dtype[dtype])
        return STATUS_OK;
    return status_fail(STATUS_USAGE, "dtype: backend %s cannot compute in %s", r->be->name,
                       r->config->dtype);
}

static enum status open_models(struct run *r, bool resume) {
    const struct train_config *c = r->config;
    enum dtype dtype = train_config_dtype(c);
    if (resume) {
        char *last;
        TRY(path_join(&r->arena, c->out, "last", &last));
        TRY(model_open(last, r->be, dtype, &r->student));
    } else if (objective_is(c, "pretrain")) {
        struct model_config config;
        TRY(model_config_load(c->model_config, &config));
        TRY(model_new(&config, r->be, dtype, (uint64_t)c->seed, &r->student));
    } else {
        TRY(model_open(c->student, r->be, dtype, &r->student));
    }
    if (objective_is(c, "distill") || train_config_is_layerwise(c))
        TRY(model_open(c->teacher, r->be, dtype, &r->teacher));
    TRY(trainer_open(c, r->be, r->student, r->teacher, &r->data.train, &r->trainer));
    if (r->data.heldout.n)
        TRY(batcher_open(&r->data.heldout, c->batch, c->seq_len, c->rows, 0, &r->heldout));
    return STATUS_OK;
}

/* A run may go on only as the same run. */
static enum status check_same(struct run *r, const struct json *settings) {
    char why[512];
    const char *last_of = r->config->out;
    if (!train_config_same_run(json_get(settings, "config"), r->config, why, sizeof why))
        return status_fail(STATUS_FAILED,
                           "%s cannot be resumed with another configuration (%s); restore the "
                           "setting, or start anew with --force or another out (only steps of a "
                           "constant schedule, paths, backend and intervals may change)",
                           last_of, why);
    const char *changed = r->state.train_hash != r->data.train.hash       ? "training"
                          : r->state.heldout_hash != r->data.heldout.hash ? "held-out"
                                                                          : NULL;
    if (changed)
        return status_fail(STATUS_FAILED,
                           "%s cannot be resumed: the %s data has changed since step %lld; restore "
                           "it, or start anew with --force or another out",
                           last_of, changed, (long long)r->state.step);
    return STATUS_OK;
}

static enum status restore(struct run *r) {
    TRY(state_restore(&r->trainer, r->config->out));
    trainer_resume(&r->trainer, r->state.step, r->state.position);
    log_info("continuing %s after step %lld", r->config->out, (long long)r->state.step);
    return STATUS_OK;
}

static enum status save_settings(struct run *r) {
    struct json *j = train_config_to_json(r->config);
    struct text line = {0};
    char *path;
    enum status status;
    TRY_OUT(json_print(j, false, &line));
    log_info("configuration %s", line.data);
    struct json *e = json_set_object(j, "environment");
    json_set_string(e, "version", REGROUP_VERSION);
    json_set_string(e, "backend", r->be->name);
    json_set_string(e, "detail", r->be->detail);
    json_set_int(e, "threads", parallel_threads());
    int64_t trained = 0;
    for (int64_t i = 0; i < r->trainer.n_trained; i++)
        trained += r->trainer.trained[i].count;
    json_set_int(e, "parameters", model_param_count(r->student));
    json_set_int(e, "trained_parameters", trained);
    json_set_int(e, "activation_bytes", acts_bytes(r->trainer.acts));
    json_set_int(e, "train_tokens", r->data.train.n);
    json_set_int(e, "heldout_tokens", r->data.heldout.n);
    log_info("%s; %.4g of %.4g M parameters train, activations %.4g MiB, %lld training ids, %lld "
             "held out",
             r->be->detail, (double)trained / 1e6, (double)model_param_count(r->student) / 1e6,
             (double)acts_bytes(r->trainer.acts) / 1048576, (long long)r->data.train.n,
             (long long)r->data.heldout.n);
    TRY_OUT(path_join(&r->arena, r->config->out, "config.resolved.json", &path));
    TRY_OUT(json_save(j, path));
out:
    text_free(&line);
    json_free(j);
    return status;
}

static enum status evaluate(struct run *r) {
    struct loss_parts e;
    int64_t step = r->trainer.step;
    TRY(trainer_eval(&r->trainer, &r->heldout, r->config->eval_windows, &e));
    if (!isfinite(e.ce))
        return status_fail(STATUS_FAILED,
                           "step %lld: the held-out loss is %g; lower optimizer.lr or check the "
                           "weights (the last checkpoint is untouched)",
                           (long long)step, e.ce);
    TRY(train_log_eval(&r->log, step, &e, r->teacher != NULL));
    bool best = r->state.best_step < 0 || e.ce < r->state.best_nll;
    char divergence[64] = "";
    if (r->teacher)
        snprintf(divergence, sizeof divergence, ", KL %.4f, agreement %.1f%%", e.kl, 100 * e.agree);
    log_info("step %lld: held-out NLL %.4f, perplexity %.3f%s%s", (long long)step, e.ce, exp(e.ce),
             divergence, best && step ? ", best so far" : "");
    if (!best)
        return STATUS_OK;
    r->state.best_step = step;
    r->state.best_nll = e.ce;
    return state_save_best(&r->trainer, r->config->out);
}

static enum status save_last(struct run *r) {
    r->state.step = r->trainer.step;
    r->state.position = r->trainer.position;
    TRY(train_log_sync(&r->log));
    return state_save_last(&r->trainer, &r->state, r->config->out);
}

static bool due(int64_t step, int64_t every, int64_t last) {
    return step == last || (every > 0 && step % every == 0);
}

/* The lines of the steps since the last time, each with its share of the time they took. */
static enum status log_steps(struct run *r, struct progress *bar) {
    const struct train_config *c = r->config;
    const struct train_step *s;
    int64_t n;
    enum status status = trainer_read(&r->trainer, &s, &n);
    double seconds = (clock_seconds() - r->began) / (double)size_max(n, 1);
    for (int64_t i = 0; i < n; i++) {
        TRY(train_log_step(&r->log, &s[i], r->teacher != NULL,
                           c->grad_accum * c->batch * c->seq_len, seconds));
        r->loss = s[i].loss;
    }
    if (status == STATUS_OK) {
        char detail[64];
        snprintf(detail, sizeof detail, "loss %.4f, lr %.2e", s[n - 1].loss, s[n - 1].lr);
        progress_update(bar, (double)r->trainer.step, detail);
    }
    return status;
}

/* A step, and what is due behind it. */
static enum status one_step(struct run *r, struct progress *bar) {
    const struct train_config *c = r->config;
    if (r->trainer.losses.n_step == 0)
        r->began = clock_seconds();
    TRY(trainer_step(&r->trainer, train_config_lr(c, r->trainer.step + 1)));
    int64_t step = r->trainer.step;
    bool stop = stop_requested, eval = r->heldout.n_window && due(step, c->eval_every, c->steps);
    bool save = stop || due(step, c->save_every, c->steps);
    if (trainer_is_full(&r->trainer) || eval || save || step == c->steps)
        TRY(log_steps(r, bar));
    if (eval)
        TRY(evaluate(r));
    if (save)
        TRY(save_last(r));
    if (stop && step < c->steps)
        return status_fail(STATUS_INTERRUPTED,
                           "stopped after step %lld of %lld and saved; continue with --resume",
                           (long long)step, (long long)c->steps);
    return STATUS_OK;
}

static enum status loop(struct run *r) {
    const struct train_config *c = r->config;
    struct progress bar;
    if (r->heldout.n_window && r->trainer.step == 0)
        TRY(evaluate(r));
    progress_start(&bar, "train", (double)c->steps, "steps");
    enum status status = STATUS_OK;
    while (status == STATUS_OK && r->trainer.step < c->steps)
        status = one_step(r, &bar);
    progress_end(&bar);
    return status;
}

static enum status train(struct run *r, enum train_start start, struct train_result *out) {
    const struct train_config *c = r->config;
    struct json *settings = NULL;
    enum status status;
    bool resume;
    if (c->threads > 0)
        parallel_set_threads((int)c->threads);
    TRY_OUT(backend_open(c->backend, &r->be));
    TRY_OUT(check_dtype(r));
    TRY_OUT(open_data(r));
    TRY_OUT(prepare_out(r, start, &resume));
    if (resume) {
        TRY_OUT(state_load(c->out, &r->state, &settings));
        TRY_OUT(check_same(r, settings));
        out->was_complete = r->state.step >= c->steps;
    }
    if (out->was_complete) {
        log_info("%s is complete: all %lld steps are done", c->out, (long long)c->steps);
        r->trainer.step = r->state.step;
        goto out;
    }
    TRY_OUT(open_models(r, resume));
    if (resume)
        TRY_OUT(restore(r));
    TRY_OUT(save_settings(r));
    TRY_OUT(train_log_open(c->out, resume ? r->state.step : -1, &r->log));
    if (!resume) {
        r->state.train_hash = r->data.train.hash;
        r->state.heldout_hash = r->data.heldout.hash;
    }
    TRY_OUT(loop(r));
out:
    json_free(settings);
    return status;
}

enum status train_run(const struct train_config *config, enum train_start start,
                      struct train_result *out) {
    struct run r = {
        .config = config, .log = {.fd = -1}, .state = {.best_step = -1}, .loss = NAN, .lock = -1};
    struct sigaction action = {.sa_handler = request_stop}, old_int, old_term;
    *out = (struct train_result){0};
    stop_requested = 0;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, &old_int);
    sigaction(SIGTERM, &action, &old_term);
    enum status status = train(&r, start, out);
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    out->step = r.trainer.step;
    out->loss = r.loss;
    out->best_step = r.state.best_step;
    out->best_nll = r.state.best_nll;
    close_run(&r);
    return status;
}
