#!/usr/bin/env bash
# Strange surroundings: devices and links as outputs, closed streams, names that are not UTF-8,
# empty names, files where folders belong.
set -u
regroup=$1 source=$2
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
. "$source/tests/support/model_fixture.sh"
m=$tmp/m
make_model "$m" 4
for i in $(seq 0 99); do printf "\\x$(printf %02x $((i * 7 % 32)))\\0"; done >"$tmp/ids.u16"
score=("$regroup" eval "$m" --tokens "$tmp/ids.u16" --window 20)

expect 2 'expected a command' "$regroup"
expect 1 'cannot write the result' bash -c "'$regroup' --help >/dev/full"
[ ! -s "$tmp/stdout" ] || fail "printed $(cat "$tmp/stdout")"

# A pipe that is written to stays a pipe; a link stays a link.
mkfifo "$tmp/pipe"
cat "$tmp/pipe" >"$tmp/got" &
"${score[@]}" --json "$tmp/pipe" >"$tmp/out" 2>"$tmp/err" || fail "json to a pipe: $(cat "$tmp/err")"
[ -p "$tmp/pipe" ] || fail "the pipe was replaced by a file"
wait
grep -q '"kind": "regroup evaluation"' "$tmp/got" || fail "pipe got $(cat "$tmp/got")"
echo old >"$tmp/real.json"; ln -s real.json "$tmp/link.json"
"${score[@]}" --json "$tmp/link.json" >"$tmp/out" 2>"$tmp/err" || fail "json to a link"
[ -L "$tmp/link.json" ] && grep -q regroup "$tmp/real.json" || fail "the link was replaced"
expect 1 'is a folder; --json needs a file' "${score[@]}" --json "$tmp"
make_model "$tmp/disk/old" 4; ln -s disk/old "$tmp/out-link"
"$regroup" convert "$m" "$tmp/out-link" --kv-heads 2 --force >"$tmp/out" || fail "convert to a link"
[ -L "$tmp/out-link" ] && [ -f "$tmp/disk/old/regroup.json" ] || fail "the link to a folder was replaced"

# --force replaces models, not whatever has a config.json.
mkdir -p "$tmp/project/src"; echo '{}' >"$tmp/project/config.json"
expect 1 'project holds no model' "$regroup" convert "$m" "$tmp/project" --kv-heads 2 --force
[ -d "$tmp/project/src" ] || fail "removed a project"

# A link farm like the Hugging Face cache's: the output holds files, not links.
mkdir "$tmp/blobs" "$tmp/snapshot"
for f in "$m"/*; do cp "$f" "$tmp/blobs/"; ln -s "../blobs/${f##*/}" "$tmp/snapshot/"; done
"$regroup" convert "$tmp/snapshot" "$tmp/from-cache" --kv-heads 2 >"$tmp/out" || fail "link farm"
[ -z "$(find "$tmp/from-cache" -type l)" ] || fail "links in the output"

expect 1 'is a file; give the folder' "$regroup" inspect "$m/model.safetensors"
expect 1 'a file has that name' "$regroup" convert "$m" "$m/config.json/x" --kv-heads 2
expect 2 "key 'out' is missing" "$regroup" run <(echo "{\"model\":\"$m\",\"out\":\"\",\"kv_heads\":[\"2\"],\"eval\":{\"tokens\":\"$tmp/ids.u16\"}}")

# A file that cannot be written does not cost the table.
expect 1 'cannot write /dev/full: No space' "${score[@]}" --json /dev/full
[ -c /dev/full ] || fail "/dev/full is no device any more"
grep -q '^model .*perplexity' "$tmp/stdout" || fail "no table: $(cat "$tmp/stdout")"

# run: lists take numbers, no variant twice, and a wrong request does not bind the folder.
run_with() { # KV_HEADS METHODS TOKENS [--set KEY=VALUE]
  echo "{\"model\":\"$m\",\"out\":\"$tmp/run\",\"kv_heads\":$1,\"methods\":$2,\"eval\":{\"tokens\":\"$tmp/$3\",\"window\":20}}" >"$tmp/run.json"
  "$regroup" run "$tmp/run.json" "${@:4}"
}
expect 2 'ask for mean-kv2 twice' run_with '[2, "2"]' '["mean"]' ids.u16
expect 2 "key 'methods' is missing" run_with '[2]' '[]' ids.u16
expect 2 'expected a list of strings' run_with '[1.5]' '["mean"]' ids.u16
expect 1 '3 KV heads do not divide' run_with '[2, 3]' '["mean"]' ids.u16
expect 1 'absent.u16 does not exist' run_with '[2]' '["mean"]' absent.u16
[ ! -e "$tmp/run" ] || fail "a refused run left $(find "$tmp/run")"
expect 1 'holds a model; give another' run_with '[2]' '["mean"]' ids.u16 --set "out=$m"
expect 0 'done in' run_with '[2, 1]' '["mean"]' ids.u16

# Names: any bytes in, UTF-8 out; one line, and no escapes for the terminal, whatever a file says.
strange=$tmp/$'a\xffb\nc'
cp -r "$m" "$strange"
"$regroup" inspect "$strange" --json >"$tmp/out" || fail "a name that is not UTF-8"
grep -q $'a\xef\xbf\xbdb\\\\nc"' "$tmp/out" || fail "JSON with $(grep '"model"' "$tmp/out")"
sed -i 's/"llama"/"\\u001b[31m\\nred"/' "$strange/config.json"
expect 1 'model_type is' "$regroup" inspect "$strange"
! grep -q $'\x1b' "$tmp/stderr" || fail "an escape reached the terminal"
cp "$m/config.json" "$strange/"; sed -i $'s/my_own_key/my_\xff_key/' "$strange/config.json"
expect 1 'not valid JSON: invalid UTF-8 at byte' "$regroup" inspect "$strange"
sed 's/"my_own_key"/"layer_types": "full", &/' "$m/config.json" >"$strange/config.json"
expect 1 'layer_types is "full"' "$regroup" inspect "$strange"

# Started with its streams closed: no shard takes their numbers (f16 warns while it writes).
"$regroup" convert "$m" "$tmp/plain" --kv-heads 2 --dtype f16 >"$tmp/out" 2>"$tmp/err" || fail plain
for streams in '>&-' '2>&-' '>&- 2>&- <&-'; do
  rm -rf "$tmp/closed"
  bash -c "'$regroup' convert '$m' '$tmp/closed' --kv-heads 2 --dtype f16 --max-shard-size 1KB $streams" 2>"$tmp/err"
  "$regroup" convert "$tmp/closed" "$tmp/again" --kv-heads 2 --force >"$tmp/out" 2>"$tmp/err" || fail "after $streams"
  cmp -s "$tmp/again/model.safetensors" "$tmp/plain/model.safetensors" || fail "$streams: damaged"
done
echo ok
