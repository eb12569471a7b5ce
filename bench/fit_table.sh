#!/usr/bin/env bash
# Cross-entropy after conversion without training, method by method: heads of a GQA model copied
# until every query head has its own (exact), then merged again.
#   bench/fit_table.sh REGROUP MODEL CALIB HELDOUT [KV_HEADS...]
# CALIB and HELDOUT: text or token files; HELDOUT is scored in rows of 256 tokens.
set -euo pipefail
regroup=$1 model=$2 calib=$3 heldout=$4
shift 4
counts=("${@:-2}")
[ $# -gt 0 ] || counts=(2 1)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
heads=$("$regroup" inspect "$model" --json | sed -n 's/.*"n_head":[[:space:]]*\([0-9]*\).*/\1/p' | head -1)
"$regroup" convert "$model" "$work/full" --kv-heads "$heads" --method repeat >/dev/null
ways=("mean|--method mean" "fit, no text|--method fit" "procrustes|--method procrustes --refit none"
      "fit|--method fit --refit none" "mean + o|--method mean --refit o" "fit + o|--refit o"
      "fit + qo|--refit qo" "fit + qkvo|--refit qkvo" "grouped fit + o|--refit o --grouping fit")
nll() { # a model's mean cross-entropy
  local data=--text
  case $heldout in *.u16 | *.u32) data=--tokens ;; esac
  "$regroup" eval "$1" $data "$heldout" --protocol rows --window 256 --json - 2>/dev/null |
    sed -n 's/.*"nll":[[:space:]]*\([0-9.]*\).*/\1/p' | head -1
}
printf '| method |'
printf ' %s KV heads | seconds |' "${counts[@]}"
printf '\n|---|'
printf -- '---|---|%.0s' "${counts[@]}"
printf '\n| source | %s |\n' "$(nll "$work/full")"
for way in "${ways[@]}"; do
  printf '| %s |' "${way%%|*}"
  for n in "${counts[@]}"; do
    read -ra options <<<"${way#*|}"
    case ${way%%|*} in mean | 'fit, no text') ;; *) options+=(--calibrate "$calib") ;; esac
    start=$(date +%s.%N)
    "$regroup" convert "$work/full" "$work/out" --kv-heads "$n" --force "${options[@]}" >/dev/null 2>&1
    end=$(date +%s.%N)
    printf ' %s | %.1f |' "$(nll "$work/out")" "$(awk -v a="$start" -v b="$end" 'BEGIN {print b - a}')"
  done
  printf '\n'
done
