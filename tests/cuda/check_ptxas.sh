#!/usr/bin/env bash
# check_ptxas.sh OBJECTS [--table]: reads what ptxas said when the build compiled the kernels
# (tools/ptxas_log.sh). Attention, norm and loss kernels must not spill nor keep arrays in local
# memory at head_dim 64 and 128, for either architecture; no kernel may pass the static limit of
# shared memory. --table prints the checked kernels that compute in bf16 as Markdown, for docs/cuda.md.
set -eu
objects=$1 table=${2:-}
command -v c++filt >/dev/null || { echo "c++filt (binutils) is not here"; exit 77; }

# file, architecture, registers, bytes of stack, of spills, of static shared memory, kernel
kernels=$(find "$objects" -name '*.cu.o.ptxas' | sort | while read -r log; do
  awk -v file="$(basename "$log" .cu.o.ptxas)" -F"'" '
    /Compiling entry function/ { name = $2; sm = $4 }
    /bytes stack frame/ { split($0, n, /[^0-9]+/); stack = n[2]; spill = n[3] + n[4] }
    /ptxas info *: Used/ {
      registers = shared = 0
      if (match($0, /Used [0-9]+/)) registers = substr($0, RSTART + 5, RLENGTH - 5)
      if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
      print file, sm, registers, stack, spill, shared, name
    }' "$log"
done | c++filt -p | sed -E 's/ void / /; s/__nv_bfloat16/bf16/g')

bad=0 checked=0
declare -A rows
while read -r file sm registers stack spill shared kernel; do
  [ -n "$file" ] || continue
  if [ "$shared" -gt 49152 ]; then
    echo "$kernel ($file, $sm): $shared bytes of static shared memory, more than 49152"
    bad=1
  fi
  case $file in cuda_attention*|cuda_norm*|cuda_head_loss*) ;; *) continue ;; esac
  # attention's first template argument, when it is a number, is head_dim
  [[ $file == cuda_attention* && $kernel =~ \<([0-9]+) && ! ${BASH_REMATCH[1]} =~ ^(64|128)$ ]] && continue
  checked=$((checked + 1))
  [[ $kernel == *float* ]] || rows[$file/$kernel]+=" | $sm: $registers, $stack, $spill, $shared"
  if [ "$stack" -ne 0 ] || [ "$spill" -ne 0 ]; then
    echo "$kernel ($file, $sm): $stack bytes of stack, $spill bytes of spills; both must be 0"
    bad=1
  fi
done <<<"$kernels"
for file in cuda_attention_fwd cuda_attention_bwd cuda_attention_decode cuda_norm cuda_head_loss; do
  for sm in sm_80 sm_90; do
    grep -q "^$file $sm " <<<"$kernels" || { echo "nothing of $file for $sm was seen"; bad=1; }
  done
done
if [ "$table" = --table ]; then
  echo "| kernel | GPU: registers, bytes of stack, of spills, of static shared memory | the same |"
  echo "|---|---|---|"
  for name in "${!rows[@]}"; do echo "| \`${name#*/}\`${rows[$name]} |"; done | sort -V
else
  echo "$checked kernels checked of $(wc -l <<<"$kernels")"
fi
exit $bad
