#!/usr/bin/env python3
"""Trains GPT-2 124M for some steps with plain PyTorch on the CPU and prints one JSON line with tokens/s.

    python3 scripts/torch_peer.py --micro 4 --seq 64 --steps 10 --threads 2

The work of a step is that of build/tests/bench_gpt2: fp32, forward, backward, clipping to norm 1, AdamW; random tokens;
the head tied to the token embedding; no dropout; one fused q, k, v product, which is the faster way for PyTorch. Runs
with PyTorch 1.13 (Debian 12) and 2.x, and takes what the newer ones offer (fused attention, fused AdamW).
"""
import argparse
import inspect
import json
import math
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, HIDDEN, FFN, VOCAB, POSITIONS = 12, 12, 768, 3072, 50304, 1024  # 50257 tokens, padded to 64


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, FFN), nn.Linear(FFN, HIDDEN)

    def attention(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(2, 3)) * (1 / math.sqrt(HIDDEN // HEADS))
            y = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, HIDDEN))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.final_norm = nn.LayerNorm(HIDDEN)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        x = self.final_norm(self.layers(x))
        return F.cross_entropy(F.linear(x, self.tokens.weight).flatten(0, 1), targets.flatten())


def adamw(model):
    groups = [dict(params=[p for p in model.parameters() if p.dim() == 2], weight_decay=0.1),
              dict(params=[p for p in model.parameters() if p.dim() == 1], weight_decay=0.0)]
    settings = dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8)
    if "fused" in inspect.signature(torch.optim.AdamW.__init__).parameters:
        try:
            return torch.optim.AdamW(groups, fused=True, **settings), "fused"
        except RuntimeError:  # before 2.4 fused means CUDA
            pass
    return torch.optim.AdamW(groups, foreach=True, **settings), "foreach"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro", type=int, default=4, help="samples a step")
    parser.add_argument("--seq", type=int, default=64, help="tokens a sample")
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--warmup", type=int, default=2, help="steps before those")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = Gpt2()
    optimizer, kind = adamw(model)
    tokens, targets = torch.randint(50257, (2, args.micro, args.seq))
    seconds = []
    for step in range(args.warmup + args.steps):
        start = time.perf_counter()
        loss = model(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= args.warmup:
            seconds.append(time.perf_counter() - start)
    step_s = statistics.median(seconds)
    print(json.dumps(dict(peer="torch", version=torch.__version__, tokens_per_s=round(args.micro * args.seq / step_s, 2),
                          step_ms=round(1000 * step_s, 1), micro=args.micro, seq=args.seq, steps=args.steps,
                          threads=args.threads, optimizer=kind,
                          num_parameters=sum(p.numel() for p in model.parameters()), loss=round(loss.item(), 4))))


main()
