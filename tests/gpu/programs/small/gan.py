# SPDX-License-Identifier: MIT
"""A small generative adversarial network (PyTorch): two networks that are
trained in turn, with a gradient penalty (a second derivative)."""
from common import measure, torch_digest, torch_setup

torch = torch_setup()
import torch.nn as nn

BATCH, SIDE, NOISE = 96, 64, 4096
CRITIC_STEPS, PENALTY = 3, 10


def up(n_in, n_out):
    return nn.Sequential(nn.ConvTranspose2d(n_in, n_out, 4, 2, 1),
                         nn.BatchNorm2d(n_out), nn.ReLU())


def down(n_in, n_out):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 4, 2, 1), nn.LeakyReLU(0.2))


maker = nn.Sequential(
    nn.Unflatten(1, (256, 4, 4)), up(256, 256), up(256, 128), up(128, 64),
    up(64, 64), nn.Conv2d(64, 3, 3, padding=1), nn.Tanh()).cuda()
critic = nn.Sequential(
    down(3, 64), down(64, 128), down(128, 256), down(256, 256), nn.Flatten(),
    nn.Linear(NOISE, 1)).cuda()
maker_opt = torch.optim.Adam(maker.parameters(), 1e-4)
critic_opt = torch.optim.Adam(critic.parameters(), 1e-4)
gen = torch.Generator("cuda").manual_seed(4)


def noise(*shape):
    return torch.randn(BATCH, *shape, device="cuda", generator=gen)


def penalty(real, made):
    """How far the critic's slope is from 1 between what is real and made."""
    part = torch.rand(BATCH, 1, 1, 1, device="cuda", generator=gen)
    between = (real * part + made * (1 - part)).requires_grad_()
    slope, = torch.autograd.grad(critic(between).sum(), between,
                                 create_graph=True)
    return ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()


def train_critic():
    real, made = noise(3, SIDE, SIDE), maker(noise(NOISE)).detach()
    slope = penalty(real, made)
    loss = critic(made).mean() - critic(real).mean() + PENALTY * slope
    critic_opt.zero_grad()
    loss.backward()
    critic_opt.step()


def step(i):
    for _ in range(CRITIC_STEPS):
        train_critic()
    loss = -critic(maker(noise(NOISE))).mean()
    maker_opt.zero_grad()
    loss.backward()
    maker_opt.step()


measure("gan", step, 200, 20, torch.cuda.synchronize,
        torch_digest(torch, lambda: [*maker.parameters(),
                                     *critic.parameters()]))
