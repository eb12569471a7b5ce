#!/usr/bin/env bash
# Installs what is missing from Debian's packages, configures and builds. quickstart.sh and test.sh
# call it; arguments go to the build (--target regroup). Asks nothing; on a system without apt it
# prints what is needed and stops.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(build-essential cmake ninja-build pkg-config libdnnl-dev libcjson-dev zlib1g-dev
          libpcre2-dev libutf8proc-dev liblapacke-dev libopenblas-openmp-dev libcmocka-dev
          libboost-context-dev bible-kjv)

missing=()
if command -v dpkg-query >/dev/null; then
  for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q '^install ok installed' || missing+=("$p")
  done
fi
if ! command -v apt-get >/dev/null; then
  echo "This script installs packages with apt-get (Debian 12), which is not here." >&2
  echo "Install the equivalents of these, then run: cmake --preset release && cmake --build --preset release" >&2
  echo "  ${packages[*]}" >&2
  exit 1
fi
if [ ${#missing[@]} -gt 0 ]; then
  echo "Installing Debian packages: ${missing[*]}"
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "Not root and no sudo: install the packages above, then run this again." >&2; exit 1; }
    as_root=(sudo)
  fi
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update -q &&
         "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "apt-get failed (whole log: $log)" >&2
    exit 1
  fi
  rm -f "$log"
fi

echo "Building (build/)"
cmake --preset release >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
rm -f build-configure.log
cmake --build --preset release "$@"
