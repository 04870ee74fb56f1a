# SPDX-License-Identifier: MIT
"""Eager transformer training with a random sequence length every step
(PyTorch)."""
import random

from common import measure, torch_digest, torch_setup

torch = torch_setup()
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(),
                                 nn.Linear(4 * d, d))

    def forward(self, x):
        b, l, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(
            b, l, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-1, -2) / (d // self.h) ** .5).softmax(-1) @ v
        x = x + self.o(a.transpose(1, 2).reshape(b, l, d))
        return x + self.mlp(self.n2(x))


d = 1024
net = nn.Sequential(*[Block(d, 8) for _ in range(8)]).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
lengths = random.Random(1)
gen = torch.Generator("cuda").manual_seed(2)


def step(i):
    x = torch.randn(8, lengths.randrange(64, 1024), d, device="cuda",
                    generator=gen)
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


measure("train_transformer", step, 40, 8, torch.cuda.synchronize,
        torch_digest(torch, lambda: list(net.parameters())))
