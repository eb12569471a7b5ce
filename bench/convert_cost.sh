#!/usr/bin/env bash
# What converting with calibration costs, in times that scoring the same tokens takes: a model of
# about 100M parameters (12 heads), MHA to 4 KV heads. The bar: fit and refit of o_proj under 6.
#   bench/convert_cost.sh BUILD_DIR [TOKENS] [GB] [WIDTH]
set -euo pipefail
build=$1 tokens=${2:-65536} gb=${3:-0.2} width=${4:-768}
cmake --build "$build" --target regroup bench_make_checkpoint bench_peak >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$build/bench/bench_make_checkpoint" "$work/model" "$gb" "$width"
# Any ids below the vocabulary's 32000: two bytes each, of 1 to 124.
awk -v n="$((tokens * 2))" 'BEGIN {srand(1); while (n--) printf "%c", 1 + int(rand() * 124)}' >"$work/ids.u16"
"$build/regroup" inspect "$work/model" | sed -n 1,3p
seconds() { # run the rest, print its wall time
  local start
  start=$(date +%s.%N)
  "$@" >/dev/null 2>&1
  awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN {printf "%.2f", b - a}'
}
score() { seconds "$build/regroup" eval "$work/model" --tokens "$work/ids.u16" --protocol rows --window 256; }
first=$(score)
printf '%-24s %8s %8s %10s\n' '' seconds ratio 'peak MiB'
for way in 'fit|--refit none' 'fit + o|--refit o' 'fit + o, grouping fit|--refit o --grouping fit' 'fit + qo|--refit qo'; do
  read -ra options <<<"${way#*|}"
  t=$(seconds "$build/bench/bench_peak" "$work/peak" "$build/regroup" convert "$work/model" "$work/out" --force \
    --kv-heads "$((width / 192))" --calibrate "$work/ids.u16" --calib-tokens "$tokens" "${options[@]}")
  printf '%s|%s|%s\n' "${way%%|*}" "$t" "$(cat "$work/peak")" >>"$work/rows"
done
second=$(score) # before and after: what else the machine did
awk -F'|' -v a="$first" -v b="$second" '
  {printf "%-24s %8.2f %8.2f %10.0f\n", $1, $2, $2 / ((a + b) / 2), $3; ratio[$1] = $2 / ((a + b) / 2)}
  END {
    printf "%-24s %8.2f and %.2f\n", "scoring, before, after", a, b
    exit !(ratio["fit + o"] < 6)
  }' "$work/rows"
