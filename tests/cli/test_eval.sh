#!/usr/bin/env bash
# eval, generate and report through the program: what goes to stdout, what is refused, and the
# numbers of a real model where it lies beside the project.
set -u
regroup=$1 source=$2
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
. "$source/tests/support/model_fixture.sh"
has() { grep -qE -- "$2" "$1" || fail "no '$2' in: $(cat "$1")"; }
value() { # FILE KEY: the first number under that key
  sed -nE "s/^ *\"$2\": *([-0-9.e+]+),?$/\1/p" "$1" | head -1
}
near() { # GOT WANT TOLERANCE; NaN and nothing fail
  awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(a != "" && d <= t && d >= -t) }' ||
    fail "$1 is not within $3 of $2"
}

make_model "$tmp/mha" 4
make_model "$tmp/gqa" 2
for i in $(seq 0 199); do printf "\\x$(printf %02x $((i * 7 % 32)))\\0"; done >"$tmp/ids.u16"
"$regroup" eval "$tmp/mha" "$tmp/gqa" --tokens "$tmp/ids.u16" --window 20 --teacher "$tmp/mha" \
  --context 8 --decode-steps 2 --repeats 1 --json "$tmp/e.json" >"$tmp/out" 2>/dev/null || fail eval
has "$tmp/out" '^model +KV heads +KV B/token +perplexity +KL +agree +prefill@8 +decode@8$'
has "$tmp/out" '/mha +4 of 4 +256 .* 0.0000 ± 0.0000 +100.00 %'
has "$tmp/out" '/gqa +2 of 4 +128 '
has "$tmp/out" '^protocol rows, window 20, 190 tokens counted in 10 windows'
for line in '"kind": "regroup evaluation"' '"attention": "MHA"' '"attention": "GQA"' '"kv_heads": 2' \
  '"bytes_per_token_formula": 128' '"bytes_per_token_allocated": 128' '"tokens_counted": 190'; do
  has "$tmp/e.json" "$line"
done
"$regroup" eval "$tmp/gqa" --tokens "$tmp/ids.u16" --window 20 --json - >"$tmp/out" 2>/dev/null || fail json
[ "$(head -c 1 "$tmp/out")" = '{' ] && ! grep -q 'KV B/token' "$tmp/out" || fail "more than JSON on stdout"
for command in eval generate report; do
  "$regroup" $command --help >"$tmp/out" && has "$tmp/out" "^usage: regroup $command" || fail help
done

expect 2 'expected a model and --text or --tokens' "$regroup" eval "$tmp/mha"
expect 2 'not both' "$regroup" eval "$tmp/mha" --text x --tokens y
expect 2 "'protocol': expected one of strided" "$regroup" eval "$tmp/mha" --tokens y --protocol lm-eval
expect 2 "'context'.*found '1k'" "$regroup" eval "$tmp/mha" --context 1k
expect 2 "did you mean 'window'" "$regroup" eval "$tmp/mha" --windw 5
expect 1 'absent.u16' "$regroup" eval "$tmp/mha" --tokens "$tmp/absent.u16"
expect 1 'has 200 tokens.*needs as many' "$regroup" eval "$tmp/mha" --tokens "$tmp/ids.u16" --window 201
expect 1 'tokenizer.json' "$regroup" eval "$tmp/mha" --text "$tmp/e.json"
expect 1 "Not a directory|cannot" "$regroup" eval "$tmp/mha" --tokens "$tmp/ids.u16" --window 20 --json "$tmp/e.json/x.json"
printf '\x20\0\x01\0' >"$tmp/wide.u16" # id 32 of a vocabulary of 32
expect 1 'wide.u16.*32' "$regroup" eval "$tmp/mha" --tokens "$tmp/wide.u16" --window 2
make_model "$tmp/other" 4 48
expect 1 'vocabulary of 48 tokens' "$regroup" eval "$tmp/mha" "$tmp/other" --tokens "$tmp/ids.u16" --window 20
expect 2 'expected one model folder and --prompt' "$regroup" generate "$tmp/mha"
expect 1 'tokenizer.json' "$regroup" generate "$tmp/mha" --prompt x
expect 2 'expected one run folder' "$regroup" report
expect 1 'neither run.json nor log.jsonl' "$regroup" report "$tmp/mha"

mkdir -p "$tmp/run/eval"
echo '{"name":"cli","variants":[{"id":"mean-kv2","kv_heads":2,"trained":null}]}' >"$tmp/run/run.json"
for m in mha:teacher gqa:mean-kv2-converted; do
  "$regroup" eval "$tmp/${m%:*}" --tokens "$tmp/ids.u16" --window 20 --json "$tmp/run/eval/${m#*:}.json" \
    >/dev/null 2>&1 || fail "eval for report"
done
"$regroup" report "$tmp/run/" >"$tmp/out" || fail report
[ "$(cat "$tmp/out")" = "$tmp/run/report.html" ] || fail "printed $(cat "$tmp/out")"
for f in html md json; do has "$tmp/run/report.$f" mean-kv2; done
has "$tmp/run/report.html" '2× smaller'
[ -z "$(find "$tmp/run" -newer "$tmp/out" -name '*.tmp*' -o -name '*partial*')" ] || fail leftovers
# NaN weights: said, and NaN in every number instead of a crash or a zero.
cp -r "$tmp/gqa" "$tmp/nan"
size=$(stat -c %s "$tmp/nan/model.safetensors")
printf '\xc0\x7f' | dd of="$tmp/nan/model.safetensors" bs=1 seek=$((size - 32)) conv=notrunc 2>/dev/null
"$regroup" eval "$tmp/nan" --tokens "$tmp/ids.u16" --window 20 >"$tmp/out" 2>"$tmp/err" || fail "eval of NaN"
has "$tmp/err" 'warning: .*NaN'
has "$tmp/out" '/nan +2 of 4 +128 +-?nan *$'
# KL over one window has no standard error: the value stands alone.
"$regroup" eval "$tmp/gqa" --tokens "$tmp/ids.u16" --window 20 --max-tokens 20 --teacher "$tmp/gqa" >"$tmp/out" 2>/dev/null || fail "one window"
has "$tmp/out" '/gqa +2 of 4 +128 +[0-9.]+ ± [0-9.]+ +0.0000 +100.00 %'

shared=$source/../shared
[ -f "$shared/checkpoints/stories260K/model.safetensors" ] || exit 0
model=$shared/checkpoints/stories260K
"$regroup" eval "$model" --tokens "$shared/data/stories260K-heldout.u16" --window 256 --json "$tmp/s.json" \
  >"$tmp/out" 2>/dev/null || fail stories
near "$(value "$tmp/s.json" nll)" 1.290917 1e-5
has "$tmp/s.json" '"tokens_counted": 16320'
text=$(sed -nE 's/^ *"text": "(.*)",$/\1/p' "$shared/cases/stories260K.json")
[ ${#text} -gt 200 ] || fail "the case's text"
printf %s "$text" >"$tmp/story.txt"
# gptq with a window of all 89 ids: BOS where the tokenizer puts it, 88 counted.
"$regroup" eval "$model" --text "$tmp/story.txt" --protocol gptq --window 89 --json "$tmp/s.json" \
  >/dev/null 2>&1 || fail "stories text"
near "$(value "$tmp/s.json" nll)" 0.5613761 1e-5
has "$tmp/s.json" '"tokens_counted": 88'
"$regroup" generate "$model" --prompt 'Once upon a time' -n 30 --temperature 0 >"$tmp/out" 2>/dev/null || fail generate
has "$tmp/out" '^, there was a little girl named Lily. She loved to play outside'
"$regroup" generate "$model" --prompt 'Once' -n 30 --seed 5 >"$tmp/a" 2>/dev/null || fail generate
"$regroup" generate "$model" --prompt 'Once' -n 30 --seed 5 >"$tmp/b" 2>/dev/null || fail generate
cmp "$tmp/a" "$tmp/b" || fail "the same seed gave another text"
