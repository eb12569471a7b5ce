#!/usr/bin/env bash
# The same KV-cache bytes as one count in every layer, and divided over the layers (--kv-budget):
# cross-entropy after conversion without training.
#   bench/kv_budget.sh REGROUP MODEL CALIB HELDOUT [KV_HEADS...]
# CALIB and HELDOUT: text or token files; HELDOUT is scored in windows of 256 tokens. Heads of a GQA
# model are copied first until every query head has its own (exact).
set -euo pipefail
regroup=$1 model=$2 calib=$3 heldout=$4
shift 4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
heads=$("$regroup" inspect "$model" --json | sed -n 's/.*"n_head":[[:space:]]*\([0-9]*\).*/\1/p' | head -1)
counts=("$@")
[ $# -gt 0 ] || counts=($((heads / 2)) $((heads / 4)))
"$regroup" convert "$model" "$work/full" --kv-heads "$heads" --method repeat >/dev/null
score=(--text "$heldout" --protocol strided --window 256 --stride 256)
case $heldout in *.u16 | *.u32) score=(--tokens "$heldout" --protocol rows --window 256) ;; esac
nll() { # a model's mean cross-entropy
  "$regroup" eval "$1" "${score[@]}" --json - 2>/dev/null | sed -n 's/.*"nll":[[:space:]]*\([0-9.]*\).*/\1/p' | head -1
}
row() { # label, options
  local label=$1 layers
  shift
  "$regroup" convert "$work/full" "$work/out" --force "$@" >/dev/null 2>&1
  layers=$("$regroup" inspect "$work/out" --json | tr -d ' \n' | sed -n 's/.*"n_kv_head_per_layer":\[\([0-9,]*\)\].*/\1/p')
  printf '| %s | %s | %.4f |\n' "$label" "${layers:-every layer the same}" "$(nll "$work/out")"
}
printf '| conversion | KV heads of the layers | cross-entropy |\n|---|---|---|\n'
printf '| source | %s | %.4f |\n' "$heads" "$(nll "$work/full")"
for n in "${counts[@]}"; do
  share=$(awk -v n="$n" -v h="$heads" 'BEGIN {printf "%.6g%%", 100 * n / h}')
  row "fit + o, $n heads" --kv-heads "$n" --calibrate "$calib"
  row "fit + o, budget $share" --kv-budget "$share" --calibrate "$calib"
  row "fit without text, $n heads" --kv-heads "$n" --method fit
  row "fit without text, budget $share" --kv-budget "$share" --method fit
done
