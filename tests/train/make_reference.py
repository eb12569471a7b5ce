#!/usr/bin/env python3
"""Numbers for tests/train/test_reference.c from PyTorch and transformers: logits, losses, gradients
and ten distillation steps of tiny Llamas with hash-made weights (tests/support/hash_model.h).
All in float64: transformers casts norms and rotations to float32, which is patched out here, and
the unpatched float32 model must agree within float32 error. usage: make_reference.py > reference.json"""
import json
import math
import sys

import numpy as np
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

M64 = np.uint64
VOCAB, SEQ, WINDOWS = 64, 12, 4


def splitmix64(x):
    with np.errstate(over="ignore"):
        x = x + M64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> M64(30))) * M64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> M64(27))) * M64(0x94D049BB133111EB)
        return x ^ (x >> M64(31))


def fnv1a(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = ((h ^ b) * 0x100000001B3) % 2**64
    return h


def stream(base, n):
    with np.errstate(over="ignore"):
        return splitmix64(splitmix64(np.array([base], M64)) + np.arange(n, dtype=M64))


def weight(seed, name, shape):
    v = (stream(seed ^ fnv1a(name), math.prod(shape)) >> M64(48)).astype(np.float64) / 65536 - 0.5
    if "norm" in name:
        v = 1 + v / 4
    elif "bias" in name:
        v = v / 4
    elif "embed" not in name and "lm_head" not in name:
        v = v / 2
    return torch.tensor(v.reshape(shape))


def tokens(seed, n):
    return torch.tensor(((stream(seed, n) >> M64(16)) % M64(VOCAB)).astype(np.int64))


def build(seed, n_kv, bias, tied, dtype=torch.float64):
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=n_kv, head_dim=8,
                         max_position_embeddings=64, rms_norm_eps=1e-5, attention_bias=bias,
                         tie_word_embeddings=tied, attn_implementation="sdpa")
    model = LlamaForCausalLM(config).to(dtype)
    assert config.rope_parameters["rope_theta"] == 10000.0
    for name, p in model.named_parameters():
        p.data.copy_(weight(seed, name, tuple(p.shape)))
    return model


def rms_norm64(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def rotary64(self, x, position_ids):
    dim = self.inv_freq.numel() * 2
    inv = (1.0 / 10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)).float().double()
    angle = position_ids[..., None].double() * inv
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def losses(student, teacher, x, y, temperature):
    logits = student(x).logits
    ce = F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))
    if teacher is None:
        return ce, None, None
    with torch.no_grad():
        target = teacher(x).logits
    kl = F.kl_div(F.log_softmax(logits / temperature, -1), F.log_softmax(target / temperature, -1),
                  log_target=True, reduction="none").sum(-1).mean() * temperature**2
    return ce, kl, (logits.argmax(-1) == target.argmax(-1)).double().mean()


def picks(t):
    flat = t.detach().reshape(-1)
    return [flat[i].item() for i in (0, flat.numel() // 3, flat.numel() - 1)]


def forward_case(seed, n_kv, bias, tied):
    ids = tokens(7, 2 * SEQ + 1)
    x, y = ids[:-1].view(2, SEQ), ids[1:].view(2, SEQ)
    model = build(seed, n_kv, bias, tied)
    logits = model(x).logits
    ce, _, _ = losses(model, None, x, y, 1)
    ce.backward()
    return {"seed": seed, "n_kv_head": n_kv, "bias": bias, "tied": tied, "token_seed": 7,
            "nll": ce.item(),
            "logits": {str(r): logits.reshape(-1, VOCAB)[r].tolist() for r in (0, SEQ - 1, 2 * SEQ - 1)},
            "grads": {n: {"norm": p.grad.norm().item(), "picks": picks(p.grad)}
                      for n, p in model.named_parameters()}}


def train_case():
    o = {"lr": 0.02, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 0.5}
    d = {"alpha": 0.7, "temperature": 2.0}
    steps, warmup, final = 10, 3, 0.1
    ids = tokens(11, WINDOWS * SEQ + 1)
    x, y = ids[:-1].view(WINDOWS, SEQ), ids[1:].view(WINDOWS, SEQ)
    student, teacher = build(1, 2, True, True), build(2, 4, False, False)
    groups = [{"params": [p for p in student.parameters() if p.dim() == 2], "weight_decay": o["weight_decay"]},
              {"params": [p for p in student.parameters() if p.dim() != 2], "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=0.0, betas=(o["beta1"], o["beta2"]), eps=o["eps"], foreach=False)
    log = []
    for s in range(1, steps + 1):
        done = (s - warmup) / (steps - warmup)
        lr = o["lr"] * (s / warmup if s <= warmup else final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done)))
        for g in adam.param_groups:
            g["lr"] = lr
        adam.zero_grad()
        ce, kl, agree = losses(student, teacher, x, y, d["temperature"])
        loss = d["alpha"] * kl + (1 - d["alpha"]) * ce
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), o["clip"])
        adam.step()
        log.append({"lr": lr, "loss": loss.item(), "ce": ce.item(), "kl": kl.item(), "agree": agree.item(),
                    "grad_norm": norm.item()})
    return {"student": {"seed": 1, "n_kv_head": 2, "bias": True, "tied": True},
            "teacher": {"seed": 2, "n_kv_head": 4, "bias": False, "tied": False},
            "token_seed": 11, "n_window": WINDOWS, "seq_len": SEQ, "optimizer": o, "distill": d,
            "steps": steps, "warmup": warmup, "final": final, "log": log,
            "params": {n: {"norm": p.norm().item(), "sum": p.sum().item(), "picks": picks(p)}
                       for n, p in student.named_parameters()}}


def main():
    torch.manual_seed(0)
    x = tokens(7, 2 * SEQ).view(2, SEQ)
    plain32 = build(1, 2, True, False, torch.float32)(x).logits.detach().double()
    modeling_llama.LlamaRMSNorm.forward = rms_norm64
    modeling_llama.LlamaRotaryEmbedding.forward = rotary64
    patched = build(1, 2, True, False)(x).logits.detach()
    gap = (patched - plain32).abs().max().item()
    assert gap < 1e-5, f"the patched float64 model differs from transformers' by {gap}"
    print(f"float64 against unpatched float32: {gap:.2e}", file=sys.stderr)
    cases = [forward_case(1, 2, False, False), forward_case(3, 2, True, True), forward_case(5, 1, False, True)]
    json.dump({"forward": cases, "train": train_case()}, sys.stdout, indent=1)
    print()


main()
