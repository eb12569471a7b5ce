#!/usr/bin/env bash
# Distillation works: stories260K made MHA (8 KV heads), merged to 2 by mean, loses its quality and
# wins it back with configs/stories260k-distill.json. Skipped where the checkpoint is not beside the
# project. args: program, source dir.
set -u
regroup=$1 source=$2
shared=${REGROUP_SHARED:-$source/../shared}
[ -f "$shared/checkpoints/stories260K/model.safetensors" ] || { echo "no $shared: skipped"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
fail() { echo "FAIL: $*" >&2; exit 1; }
mkdir out
"$regroup" convert "$shared/checkpoints/stories260K" out/stories-mha --kv-heads 8 --method repeat || fail convert
"$regroup" convert out/stories-mha out/stories-gqa2 --kv-heads 2 --method mean || fail convert
cp "$shared"/data/stories260K-*.u16 out/
"$regroup" train "$source/configs/stories260k-distill.json" || fail train
grep '"eval"' out/stories-distill/log.jsonl
nll() { grep "{\"step\":$1,\"eval\"" out/stories-distill/log.jsonl | sed 's/.*"nll":\([0-9.]*\).*/\1/'; }
awk -v a="$(nll 0)" -v b="$(nll 400)" 'BEGIN { exit !(a > 4.417 && a < 4.419 && b > 1.29 && b < 1.55) }' ||
  fail "held-out NLL $(nll 0) -> $(nll 400), expected 4.418 -> below 1.55"
# The two-phase recipes: attention alone gets far, and the second phase starts where it ended.
"$regroup" train "$source/configs/stories260k-attention.json" --set eval_every=0 || fail "train attention"
"$regroup" train "$source/configs/stories260k-attention-then-distill.json" --set steps=20 || fail "train after attention"
last() { grep '"eval"' "out/$1/log.jsonl" | "$2" -n 1 | sed 's/.*"nll":\([0-9.]*\).*/\1/'; }
awk -v a="$(last stories-attention head)" -v b="$(last stories-attention tail)" \
  'BEGIN { exit !(a > 4.417 && a < 4.419 && b > 1.29 && b < 1.65) }' ||
  fail "held-out NLL $(last stories-attention tail) after the attention phase, expected below 1.65"
[ "$(last stories-attention tail)" = "$(last stories-attention-then-distill head)" ] ||
  fail "the second phase starts at $(last stories-attention-then-distill head)"
# The best checkpoint is a whole model: evaluated afresh it stands where the log says.
"$regroup" inspect out/stories-distill/best >/dev/null || fail "best is no model folder"
