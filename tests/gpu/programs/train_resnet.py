# SPDX-License-Identifier: MIT
"""ResNet-50 training whose batch and image size change every step (PyTorch,
torchvision, channels last)."""
import random

from common import measure, torch_digest, torch_setup

torch = torch_setup()
import torch.nn.functional as F
import torchvision

net = torchvision.models.resnet50().cuda().to(
    memory_format=torch.channels_last)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
rnd = random.Random(3)
gen = torch.Generator("cuda").manual_seed(4)


def step(i):
    b, s = rnd.choice([8, 16, 24, 48]), rnd.choice([128, 160, 192, 224])
    x = torch.randn(b, 3, s, s, device="cuda", generator=gen).to(
        memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (b,), device="cuda", generator=gen)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()


measure("train_resnet", step, 40, 8, torch.cuda.synchronize,
        torch_digest(torch, lambda: list(net.parameters())))
