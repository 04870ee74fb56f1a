# SPDX-License-Identifier: MIT
"""A U-Net over images whose number and size differ every step: few blocks,
all of them large (PyTorch)."""
import random

from common import measure, torch_digest, torch_setup

torch = torch_setup()
import torch.nn as nn
import torch.nn.functional as F

CHANNELS = [32, 64, 128, 256]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(
            [nn.Conv2d(a, b, 3, padding=1)
             for a, b in zip([3] + CHANNELS[:-1], CHANNELS)])
        self.up = nn.ModuleList(
            [nn.Conv2d(a + b, b, 3, padding=1)
             for a, b in zip(CHANNELS[:0:-1], CHANNELS[-2::-1])])
        self.out = nn.Conv2d(CHANNELS[0], 3, 1)

    def forward(self, x):
        skipped = []
        for i, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if i else x)
            x = F.silu(F.group_norm(x, 8))
            skipped.append(x)
        skipped.pop()
        for layer in self.up:
            y = skipped.pop()
            x = F.interpolate(x, size=y.shape[2:])
            x = F.silu(layer(torch.cat([x, y], 1)))
        return self.out(x)


net = Net().cuda().half().eval()
rnd = random.Random(2)
gen = torch.Generator("cuda").manual_seed(1)
last = None


@torch.no_grad()
def step(i):
    global last
    shape = (rnd.choice([1, 2, 4]), 3, rnd.randrange(512, 2048, 64),
             rnd.randrange(512, 2048, 64))
    x = torch.randn(*shape, device="cuda", generator=gen, dtype=torch.half)
    for _ in range(3):
        x = x - .1 * net(x)
    last = x.mean((2, 3))


measure("images", step, 40, 8, torch.cuda.synchronize,
        torch_digest(torch, lambda: [last]))
