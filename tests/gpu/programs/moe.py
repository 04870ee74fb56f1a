# SPDX-License-Identifier: MIT
"""A mixture of experts whose token counts per expert differ every step
(PyTorch)."""
import random

from common import measure, torch_digest, torch_setup

torch = torch_setup()
import torch.nn as nn

E, d = 16, 1024
experts = nn.ModuleList([nn.Sequential(nn.Linear(d, 4 * d), nn.SiLU(),
                                       nn.Linear(4 * d, d))
                         for _ in range(E)]).cuda()
router = nn.Linear(d, E).cuda()
params = list(experts.parameters()) + list(router.parameters())
opt = torch.optim.AdamW(params, lr=1e-4)
rnd = random.Random(15)
gen = torch.Generator("cuda").manual_seed(16)


def step(i):
    x = torch.randn(rnd.randrange(2000, 30000), d, device="cuda",
                    generator=gen)
    p = router(x).softmax(-1)
    w, k = p.topk(2)
    out = torch.zeros_like(x)
    for e in range(E):
        rows = (k == e).any(-1).nonzero().squeeze(-1)
        if rows.numel():
            out = out.index_add(0, rows, experts[e](x[rows]) *
                                p[rows, e:e + 1])
    loss = out.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


measure("moe", step, 25, 5, torch.cuda.synchronize,
        torch_digest(torch, lambda: params))
