#!/usr/bin/env bash
# Convert against cp, side by side on one disk: medians over alternating runs, each until the bytes
# are on the disk (cp, then sync of its files; convert syncs by itself). Prints peak memory too.
#   bench/convert_stream.sh BUILD_DIR [WORK_DIR] [GB] [RUNS]
# Speeds count bytes *written*, so merging away most of K and V does not flatter convert.
set -euo pipefail
build=$1 work=${2:-$(mktemp -d)} gb=${3:-2} runs=${4:-5}
cmake --build "$build" --target regroup bench_make_checkpoint bench_peak >/dev/null
mkdir -p "$work"
results=$(mktemp -d)
trap 'rm -rf "$results" "$work/model" "$work/copy" "$work/out"' EXIT
"$build/bench/bench_make_checkpoint" "$work/model" "$gb"
bytes() { cat "$1"/* | wc -c; }
record() { # name, start, bytes
  awk -v t="$2" -v e="$(date +%s.%N)" -v b="$3" 'BEGIN {print b / (e - t) / 1e6}' >>"$results/$1"
}
median() { sort -g "$results/$1" | awk '{v[NR] = $1} END {print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2}'; }
input=$(bytes "$work/model") # this also brings the input into the page cache, for both
for ((i = 1; i <= runs; i++)); do
  sync
  start=$(date +%s.%N)
  cp -r --reflink=never "$work/model" "$work/copy"
  sync "$work/copy"/*
  record cp "$start" "$input"
  rm -rf "$work/copy"
  sync
  start=$(date +%s.%N)
  "$build/bench/bench_peak" "$results/peak" "$build/regroup" convert "$work/model" "$work/out" \
    --kv-heads 8 --method mean --max-shard-size 500MB
  end=$(date +%s.%N)
  output=$(bytes "$work/out")
  awk -v t="$start" -v e="$end" -v b="$output" 'BEGIN {print b / (e - t) / 1e6}' >>"$results/convert"
  cat "$results/peak" >>"$results/peaks"
  rm -rf "$work/out"
  echo "run $i: cp $(tail -1 "$results/cp") MB/s, convert $(tail -1 "$results/convert") MB/s" >&2
done
awk -v c="$(median cp)" -v r="$(median convert)" -v m="$(sort -g "$results/peaks" | tail -1)" \
  -v i="$input" -v o="$output" 'BEGIN {
    printf "input %.2f GB, output %.2f GB, medians of bytes written per second\n", i / 1e9, o / 1e9
    printf "cp       %6.0f MB/s\nconvert  %6.0f MB/s\n", c, r
    printf "ratio    %6.2f       0.80 or more wanted\npeak     %6.1f MiB   less than 300 wanted\n", r / c, m
    exit !(r / c >= 0.8 && m < 300)}'
