#!/usr/bin/env bash
# inspect: what it prints, what it refuses, and that MHA, GQA and MQA come from the tensors.
set -u
regroup=$1 source=$2
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
. "$source/tests/support/model_fixture.sh"
has() { grep -qE -- "$1" "$tmp/out" || fail "no '$1' in: $(cat "$tmp/out")"; }

for kv in 4:MHA 2:GQA 1:MQA; do
  make_model "$tmp/m" "${kv%:*}"
  "$regroup" inspect "$tmp/m" >"$tmp/out" || fail "inspect ${kv%:*}"
  has "attention +${kv#*:}: 4 query heads, ${kv%:*} KV head"
done
make_model "$tmp/m" 2
"$regroup" inspect "$tmp/m" --context 1000 --batch 3 --cache-dtype f32 --json --scan >"$tmp/out" || fail json
# parameters: 32*16 + 2*(2*16 + 2*256 + 2*128 + 3*384) + 16; bytes: 2 sides * 2 layers * 2 * 4 * 4
for line in '"parameters": 4432' '"bytes_per_token": 128' '"bytes": 384000' '"context": 1000' \
  '"attention": "GQA"' '"head_dim": 4' '"BF16": 4432' '"nonfinite": \[\]'; do has "$line"; done
"$regroup" inspect --help >"$tmp/out" && has 'usage: regroup inspect' || fail help

expect 2 'expected one model folder' "$regroup" inspect
expect 2 "unknown.*did you mean 'batch'" "$regroup" inspect "$tmp/m" --bath 2
expect 1 'does not exist|cannot open' "$regroup" inspect "$tmp/nowhere"
# config.json says MHA, the tensors are GQA: the confusion this command is for.
sed -i 's/"num_key_value_heads": 2/"num_key_value_heads": 4/' "$tmp/m/config.json"
expect 1 'model.layers.0.self_attn.k_proj.weight: expected shape \[16, 16\].*found \[8, 16\]' "$regroup" inspect "$tmp/m"
sed -i 's/"num_key_value_heads": 4/"num_key_value_heads": 3/' "$tmp/m/config.json"
expect 1 'config.json: num_key_value_heads is 3' "$regroup" inspect "$tmp/m"
make_model "$tmp/m" 2
sed -i 's/silu/gelu/' "$tmp/m/config.json"
expect 1 'config.json: hidden_act is "gelu"' "$regroup" inspect "$tmp/m"
echo '{' >"$tmp/m/config.json"
expect 1 'config.json: not valid JSON' "$regroup" inspect "$tmp/m"
: >"$tmp/m/config.json"
expect 1 'config.json: empty' "$regroup" inspect "$tmp/m"
rm "$tmp/m/config.json"
expect 1 'config.json' "$regroup" inspect "$tmp/m"
make_model "$tmp/m" 2
truncate -s -1 "$tmp/m/model.safetensors"
expect 1 'model.safetensors: tensor .*truncated' "$regroup" inspect "$tmp/m"
truncate -s 50 "$tmp/m/model.safetensors"
expect 1 'model.safetensors: truncated' "$regroup" inspect "$tmp/m"
: >"$tmp/m/model.safetensors"
expect 1 'model.safetensors: not a safetensors file' "$regroup" inspect "$tmp/m"
rm "$tmp/m/model.safetensors"
expect 1 'neither model.safetensors nor' "$regroup" inspect "$tmp/m"
# A NaN is reported with its tensor: the last bytes are model.norm.weight's.
make_model "$tmp/m" 2
size=$(stat -c %s "$tmp/m/model.safetensors")
printf '\xff\xff\x80\x7f' | dd of="$tmp/m/model.safetensors" bs=1 seek=$((size - 4)) conv=notrunc 2>"$tmp/dd"
expect 0 'tensor model.norm.weight: 1 NaN and 1 infinite' "$regroup" inspect "$tmp/m" --scan
echo ok
