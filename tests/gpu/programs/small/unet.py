# SPDX-License-Identifier: MIT
"""A small diffusion model (PyTorch): a U-Net is trained on 64 by 64 images, a
slow average of it draws some now and then."""
import copy
import random

from common import measure, torch_digest, torch_setup

torch = torch_setup()
import torch.nn as nn
import torch.nn.functional as F

WIDTHS = [64, 64, 128, 256, 512]
BATCH, SIDE, ALPHA = 32, 64, 0.01


def conv(n_in, n_out):
    return nn.Sequential(nn.GroupNorm(8, n_in), nn.SiLU(),
                         nn.Conv2d(n_in, n_out, 3, padding=1))


class Block(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.first, self.second = conv(n_in, n_out), conv(n_out, n_out)
        self.time = nn.Linear(256, n_out)
        self.skip = nn.Conv2d(n_in, n_out, 1)

    def forward(self, x, t):
        h = self.first(x) + self.time(t)[:, :, None, None]
        return self.second(h) + self.skip(x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        pairs = list(zip(WIDTHS, WIDTHS[1:]))
        self.begin = nn.Conv2d(3, 64, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(1, 256), nn.SiLU(),
                                  nn.Linear(256, 256))
        self.down = nn.ModuleList(Block(i, o) for i, o in pairs)
        self.bottom = Block(512, 512)
        self.up = nn.ModuleList(Block(2 * o, i) for i, o in reversed(pairs))
        self.end = nn.Conv2d(64, 3, 1)

    def forward(self, x, t):
        t, x, skipped = self.time(t), self.begin(x), []
        for block in self.down:
            x = block(x, t)
            skipped.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.bottom(x, t)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, skipped.pop()], 1), t)
        return self.end(x)


net = UNet().cuda()
average = copy.deepcopy(net)
opt = torch.optim.Adam(net.parameters(), 1e-4)
rnd = random.Random(3)
gen = torch.Generator("cuda").manual_seed(4)


def images(n):
    return torch.randn(n, 3, SIDE, SIDE, device="cuda", generator=gen)


def draw(n):
    x = images(n)
    for k in range(8):
        t = torch.full((n, 1), 1 - k / 8, device="cuda")
        x = x - 0.1 * average(x, t)


def step(i):
    x, noise = images(BATCH), images(BATCH)
    t = torch.rand(BATCH, 1, device="cuda", generator=gen)
    loss = F.mse_loss(net(x + t[:, :, None, None] * noise, t), noise)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), net.parameters()):
            slow.lerp_(fast, ALPHA)
        if rnd.random() < 0.1:
            draw(rnd.choice([16, 64]))


measure("unet", step, 200, 20, torch.cuda.synchronize,
        torch_digest(torch, lambda: list(net.parameters())))
