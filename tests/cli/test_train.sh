#!/usr/bin/env bash
# regroup train from outside: exit codes, messages, SIGTERM, and SIGKILL at random moments after
# which the resumed run must equal an uninterrupted one byte for byte. args: program, source dir.
set -u
regroup=$1
export OMP_WAIT_POLICY=passive # tiny steps on a machine that runs other tests
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
fail() { echo "FAIL: $*" >&2; cat err >&2 2>/dev/null; exit 1; }
# expect CODE PATTERN ARGS...: the exit code, and one line on stderr that matches
expect() {
  local code=$1 pattern=$2
  shift 2
  "$regroup" "$@" >out.txt 2>err
  local found=$?
  [ $found = "$code" ] || fail "regroup $*: exit $found, expected $code"
  grep -qE -- "$pattern" err || fail "regroup $*: no '$pattern' in its messages"
}

mkdir model
cat >model/config.json <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
 "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
 "tie_word_embeddings": true, "torch_dtype": "bfloat16"}
JSON
perl -e 'srand(1); print pack("v*", map { int(rand(64)) } 1 .. 2000)' >ids.u16
cat >run.json <<'JSON'
{"objective": "pretrain", "model_config": "model", "out": "straight", "data": {"train": "ids.u16"},
 "seq_len": 16, "batch": 2, "grad_accum": 2, "steps": 40, "optimizer": {"lr": 1e-2},
 "schedule": {"warmup": 4}, "dtype": "bf16", "recompute": true, "eval_every": 7, "save_every": 2}
JSON

"$regroup" train --help >help.txt || fail "--help"
grep -q 'optimizer.lr' help.txt || fail "--help does not list the keys"
expect 2 'CONFIG.json' train
expect 2 "option .device." train run.json --device abacus
expect 2 'exclude' train run.json --resume --force
expect 2 'optimizer.lrr.*did you mean .optimizer.lr' train run.json --set optimizer.lrr=1
expect 2 'needs a value' train run.json --set
expect 2 'steps.*whole number' train run.json --set steps=many
expect 2 "needs the key 'teacher'" train run.json --set objective=distill --set student=model
expect 1 'absent.json' train absent.json
expect 1 'absent.u16' train run.json --set data.train=absent.u16
expect 1 'absent/config.json' train run.json --set model_config=absent
echo '{"objective": ' >broken.json
expect 1 'broken.json' train broken.json
[ ! -e straight ] || fail "a refused run left its folder"

expect 0 'held-out NLL' train run.json
grep -q 'straight/last  step 40 of 40' out.txt || fail "no summary on stdout"
[ "$(grep -c '"loss"' straight/log.jsonl)" = 40 ] || fail "the log has not one line a step"
[ "$(grep -c '"eval"' straight/log.jsonl)" = 7 ] || fail "evaluations at 0, 7 .. 35, 40 expected"
"$regroup" inspect straight/best >/dev/null 2>err || fail "best is no model folder"
grep -q '"environment"' straight/config.resolved.json || fail "no resolved configuration"
expect 1 'straight exists.*--resume.*--force' train run.json
expect 0 'is complete' train run.json --resume
expect 1 'model is no training run' train run.json --force --set out=model

same() { # the run in $1 has the bytes of the straight one, and its log each step once
  for f in last/model.safetensors last/training/state.safetensors best/model.safetensors; do
    cmp -s "straight/$f" "$1/$f" || fail "$1/$f differs from the uninterrupted run's"
  done
  for d in straight "$1"; do sed 's/,"tokens_per_s".*//' $d/log.jsonl >$d.lines; done
  cmp -s straight.lines "$1.lines" || fail "$1/log.jsonl differs from the uninterrupted run's"
  ls -d "$1"/*.partial-* >/dev/null 2>&1 && fail "$1 has leftovers"
  return 0
}

# SIGTERM: the step is finished and saved, exit 1, and the message says how to go on
"$regroup" train run.json --set out=term --set steps=40 >out.txt 2>err &
pid=$!
for _ in $(seq 200); do grep -qs '"loss"' term/log.jsonl && break; sleep 0.02; done
kill -TERM $pid 2>/dev/null
wait $pid
code=$?
if [ $code != 0 ]; then # it may just have been done
  [ $code = 1 ] || fail "SIGTERM: exit $code"
  grep -q 'stopped after step .* --resume' err || fail "SIGTERM: no word on how to continue"
fi
expect 0 . train run.json --set out=term --resume
same term

# SIGKILL at moments spread over the run; whatever stands under the final names is whole
kills=0
for delay in 0.05 0.12 0.2 0.08 0.3 0.15 0.25 0.1 0.35 0.18; do
  "$regroup" train run.json --set out=killed --resume >out.txt 2>err &
  pid=$!
  sleep $delay
  if kill -KILL $pid 2>/dev/null; then kills=$((kills + 1)); fi
  wait $pid 2>/dev/null
  for f in last best; do
    [ ! -e killed/$f ] || "$regroup" inspect killed/$f >/dev/null 2>err || fail "killed/$f is torn"
  done
done
# Killed before its first file was whole: only the temporary name is there.
mkdir torn && touch torn/config.resolved.json.partial-999999999
expect 0 . train run.json --set out=torn --resume
same torn
[ $kills -ge 1 ] || fail "no run was killed: the delays are too long"
expect 0 . train run.json --set out=killed --resume
same killed

# Out of space (a limit on file size): an error that names the file, and nothing under the name
(
  trap '' XFSZ
  ulimit -f 20
  "$regroup" train run.json --set out=full >out.txt 2>err
  [ $? = 1 ]
) || fail "a full disk is not reported"
grep -q 'full/' err || fail "a full disk: the message names no file"
[ ! -e full/last ] || fail "a full disk left a checkpoint"
echo "ok: $kills kills"
