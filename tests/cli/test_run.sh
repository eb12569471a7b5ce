#!/usr/bin/env bash
# regroup run from outside: the whole road on a tiny model, killed at random moments and run again
# until it is done; what is complete is kept. args: program, source dir.
set -u
regroup=$1
export OMP_WAIT_POLICY=passive # tiny steps on a machine that runs other tests
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
fail() { echo "FAIL: $*" >&2; cat err >&2 2>/dev/null; exit 1; }
expect() { # exit code, pattern in the messages, arguments
  local code=$1 pattern=$2
  shift 2
  "$regroup" "$@" >out.txt 2>err
  local found=$?
  [ $found = "$code" ] || fail "regroup $*: exit $found, expected $code"
  grep -qE -- "$pattern" err out.txt || fail "regroup $*: no '$pattern' in what it says"
}

mkdir model
cat >model/config.json <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
 "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
 "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
 "tie_word_embeddings": true, "torch_dtype": "bfloat16"}
JSON
perl -e 'srand(1); print pack("v*", map { int(rand(64)) } 1 .. 4000)' >ids.u16
cat >pretrain.json <<'JSON'
{"objective": "pretrain", "model_config": "model", "out": "teacher", "data": {"train": "ids.u16"},
 "seq_len": 16, "batch": 4, "steps": 20, "optimizer": {"lr": 1e-2}, "schedule": {"warmup": 4}}
JSON
expect 0 . train pretrain.json
cat >run.json <<'JSON'
{"name": "tiny <&> run", "model": "teacher/best", "out": "out", "kv_heads": ["2", "1"], "methods": ["mean", "first"],
 "train": {"data": {"train": "ids.u16"}, "seq_len": 16, "batch": 2, "steps": 12, "schedule": {"warmup": 2},
           "eval_every": 4, "save_every": 2},
 "eval": {"tokens": "ids.u16", "window": 16, "context": ["16"], "decode_steps": 2, "repeats": 1}}
JSON

"$regroup" run --help >help.txt || fail "--help"
grep -q 'kv_heads' help.txt || fail "--help does not list the keys"
expect 2 'CONFIG.json' run
expect 2 'kv_head.*unknown' run run.json --set kv_head=2
expect 2 'stepz.*did you mean .steps' run run.json --set train.stepz=2
sed 's/"steps"/"stepz"/' run.json >stepz.json
expect 2 "stepz.json: train: key 'stepz'" run stepz.json
expect 2 "'methods'.*average" run run.json --set methods=average
expect 1 'none.json' run none.json
sed 's/"kv_heads": \["2", "1"\], //' run.json >headless.json
expect 2 "kv_heads.*kv_budget.*missing" run headless.json
expect 1 'KV heads|3' run run.json --set kv_heads=3 --set out=three
sed 's/"seq_len"/"student": "x", "seq_len"/' run.json >student.json
expect 2 'train.student' run student.json
[ ! -e out ] || fail "a refused run left something behind"

kills=0 tries=0
while [ $tries -lt 60 ]; do
  tries=$((tries + 1))
  "$regroup" run run.json >out.txt 2>err &
  sleep "0.$(printf %02d $((tries * 7 % 60 + 5)))"
  kill -9 $! 2>/dev/null && kills=$((kills + 1))
  wait $! 2>/dev/null
  for d in out/convert/* out/train/*/last out/train/*/best; do
    case $d in *partial*|*'*'*) continue ;; esac
    [ ! -d "$d" ] || "$regroup" inspect "$d" >/dev/null 2>err || fail "$d is torn"
  done
  [ ! -e out/report.html ] || break
done
[ $kills -ge 1 ] || fail "no run was killed: the delays are too long"
expect 0 'report.html' run run.json
for id in mean-kv2 mean-kv1 first-kv2 first-kv1; do
  grep -q "already done" err || fail "nothing was kept"
  grep -q "$id" out/report.html || fail "$id is not in the report"
  grep -q "$id" out/report.md || fail "$id is not in report.md"
  [ "$(grep -c '"step":[0-9]*,"loss"' out/train/$id/log.jsonl)" = 12 ] || fail "$id: not 12 steps in its log"
done
grep -q 'tiny &lt;&amp;&gt; run' out/report.html || fail "the title is not escaped"
! find out -name '*partial*' | grep . || fail "leftovers"

# Done means done: nothing is written again but the report.
mkdir out/convert/mean-kv2.partial-999999999
touch stamp
expect 0 . run run.json
changed=$(find out -newer stamp -type f ! -name 'report.*' | head -3)
[ -z "$changed" ] || fail "a complete run wrote $changed"
! find out -name '*partial*' | grep . || fail "leftovers beside what is complete"
expect 1 "another configuration.*'train.steps'" run run.json --set train.steps=13
expect 1 "another configuration.*'kv_heads'" run run.json --set kv_heads=2

# Shares of the cache stand beside counts, in the same curve.
expect 2 'expected a share' run run.json --set kv_budget=75 --set out=other
expect 2 'ask for mean-kv75pct twice' run run.json --set kv_budget=75%,75% --set out=other
expect 1 'none.txt does not exist' sweep teacher/best other --kv-heads 2 --methods mean,fit --calibrate none.txt --tokens ids.u16
[ ! -e other ] || fail "a refused run left something behind"
expect 0 'fit-kv75pct' sweep teacher/best swept --kv-heads 2 --kv-budget 75%,62.5% --methods fit --tokens ids.u16 \
  --window 16 --context 16 --decode-steps 2 --repeats 1
awk '/^variant/ {at = index($0, "stage")} /^fit-kv/ && substr($0, at, 9) != "converted" {exit 1}' out.txt ||
  fail "the table's columns: $(cat out.txt)"
grep -q 'regroup alone can load' err || fail "no warning that layers differ"
grep -q '"kv_budget":.*"75%"' swept/run.json || fail "the budget is not in run.json"
grep -q '"kv_budget": "75%"' swept/report.json || fail "the budget is not in report.json"
! grep -q '"kv_heads": 0' swept/report.json || fail "report.json: no KV heads at all"
grep -qE 'fit-kv75pct.*GQA, 2-4 of 4' swept/report.md || fail "the heads of a budget are not in the report"
from=$(grep -o '"bytes_per_token_formula": *[0-9]*' swept/eval/teacher.json | grep -o '[0-9]*$')
to=$(grep -o '"bytes_per_token_formula": *[0-9]*' swept/eval/fit-kv75pct-converted.json | grep -o '[0-9]*$')
[ $((4 * to)) = $((3 * from)) ] || fail "75% of $from bytes per token is not $to"
echo "ok: $kills kills"
