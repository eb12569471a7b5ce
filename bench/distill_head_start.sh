#!/usr/bin/env bash
# What a better conversion is worth to the distillation after it: held-out loss at every recorded
# step from mean pooling and from fit + refit, and how many fewer tokens reach the same loss.
# distill_head_start.sh REGROUP MODEL OUT KV_HEADS STEPS TRAIN HELDOUT [regroup sweep options ...]
set -eu -o pipefail
[ $# -ge 7 ] || { sed -n 2,4p "$0" | cut -c3- >&2; exit 2; }
regroup=$1 model=$2 out=$3 kv=$4 steps=$5 train=$6 heldout=$7
shift 7
case $heldout in *.u16 | *.u32) kind=--tokens ;; *) kind=--text ;; esac
"$regroup" sweep "$model" "$out" --kv-heads "$kv" --methods mean,fit+o --calibrate "$train" \
  --train "$train" "$kind" "$heldout" --distill "$steps" --set train.eval_every=25 \
  --set train.data.heldout="$heldout" "$@" >&2
evals() { # step, held-out NLL
  sed -nE 's/^\{"step":([0-9]+),"eval":\{"nll":([0-9.eE+-]+).*/\1 \2/p' "$out/train/$1-kv$kv/log.jsonl"
}
paste -d' ' <(evals mean) <(evals fit+o) | awk '
  { step[NR] = $1; mean[NR] = $2; fit[NR] = $4; worse += !($4 < $2); bad += $1 != $3 }
  END {
    if (!NR || bad) { print "the two logs do not match" > "/dev/stderr"; exit 1 }
    printf "%6s %12s %12s   %s\n", "step", "from mean", "from fit+o", "mean needs this many times the steps"
    for (i = 1; i <= NR; i++) {
      times = "more than " sprintf("%.1f", step[NR] / (step[i] ? step[i] : 1))
      if (step[i] == 0) times = "-"
      for (k = NR; k >= 1; k--) if (step[i] && mean[k] <= fit[i]) times = sprintf("%.1f", step[k] / step[i])
      printf "%6d %12.4f %12.4f   %s\n", step[i], mean[i], fit[i], times
    }
    printf "fit+o is better at %d of %d recorded steps\n", NR - worse, NR
  }'
