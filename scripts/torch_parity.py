#!/usr/bin/env python3
"""Trains a GPT-2 with PyTorch from PotatoChat's initial weights on PotatoChat's batches, and compares the losses.

    build/tests/parity_inputs CONFIG.ini batches.bin            # initial weights (a checkpoint of step 0), batches
    potatochat CONFIG.ini                                       # with log.metrics = metrics.jsonl
    python3 scripts/torch_parity.py --checkpoint run/checkpoints/step-00000000/index.h5 --batches batches.bin \
        --metrics metrics.jsonl --steps 300 --batch 32 --seq 1024 --heads 12 --lr 6e-4 --min-lr 6e-5 --warmup 50

bf16 autocast, fp32 weights, AdamW, clipping to norm 1: what a PyTorch user would write. Prints a line every 20 steps, and
one JSON line at the end with the mean losses of the last 20 steps and their relative difference.
"""
import argparse
import json
import math

import h5py
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, ffn, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({name: nn.Linear(width, width) for name in ("q", "k", "v", "out")})
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, ffn), "down": nn.Linear(ffn, width)})

    def forward(self, x):
        batch, length, width = x.shape
        normed = self.norm1(x)
        q, k, v = (self.attn[n](normed).view(batch, length, self.heads, -1).transpose(1, 2) for n in ("q", "k", "v"))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["out"](y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp["down"](F.gelu(self.mlp["up"](self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Parameters have PotatoChat's names, up to a prefix."""

    def __init__(self, tensors, heads):
        super().__init__()
        vocab, width = tensors["tok_embed.weight"].shape
        ffn = tensors["layers.0.mlp.up.weight"].shape[0]
        num_layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))
        self.tok_embed = nn.Embedding(vocab, width)
        self.pos_embed = nn.Embedding(tensors["pos_embed.weight"].shape[0], width)
        self.layers = nn.ModuleList(Layer(width, ffn, heads) for _ in range(num_layers))
        self.final_norm = nn.LayerNorm(width)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(torch.from_numpy(tensors.pop(name)))
        assert not tensors, f"tensors without a place: {sorted(tensors)}"

    def forward(self, tokens, targets):
        x = self.tok_embed(tokens) + self.pos_embed.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.final_norm(x), self.tok_embed.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-1)


def read_tensors(path):
    tensors = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            tensors[name] = item[()].astype(np.float32)

    with h5py.File(path) as file:
        file["model"].visititems(visit)
    return tensors


def learning_rate(step, a):
    if step < a.warmup:
        return a.lr * (step + 1) / a.warmup
    progress = min(1.0, (step - a.warmup) / max(1, a.steps - a.warmup))
    return a.min_lr + (a.lr - a.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--checkpoint", required=True)
    p.add_argument("--batches", required=True)
    p.add_argument("--metrics", required=True)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--batch", type=int, required=True)
    p.add_argument("--seq", type=int, required=True)
    p.add_argument("--heads", type=int, required=True)
    p.add_argument("--lr", type=float, required=True)
    p.add_argument("--min-lr", type=float, required=True)
    p.add_argument("--warmup", type=int, required=True)
    p.add_argument("--device", default="cuda")
    p.add_argument("--fp32", action="store_true", help="no autocast")
    a = p.parse_args()
    model = Gpt2(read_tensors(a.checkpoint), a.heads).to(a.device)
    groups = [dict(params=[p for p in model.parameters() if p.dim() == 2], weight_decay=0.1),
              dict(params=[p for p in model.parameters() if p.dim() == 1], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), eps=1e-8)
    forward = torch.compile(model) if a.device == "cuda" else model
    batches = np.memmap(a.batches, dtype=np.int32, mode="r").reshape(-1, a.batch, 2, a.seq)
    with open(a.metrics) as file:
        ours = {line["step"]: line["loss"] for line in map(json.loads, file) if "loss" in line}
    losses = []
    for step in range(a.steps):
        batch = torch.from_numpy(batches[step].astype(np.int64)).to(a.device)
        with torch.autocast(a.device, torch.bfloat16, enabled=not a.fp32):
            loss = forward(batch[:, 0], batch[:, 1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, a)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if step % 20 == 0 or step + 1 == a.steps:
            print(f"step {step + 1:4d}  torch {losses[-1]:.5f}  potatochat {ours[step + 1]:.5f}", flush=True)
    last = range(max(0, a.steps - 20), a.steps)
    theirs, mine = (sum(values[i] for i in last) / len(last) for values in (losses, [ours[i + 1] for i in range(a.steps)]))
    worst = max(abs(losses[i] / ours[i + 1] - 1) for i in range(a.steps))
    print(json.dumps(dict(peer="torch" + torch.__version__, steps=a.steps, loss_torch=theirs, loss_potatochat=mine,
                          relative_difference=mine / theirs - 1, worst_step=worst)))


main()
