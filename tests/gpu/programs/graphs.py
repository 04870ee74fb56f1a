# SPDX-License-Identifier: MIT
"""Training on random graphs: sizes that depend on the data (unique, masks),
so that the host waits for the GPU often (PyTorch)."""
import random

from common import measure, torch_digest, torch_setup

torch = torch_setup()
rnd = random.Random(9)
gen = torch.Generator("cuda").manual_seed(6)
weights = [torch.randn(256, 256, device="cuda", generator=gen).mul_(1 / 16)
           .requires_grad_() for _ in range(4)]
opt = torch.optim.SGD(weights, lr=1e-3)


def edges(n_nodes):
    n = n_nodes * rnd.randint(2, 8)
    ends = torch.randint(0, n_nodes, (2, n), device="cuda", generator=gen)
    ends = ends[:, ends[0] != ends[1]]
    key = torch.unique(ends[0] * n_nodes + ends[1])
    nodes, index = torch.unique(torch.cat([key // n_nodes, key % n_nodes]),
                                return_inverse=True)
    return nodes.numel(), index[:key.numel()], index[key.numel():]


def step(i):
    n, source, target = edges(rnd.randint(20000, 400000))
    h = torch.randn(n, 256, device="cuda", generator=gen)
    degree = torch.bincount(target, minlength=n).clamp(min=1).float()
    some = source[torch.argsort(target, stable=True)][:200000]
    length = torch.tensor([some.numel()], device="cuda")
    for w in weights:
        message = h @ w
        total = torch.segment_reduce(message[some], "sum", lengths=length)
        h = torch.relu(h + message / degree[:, None] + total / n)
    size = h.abs().sum(1)
    loss = h[size > size.mean()].square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


measure("graphs", step, 30, 5, torch.cuda.synchronize,
        torch_digest(torch, lambda: weights))
