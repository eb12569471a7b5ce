#!/usr/bin/env python3
"""make_demo_tokenizer.py TEXT.txt OUT_DIR: the demo model's tokenizer, a byte-level BPE of 1024 entries.

TEXT.txt comes from tools/demo_text.sh. Needs the `tokenizers` package; the result is kept in
configs/demo/model, so nothing else needs this script.
"""
import json
import os
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"  # id 0: ends a document; the BOS too, though none is put before a text

text, out = sys.argv[1:]
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=1024,
    special_tokens=[END],
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
)
tokenizer.train([text], trainer)
assert tokenizer.get_vocab_size() == 1024
tokenizer.save(os.path.join(out, "tokenizer.json"))
with open(os.path.join(out, "tokenizer_config.json"), "w") as f:
    json.dump(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END,
            "eos_token": END,
            "add_bos_token": False,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
        },
        f,
        indent=2,
    )
    f.write("\n")
