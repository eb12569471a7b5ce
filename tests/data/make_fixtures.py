#!/usr/bin/env python3
"""make_fixtures.py: small tokenizers and the ids that the libraries they come from give.

Writes fixtures/ beside itself. Needs `tokenizers` and `sentencepiece`; running the tests does not.
"""
import io
import json
import os

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "fixtures")
DEMO = os.path.join(HERE, "../../configs/demo/model/tokenizer.json")

PROSE = [
    "The north wind and the sun were disputing which of them was the stronger, when a traveller",
    "came along wrapped in a warm cloak. They agreed that the one who first succeeded in making the",
    "traveller take his cloak off should be considered stronger than the other. Then the north wind",
    "blew as hard as he could, but the more he blew the more closely did the traveller fold his",
    "cloak around him; and at last the north wind gave up the attempt. Then the sun shone out",
    "warmly, and immediately the traveller took off his cloak. And so the north wind was obliged to",
    "confess that the sun was the stronger of the two. It's 1234 miles, isn't it? We've 56; I'll go.",
    "naïve café déjà    four spaces\tand a tab", "日本語 日本 中文 日本語", "x = y[0] + z[1];  // two",
]
TEXTS = [
    "", " ", "a", "The north wind", " the sun", "the  two   three    four spaces ", "naïve café déjà vu",
    "日本語と中文、日本。", "emoji 🙂👍🏽 end", "tab\tand\nnewline\r\n\r\nmore\n\n\n  indented\n",
    "It's I'LL we've don't CAN'T 's", "12 345 6789 1234567", "x = y[0] + z[1]; // !?...",
    "cafe\u0301 e\u0301 ﬁ ① ½ ²", "\u00a0no-break\u3000wide", "<s>the</s> <|end|> the<|end|>sun",
    "the <tool> wind  <tool>  ! word sword word", "\u2581mark\u2581\u2581here", "<0x41> <unk>", "\x01\x7f\u200b",
    "Ünïcödé ĝŝ Ж я א ש ع", "strongerstrongerthenorthwind" * 3, "  ", "\n", "\n\n the",
    "a strongerthan b strongerthanc",
]


def noise(n):
    """The text that the test makes too: an LCG over a few characters."""
    pool = "eeett aaonhis  rdl.\n,'1\t" + "é日本語🙂x\u2581A"
    state, out = 1, []
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(pool[(state >> 16) % len(pool)])
    return "".join(out)


def fnv(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        for byte in int(i).to_bytes(4, "little"):
            h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def cases(encode, decode):
    # Not compared where the library's decoding looks at more than two neighbours: special tokens,
    # unknown characters, parts of one, several marks at the start.
    result = [{"text": t, "ids": encode(t), "decoded": decode(encode(t))} for t in TEXTS]
    for case in result:
        if set("<\ufffd\u2047\u2581") & set(case["text"] + case["decoded"]):
            del case["decoded"]
    long = encode(noise(20000))
    return {"cases": result, "noise": {"n": len(long), "hash": fnv(long)}}


def hf_cases(tokenizer):
    return cases(
        lambda t: tokenizer.encode(t, add_special_tokens=False).ids,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
    )


def write(name, text):
    with open(os.path.join(OUT, name), "w", encoding="utf8") as f:
        f.write(text)


def train(tokenizer, size, specials, **more):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False, **more)
    tokenizer.train_from_iterator(PROSE, trainer)
    return tokenizer


def byte_level(split, normalizer):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    byte_step = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    t.pre_tokenizer = pre.Sequence([pre.Split(Regex(split), "isolated"), byte_step])
    t.decoder = decoders.ByteLevel()
    return train(t, 256 + 150, [], initial_alphabet=sorted(pre.ByteLevel.alphabet()))


def metaspace(specials, **options):
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre.Metaspace()
    train(t, len(specials) + 220, specials, limit_alphabet=70)
    tree = json.loads(t.to_str())
    tree["added_tokens"] = [a for a in tree["added_tokens"] if not a["content"].startswith("<0x")]
    tree["model"].update(options)
    tree["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(tree))


def llama_decoder():
    return decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = [f"<0x{i:02X}>" for i in range(256)]
os.makedirs(OUT, exist_ok=True)
expected = {}

llama3 = byte_level(SPLIT, None)
llama3.add_special_tokens(["<s>", "<|end|>"])
llama3.post_processor = processors.Sequence(
    [
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", llama3.token_to_id("<s>"))]),
    ]
)
tree = json.loads(llama3.to_str())
tree["model"]["ignore_merges"] = True
# A token that no merge leads to; the added ones are numbered after the vocabulary.
size = len(tree["model"]["vocab"])
tree["model"]["vocab"]["Ġstrongerthan"] = size
for k, token in enumerate(tree["added_tokens"]):
    token["id"] = size + 1 + k
tree["post_processor"]["processors"][1]["special_tokens"]["<s>"]["ids"] = [size + 1]
llama3 = Tokenizer.from_str(json.dumps(tree))

qwen2 = byte_level(SPLIT.replace("{1,3}", ""), normalizers.NFC())
qwen2.add_special_tokens(["<|end|>", "<s>"])
qwen2.add_tokens(
    [
        AddedToken("<tool>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("word", single_word=True),
        AddedToken("cafe\u0301", normalized=True),
    ]
)
tree = json.loads(qwen2.to_str())
tree["model"]["merges"] = [" ".join(m) for m in tree["model"]["merges"]]  # the older spelling

llama2 = metaspace(["<unk>", "<s>", "</s>"] + BYTES, byte_fallback=True, fuse_unk=True)
llama2.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
llama2.decoder = llama_decoder()
llama2.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])

mistral = metaspace(["<unk>", "<s>", "</s>"], byte_fallback=False, fuse_unk=False)
mistral.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
mistral.decoder = decoders.Metaspace(prepend_scheme="first", split=False)

for name, t in [("llama3", llama3), ("qwen2", qwen2), ("llama2", llama2), ("mistral", mistral)]:
    text = json.dumps(tree, ensure_ascii=False) if name == "qwen2" else t.to_str()
    write(f"{name}_style.json", text + "\n")
    expected[f"{name}_style.json"] = hf_cases(t)
expected["demo"] = hf_cases(Tokenizer.from_file(DEMO))

# SentencePiece, with a character map of its own: ligature and circled digits, "--" -> a dash, tab
# and newline -> space, zero-width space -> nothing.
RULES = os.path.join(OUT, "rules.tsv")
rules = [("\ufb01", "fi"), ("\u2460", "1"), ("--", "\u2014"), ("\t", " "), ("\n", " "), ("\u3000", " "), ("\u200b", "")]
write("rules.tsv", "".join("\t".join(" ".join(f"{ord(c):X}" for c in s) for s in rule) + "\n" for rule in rules))
for name, more in [
    ("spm", dict(byte_fallback=True, normalization_rule_tsv=RULES, user_defined_symbols=["<tool>", "north"])),
    ("spm_plain", dict(normalization_rule_name="identity", remove_extra_whitespaces=False)),
]:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROSE * 2), model_writer=model, model_type="bpe", minloglevel=2,
        vocab_size=430 if name == "spm" else 200, character_coverage=0.98, **more,
    )
    digits = model.getvalue().hex()
    write(f"{name}.hex", "".join(digits[i : i + 96] + "\n" for i in range(0, len(digits), 96)))
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    expected[f"{name}.hex"] = cases(sp.encode, sp.decode)
os.remove(RULES)
write("expected.json", json.dumps(expected, ensure_ascii=True, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")
