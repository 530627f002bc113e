#!/usr/bin/env python3
"""A second opinion on the arithmetic: ten training steps of a tiny GPT-2 with PyTorch.

Writes tests/golden/gpt2_tiny.json, which the tests compare with. To make it again (any PyTorch from 1.13 on):

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch numpy
    /tmp/venv/bin/python scripts/golden_gpt2.py            # writes the file
    /tmp/venv/bin/python scripts/golden_gpt2.py --check    # compares with the committed file instead

Weights, tokens and targets come from formulas (functions `initial`, `token`, `target`) that the tests evaluate for
themselves, so that the file holds results only. Shape letters: V vocabulary, T positions, C hidden, F feed-forward.
"""
import argparse
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

MODEL = dict(num_layers=2, hidden_size=32, num_heads=4, ffn_hidden_size=128, max_position_embeddings=16,
             vocab_size=61, norm_eps=1e-5, activation="gelu_tanh", tie_embeddings=True, dropout=0.0)
TRAIN = dict(steps=10, global_batch_size=4, sequence_length=16, learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-8,
             weight_decay=0.1, gradient_clipping=1.0)
FORMULAS = dict(
    weight="base + scale*sin(0.37*i + 0.011*((i*i) % 997) + h), i: row-major flat index of the logical tensor,"
           " h = (FNV-1a-64(name) % 1000)/100.0; base 0, scale 0.15 with two dims; base 1, scale 0.1 norm weights;"
           " base 0, scale 0.05 biases",
    token="(7*step + 13*sample + 5*t + (t*t) % 11 + 3*((t*sample) % 5)) % 61, step, sample and t from 0",
    target="token(step, sample, t + 1), but -1 (not counted) where (t + sample) % 7 == 6",
    loss="sum over counted targets / their number", grad_norm="global, before clipping")
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/gpt2_tiny.json"


def shapes():
    """Logical tensors by name; weights are [out, in]; the head is tok_embed.weight."""
    V, T, C, FF = (MODEL[k] for k in ("vocab_size", "max_position_embeddings", "hidden_size", "ffn_hidden_size"))
    out = {"tok_embed.weight": (V, C), "pos_embed.weight": (T, C)}

    def pair(name, weight):
        out[name + ".weight"] = weight
        out[name + ".bias"] = weight[:1]

    for i in range(MODEL["num_layers"]):
        pair(f"layers.{i}.norm1", (C,))
        for part in ("q", "k", "v", "out"):
            pair(f"layers.{i}.attn.{part}", (C, C))
        pair(f"layers.{i}.norm2", (C,))
        pair(f"layers.{i}.mlp.up", (FF, C))
        pair(f"layers.{i}.mlp.down", (C, FF))
    pair("final_norm", (C,))
    return out


def fnv1a_64(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def initial(name, shape):
    """base + scale * sin(0.37 i + 0.011 (i² mod 997) + h) at the row-major flat index i.

    Without the square a matrix would have rank 2, and Adam would amplify the rounding noise of the many gradients that
    are then almost zero: fp32 and fp64 would part by 3e-3 in ten steps. With it they agree to 2e-7.
    """
    if len(shape) == 2:
        base, scale = 0.0, 0.15
    elif name.endswith(".weight"):  # of a norm
        base, scale = 1.0, 0.1
    else:
        base, scale = 0.0, 0.05
    h = (fnv1a_64(name) % 1000) / 100.0
    i = np.arange(math.prod(shape), dtype=np.int64)
    return (base + scale * np.sin(0.37 * i + 0.011 * (i * i % 997) + h)).reshape(shape)


def token(step, sample, t):
    return (7 * step + 13 * sample + 5 * t + (t * t) % 11 + 3 * ((t * sample) % 5)) % MODEL["vocab_size"]


def target(step, sample, t):
    return -1 if (t + sample) % 7 == 6 else token(step, sample, t + 1)  # -1 is not counted


def batch(step):
    B, T = TRAIN["global_batch_size"], TRAIN["sequence_length"]
    return tuple(torch.tensor([[f(step, b, t) for t in range(T)] for b in range(B)]) for f in (token, target))


def logits(w, tokens):  # tokens [B, T] -> [B, T, V]
    B, T = tokens.shape
    C, H = MODEL["hidden_size"], MODEL["num_heads"]

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x, name):
        return F.layer_norm(x, (C,), w[name + ".weight"], w[name + ".bias"], MODEL["norm_eps"])

    def heads(x):  # [B, T, C] -> [B, H, T, C/H]
        return x.view(B, T, H, C // H).transpose(1, 2)

    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    x = w["tok_embed.weight"][tokens] + w["pos_embed.weight"][:T]
    for i in range(MODEL["num_layers"]):
        p = f"layers.{i}"
        h = norm(x, p + ".norm1")
        q, k, v = (heads(linear(h, f"{p}.attn.{part}")) for part in "qkv")
        scores = (q @ k.transpose(2, 3)) / math.sqrt(C // H)
        y = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        x = x + linear(y.transpose(1, 2).reshape(B, T, C), p + ".attn.out")
        h = norm(x, p + ".norm2")
        x = x + linear(F.gelu(linear(h, p + ".mlp.up"), approximate="tanh"), p + ".mlp.down")
    return F.linear(norm(x, "final_norm"), w["tok_embed.weight"])


def train(dtype):
    """Losses and gradient norms (before clipping) of all steps, and the final weights."""
    w = {name: torch.tensor(initial(name, shape), dtype=dtype, requires_grad=True) for name, shape in shapes().items()}
    groups = [dict(params=[p for p in w.values() if p.dim() == 2], weight_decay=TRAIN["weight_decay"]),
              dict(params=[p for p in w.values() if p.dim() == 1], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=TRAIN["learning_rate"], betas=(TRAIN["beta1"], TRAIN["beta2"]),
                                  eps=TRAIN["eps"])
    losses, norms = [], []
    for step in range(TRAIN["steps"]):
        tokens, targets = batch(step)
        counted = int((targets >= 0).sum())
        loss = F.cross_entropy(logits(w, tokens).flatten(0, 1), targets.flatten(), ignore_index=-1,
                               reduction="sum") / counted
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(w.values()), TRAIN["gradient_clipping"])
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms, {name: p.detach().double().flatten() for name, p in w.items()}


def results():
    out = dict(made_by="scripts/golden_gpt2.py", pytorch=torch.__version__, formulas=FORMULAS, model=MODEL, train=TRAIN)
    for name, dtype in (("fp64", torch.float64), ("fp32", torch.float32)):
        losses, norms, weights = train(dtype)
        out[name] = dict(loss=losses, grad_norm=norms)
    # The gradient of a key bias is zero but for rounding (softmax ignores it); in fp64 AdamW's eps hides that noise.
    out["fp64"]["weights"] = final = {}
    for name, p in train(torch.float64)[2].items():
        final[name] = dict(shape=list(shapes()[name]), sum=p.sum().item(), sum_of_squares=(p * p).sum().item(),
                           first=p[:4].tolist())
    return out


def largest_difference(a, b):
    if isinstance(a, dict):
        return max(largest_difference(a[k], b[k]) for k in a if k != "pytorch")
    if isinstance(a, list):
        return max((largest_difference(x, y) for x, y in zip(a, b)), default=0.0)
    if isinstance(a, (str, bool)):
        return 0.0 if a == b else math.inf
    return abs(a - b) / max(abs(a), 0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the committed file; write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    out = results()
    if args.check:
        golden = json.loads(GOLDEN.read_text())
        for name in ("fp64", "fp32"):
            print(name, "largest relative difference:", largest_difference(golden[name], out[name]))
        return
    GOLDEN.parent.mkdir(parents=True, exist_ok=True)
    # Python prints the shortest text that reads back as the same double (at most 17 digits).
    GOLDEN.write_text(json.dumps(out, indent=1) + "\n")
    print("wrote", GOLDEN)


main()
