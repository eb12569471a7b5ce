#!/usr/bin/env bash
# Sets up like quickstart.sh, then runs all tests. Arguments go to ctest: ./test.sh -R model
set -euo pipefail
cd "$(dirname "$0")"
tools/setup.sh
exec ctest --test-dir build --output-on-failure "$@"
