#!/usr/bin/env bash
# ptxas_log.sh NVCC ARGUMENTS: compiles, and leaves what ptxas reports about each kernel (registers,
# spills, stack, shared memory) in OBJECT.ptxas. Everything else it says goes to stderr as usual.
set -u
object=
for ((i = 2; i < $#; i++)); do
  [ "${!i}" = -o ] && { next=$((i + 1)); object=${!next}; }
done
said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" -Xptxas -v 2>"$said"
code=$?
report='^ptxas info|bytes stack frame'
[ -n "$object" ] && grep -E "$report" "$said" >"$object.ptxas"
grep -vE "$report" "$said" >&2
exit $code
