# For tests/cli: small model folders from nothing but a shell. Sourced.
# make_model DIR KV_HEADS [VOCAB]: llama, 2 layers, 4 heads of 4, width 16, bf16, tied.
make_model() {
  local dir=$1 kv=$2 vocab=${3:-32} at=0 header='{"__metadata__":{"format":"pt"}' l name shape n
  mkdir -p "$dir"
  add() { # name, shape, elements
    header+=",\"$1\":{\"dtype\":\"BF16\",\"shape\":$2,\"data_offsets\":[$at,$((at + 2 * $3))]}"
    at=$((at + 2 * $3))
  }
  add model.embed_tokens.weight "[$vocab,16]" $((vocab * 16))
  for l in 0 1; do
    for name in input_layernorm post_attention_layernorm; do add "model.layers.$l.$name.weight" "[16]" 16; done
    for name in q o; do add "model.layers.$l.self_attn.${name}_proj.weight" "[16,16]" 256; done
    for name in k v; do
      add "model.layers.$l.self_attn.${name}_proj.weight" "[$((kv * 4)),16]" $((kv * 64))
    done
    for name in gate up; do add "model.layers.$l.mlp.${name}_proj.weight" "[24,16]" 384; done
    add "model.layers.$l.mlp.down_proj.weight" "[16,24]" 384
  done
  add model.norm.weight "[16]" 16
  header+='}'
  n=${#header}
  {
    for l in 0 8 16 24 32 40 48 56; do printf "\\x$(printf %02x $((n >> l & 255)))"; done
    printf %s "$header"
    yes 0123456789abcde | head -c "$at" # any text is finite bf16
  } >"$dir/model.safetensors"
  cat >"$dir/config.json" <<J
{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "vocab_size": $vocab,
  "hidden_size": 16,	"intermediate_size": 24, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": $kv,
  "rms_norm_eps": 1e-05, "rope_theta": 1.00E4, "hidden_act": "silu",
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "my_own_key": [1.50, {"a": null}]
}
J
  echo '{"eos_token_id": 2}' >"$dir/generation_config.json"
  echo '{"chat_template": "x"}' >"$dir/tokenizer_config.json"
}

fail() { echo "FAILED: $*"; exit 1; }
# expect CODE PATTERN COMMAND ...: exit code, one line on stderr, and what it says.
expect() {
  local code=$1 pattern=$2 got
  shift 2
  "$@" >"$tmp/stdout" 2>"$tmp/stderr" && got=0 || got=$?
  [ "$got" = "$code" ] || fail "'$*' exited $got instead of $code: $(cat "$tmp/stderr")"
  grep -qE -- "$pattern" "$tmp/stderr" || fail "'$*' said '$(cat "$tmp/stderr")', not '$pattern'"
  [ "$code" = 0 ] || [ "$(grep -vc '^warning: ' "$tmp/stderr")" = 1 ] ||
    fail "'$*' took more than one line: $(cat "$tmp/stderr")"
}
