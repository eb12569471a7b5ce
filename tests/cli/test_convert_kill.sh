#!/usr/bin/env bash
# convert killed with SIGKILL at random moments: the output is absent or complete; with --force it
# is the old one or the new one. What a killed run left beside it is gone after the next run.
set -u
regroup=$1 source=$2
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
. "$source/tests/support/model_fixture.sh"
make_model "$tmp/m" 4 200000 # 6.4 MB
RANDOM=20

whole() { # is the folder one of the two right results, or absent (where that is allowed)?
  local sum
  [ -e "$tmp/out" ] || { [ "$1" = maybe ] && return 0; fail "the old output is gone"; }
  "$regroup" inspect "$tmp/out" >"$tmp/log" 2>&1 || fail "half an output: $(cat "$tmp/log")"
  sum=$(cat "$tmp/out"/* | sha256sum)
  case $sum in "$two" | "$one") ;; *) fail "neither the old nor the new output" ;; esac
}
once() { # run and kill after a random part of the time a whole run takes
  "$regroup" convert "$tmp/m" "$tmp/out" "$@" >"$tmp/log" 2>&1 &
  local pid=$!
  sleep "0.$(printf %06d $((RANDOM * RANDOM % limit)))"
  kill -9 $pid 2>"$tmp/log"; wait $pid 2>"$tmp/log"
  [ $? = 137 ] && killed=$((killed + 1))
}
start=$(date +%s%N)
"$regroup" convert "$tmp/m" "$tmp/out" --kv-heads 2 >"$tmp/log" || fail "convert"
limit=$((($(date +%s%N) - start) / 1000 * 5 / 4 + 1000)) # microseconds
[ $limit -lt 900000 ] || limit=900000
two=$(cat "$tmp/out"/* | sha256sum)
"$regroup" convert "$tmp/m" "$tmp/out" --kv-heads 1 --force >"$tmp/log" || fail "convert --force"
one=$(cat "$tmp/out"/* | sha256sum)
killed=0
for i in $(seq 20); do rm -rf "$tmp/out"; once --kv-heads 2; whole maybe; done
[ -e "$tmp/out" ] || "$regroup" convert "$tmp/m" "$tmp/out" --kv-heads 2 >"$tmp/log" || fail "after kills"
for i in $(seq 20); do once --kv-heads $((i % 2 + 1)) --force; whole never; done
[ $killed -ge 5 ] || fail "only $killed of 40 runs were killed in time"
"$regroup" convert "$tmp/m" "$tmp/out" --kv-heads 2 --force >"$tmp/log" || fail "the run after"
[ "$(ls "$tmp" | grep -c partial)" = 0 ] || fail "left behind: $(ls "$tmp")"
echo "ok, $killed of 40 killed"
