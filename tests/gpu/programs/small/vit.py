# SPDX-License-Identifier: MIT
"""A small vision transformer (PyTorch) in half precision, whose images have
another size each step and whose blocks are computed anew for the gradient."""
import random

from common import measure, torch_digest, torch_setup

torch = torch_setup()
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, LAYERS, BATCH = 768, 12, 10, 48


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        n, tokens, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(
            n, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(n, tokens, WIDTH))
        return x + self.mlp(self.second(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x.mean(1))


net = ViT().cuda()
opt = torch.optim.AdamW(net.parameters(), 1e-4)
scaler = torch.amp.GradScaler()
rnd = random.Random(3)
gen = torch.Generator("cuda").manual_seed(4)


def step(i):
    side = rnd.choice([160, 192, 224, 256])
    x = torch.randn(BATCH, 3, side, side, device="cuda", generator=gen)
    y = torch.randint(0, 1000, (BATCH,), device="cuda", generator=gen)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()


measure("vit", step, 120, 16, torch.cuda.synchronize,
        torch_digest(torch, lambda: list(net.parameters())))
