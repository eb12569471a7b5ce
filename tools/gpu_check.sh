#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: builds, proves the kernels against cpu-ref on the device, runs
# compute-sanitizer on small shapes, then measures. Prints one table; under 8 minutes, no network.
#   tools/gpu_check.sh [--record FILE]   also writes the table there, e.g. bench/gpu.md
#   tools/gpu_check.sh --sim             the same steps on the simulator, with tiny shapes: proves
#                                        this script where there is no GPU; its times mean nothing
set -euo pipefail
cd "$(dirname "$0")/.."
preset=cuda record='' bench_args=() test_limit=180
while [ $# -gt 0 ]; do
  case $1 in
    --record) record=${2:?--record needs a file}; shift 2 ;;
    --sim) preset=cuda-sim bench_args=(--tiny) test_limit=900; shift ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
start=$SECONDS failures=0
step() { printf '\n== %s (%d s)\n' "$1" $((SECONDS - start)); }
failed() { echo "FAILED: $1"; failures=$((failures + 1)); }

step "build"
targets=(regroup bench_gpu tests/cuda_sim/all tests/cuda/all)
{ cmake --preset $preset && cmake --build --preset $preset --target "${targets[@]}"; } \
  >"$work/build" 2>&1 || { tail -n 40 "$work/build"; exit 1; }
build=build-$preset
$build/regroup --version

step "ops, streams, graphs and training on the device against the CPU"
timeout $test_limit ctest --test-dir $build -R '^cuda' -j 4 --output-on-failure >"$work/tests" 2>&1 ||
  { grep -v '\[ *\(RUN\|OK\)' "$work/tests" | tail -n 60; failed "tests (limit: $test_limit s)"; }
grep 'Test *#' "$work/tests" || true

step "compute-sanitizer on small shapes"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ $preset = cuda-sim ]; then
  echo "not on the simulator, which checks every access itself"
elif [ -z "$sanitizer" ]; then
  echo "compute-sanitizer is not installed: skipped (it comes with the CUDA toolkit)"
else
  # Our own calls are all checked; what libraries try and take back is no error.
  for tool in "memcheck --report-api-errors no" racecheck; do
    timeout 120 "$sanitizer" --tool $tool --error-exitcode 9 $build/bench/bench_gpu --tiny \
      >"$work/sanitizer" 2>&1 || { tail -n 20 "$work/sanitizer"; failed "compute-sanitizer $tool"; }
    grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$work/sanitizer" || true
  done
fi

step "measurements"
timeout 240 $build/bench/bench_gpu "${bench_args[@]}" >"$work/table" 2>"$work/device" ||
  failed "bench_gpu: $(tail -n 1 "$work/device")"
sed -n 1p "$work/device"
cat "$work/table"

if [ -n "$record" ]; then
  { echo "# What one GPU does"
    echo
    echo "$(sed -n 1p "$work/device"), $(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown);"
    echo "made by \`tools/gpu_check.sh --record\`. Limits are measured in the same run."
    echo
    cat "$work/table"; } >"$record"
  echo "Recorded: $record"
fi
step "$failures failures"
[ $failures -eq 0 ]
