#!/usr/bin/env bash
# Dependencies point one way: a room may include only itself and the rooms listed here, and a
# library's header appears only where it belongs. Unique file names, and files stay under 600 lines.
set -u
cd "$1" || exit 1
declare -A may=(
  [core]="core" [checkpoints]="core checkpoints" [kernels]="core kernels" [data]="core data"
  [model]="core checkpoints kernels model"
  [convert]="core checkpoints kernels data model convert"
  [train]="core checkpoints kernels data model train"
  [eval]="core checkpoints kernels data model eval"
  [cli]="core checkpoints kernels data model convert train eval cli"
)
bad=0 seen=0
complain() { echo "$1"; bad=1; }
for room in "${!may[@]}"; do
  out=$(grep -rnE '^#include "[a-z_]+/' "$room" --include='*.c' --include='*.h' \
          --include='*.cu' --include='*.cuh' |
    awk -F'"' -v may=" ${may[$room]} " '
      { split($2, part, "/") }
      index(may, " " part[1] " ") == 0 { split($0, at, ":"); print at[1] " includes " $2 }
      END { print "lines " NR }')
  seen=$((seen + ${out##*lines }))
  out=$(sed '$d' <<<"$out")
  [ -z "$out" ] || complain "$out"
done
only() { # header pattern, the place it may appear in
  grep -rlE "#include [<\"]$1" core checkpoints kernels data model convert train eval cli |
    grep -vE "^$2" | while read -r f; do echo "$f includes $1, which belongs in $2"; done
}
found=$(only 'cjson/' 'core/json'; only 'oneapi/|#include <dnnl' 'kernels/cpu/'
        only '(lapacke|cblas)' 'convert/linalg'
        only '(cuda|cublas|cudnn)' 'kernels/cuda/'; only '(mpi|nccl)' 'train/comm_')
[ -z "$found" ] || complain "$found"
files() { find core checkpoints kernels data model convert train eval cli tests bench \
            -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh'; }
twins=$(files | xargs -n1 basename | sort | uniq -d)
[ -z "$twins" ] || complain "file names used twice: $twins"
long=$(files | xargs wc -l | awk '$2 != "total" && $1 > 600 { print $2 " has " $1 " lines, more than 600" }')
[ -z "$long" ] || complain "$long"
[ "$seen" -gt 50 ] || complain "only $seen include lines seen: is the pattern still right?"
exit $bad
