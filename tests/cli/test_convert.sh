#!/usr/bin/env bash
# convert: the folder it writes, what it leaves alone, what it refuses, and a full disk.
set -u
regroup=$1 source=$2
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
. "$source/tests/support/model_fixture.sh"
m=$tmp/m
make_model "$m" 4
echo old >"$m/pytorch_model.bin"; echo old >"$m/consolidated.safetensors"; mkdir "$m/original"

# A dry run says what would be and writes nothing.
"$regroup" convert "$m" "$tmp/out" --kv-heads 2 --dry-run >"$tmp/plan" || fail dry run
grep -qE 'fit +model.layers.0.self_attn.k_proj.weight +BF16 \[16, 16\] -> BF16 \[8, 16\], 256 bytes' "$tmp/plan" || fail "plan: $(cat "$tmp/plan")"
grep -qE 'KV cache +128 -> 64 bytes per token' "$tmp/plan" || fail "plan: $(cat "$tmp/plan")"
[ "$(ls "$tmp" | grep -c out)" = 0 ] || fail "a dry run wrote something"

expect 0 'pytorch_model.bin holds the old weights' "$regroup" convert "$m" "$tmp/out" --kv-heads 2
grep -q 'consolidated.safetensors' "$tmp/stderr" || fail "silent about consolidated.safetensors"
[ "$(ls "$tmp/out" | tr '\n' ' ')" = "config.json generation_config.json model.safetensors regroup.json tokenizer_config.json " ] ||
  fail "wrote $(ls "$tmp/out")"
cmp -s "$m/generation_config.json" "$tmp/out/generation_config.json" || fail "generation_config.json"
# config.json: exactly one value changes and head_dim joins; every other byte stays.
sed -e 's/"num_key_value_heads": 4/"num_key_value_heads": 2/' -e 's/\(my_own_key.*}\]\)$/\1,\n  "head_dim": 4/' \
  "$m/config.json" | cmp - "$tmp/out/config.json" || fail "config.json: $(cat "$tmp/out/config.json")"
"$regroup" inspect "$tmp/out" | grep -q 'GQA: 4 query heads, 2 KV heads' || fail "inspect of the result"

# Shards: an index with the right total, and the same tensors as in one file.
"$regroup" convert "$m" "$tmp/shards" --kv-heads 2 --max-shard-size 2KB >"$tmp/log" || fail shards
total=$("$regroup" inspect "$tmp/out" --json | sed -n 's/^  "bytes": \([0-9]*\),*/\1/p')
grep -q "\"total_size\": $total" "$tmp/shards/model.safetensors.index.json" || fail "total_size is not $total"
"$regroup" convert "$tmp/shards" "$tmp/joined" --kv-heads 2 >"$tmp/log" || fail joined
cmp -s "$tmp/out/model.safetensors" "$tmp/joined/model.safetensors" || fail "shards joined differ"
grep -q '"history"' "$tmp/joined/regroup.json" || fail "a conversion of a conversion forgot its past"
rm "$tmp/shards/model-00002-of-"*
expect 1 'model-00002-of-.* is missing' "$regroup" convert "$tmp/shards" "$tmp/none" --kv-heads 1

# Same head count: the same tensor bytes. Repeat, then mean: the same again.
"$regroup" convert "$m" "$tmp/same" --kv-heads 4 --calibrate "$tmp/m/config.json" --json >"$tmp/log" || fail same
grep -q '"refit": "none"' "$tmp/same/regroup.json" || fail "a refit that was not"
n=$("$regroup" inspect "$m" --json | sed -n 's/^  "bytes": \([0-9]*\),*/\1/p')
cmp <(tail -c "$n" "$m/model.safetensors") <(tail -c "$n" "$tmp/same/model.safetensors") || fail "bytes changed"
"$regroup" convert "$tmp/out" "$tmp/more" --kv-heads 4 --method repeat >"$tmp/log" &&
  "$regroup" convert "$tmp/more" "$tmp/back" --kv-heads 2 --method mean >"$tmp/log" || fail repeat
cmp -s "$tmp/out/model.safetensors" "$tmp/back/model.safetensors" || fail "repeat then mean changed bytes"
"$regroup" convert "$m" "$tmp/f16" --kv-heads 1 --dtype f16 >"$tmp/log" 2>"$tmp/warned" || fail f16
grep -q '"torch_dtype": "float16"' "$tmp/f16/config.json" || fail "torch_dtype"
grep -q 'tensor model.norm.weight: .* too large for F16' "$tmp/warned" || fail "silent overflow: $(cat "$tmp/warned")"

expect 2 'give --kv-heads N, or --kv-budget' "$regroup" convert "$m" "$tmp/none"
expect 2 'give --kv-heads N, or --kv-budget' "$regroup" convert "$m" "$tmp/none" --kv-heads 1 --kv-budget 50%
# What can fail at once fails before anything is measured. Overflow (these weights are huge) is no small loss.
expect 1 'layer 0 .* a loss of -?nan cannot be compared' "$regroup" convert "$m" "$tmp/none" --kv-budget 50% --calibrate self --calib-tokens 512 --calib-window 64
printf '\377\377' >"$tmp/foreign.u16"
expect 1 'exists; give another output' "$regroup" convert "$m" "$tmp/out" --kv-budget 50% --calibrate "$tmp/foreign.u16"
expect 1 'nothing.txt does not exist' "$regroup" convert "$m" --kv-heads 2 --calibrate "$tmp/nothing.txt" --dry-run
expect 2 "calibrate.*empty" "$regroup" convert "$m" "$tmp/none" --kv-heads 2 --calibrate ""
expect 2 "stands alone" "$regroup" convert "$m" "$tmp/none" --kv-heads 2 --calibrate "self,$tmp/foreign.u16"
for share in 25 0% 101% 5x%; do
  expect 2 "expected a share" "$regroup" convert "$m" "$tmp/none" --kv-budget "$share"
done
expect 2 "method.*expected one of" "$regroup" convert "$m" "$tmp/none" --kv-heads 2 --method average
expect 2 "expected a size" "$regroup" convert "$m" "$tmp/none" --kv-heads 2 --max-shard-size lots
expect 2 "expected a model folder and an output" "$regroup" convert "$m" --kv-heads 2
expect 1 '3 KV heads do not divide its 4 query heads' "$regroup" convert "$m" "$tmp/none" --kv-heads 3
expect 1 'exists; give another output or --force' "$regroup" convert "$m" "$tmp/out" --kv-heads 2
expect 1 'is the input' "$regroup" convert "$m" "$m/" --kv-heads 2 --force
make_model "$tmp/outer/inner" 4; cp "$m/config.json" "$tmp/outer/"
expect 1 'contains the input' "$regroup" convert "$tmp/outer/inner" "$tmp/outer" --kv-heads 2 --force
mkdir "$tmp/precious"; echo keep >"$tmp/precious/letter.txt"
expect 1 'precious' "$regroup" convert "$m" "$tmp/precious" --kv-heads 2 --force
[ -f "$tmp/precious/letter.txt" ] || fail "removed what is not ours"
expect 0 '' "$regroup" convert "$m" "$tmp/out" --kv-heads 1 --force
"$regroup" inspect "$tmp/out" | grep -q 'MQA: 4 query heads, 1 KV head,' || fail "--force"

# Out of space, as a file-size limit: one line, exit 1, nothing under the final name or beside it.
make_model "$tmp/big" 4 4096
expect 1 'model.safetensors.*(File too large|No space)' bash -c "ulimit -f 64; exec '$regroup' convert '$tmp/big' '$tmp/none' --kv-heads 2"
if [ "$(id -u)" = 0 ] && mkdir "$tmp/disk" && mount -t tmpfs -o size=64k none "$tmp/disk" 2>"$tmp/log"; then
  expect 1 'disk/none.*No space left' "$regroup" convert "$tmp/big" "$tmp/disk/none" --kv-heads 2
  left=$(ls "$tmp/disk"); umount "$tmp/disk"; [ -z "$left" ] || fail "left on a full disk: $left"
fi
expect 1 'stdout' bash -c "'$regroup' convert '$tmp/more' '$tmp/last' --kv-heads 2 >/dev/full"
[ "$(ls "$tmp" | grep -cE 'none|partial')" = 0 ] || fail "left behind: $(ls "$tmp")"
echo ok
