# SPDX-License-Identifier: MIT
"""Four threads that serve requests of random size, each on a stream of its own
(PyTorch)."""
import random
import threading

from common import measure, torch_digest, torch_setup

torch = torch_setup()
import torch.nn.functional as F

N, D = 4, 2048
gen = torch.Generator("cuda").manual_seed(4)
weights = [torch.randn(D, D, device="cuda", generator=gen) / 45
           for _ in range(6)]
answers = [None] * N
streams = [torch.cuda.Stream() for _ in range(N)]
randoms = [random.Random(n) for n in range(N)]
torch.cuda.synchronize()


@torch.no_grad()
def serve(n):
    with torch.cuda.stream(streams[n]):
        for _ in range(12):
            x = torch.full((randoms[n].randint(16, 6000), D), .5,
                           device="cuda")
            for w in weights:
                x = F.gelu(F.layer_norm(x @ w, (D,)))
            answers[n] = x.mean(0)
        streams[n].synchronize()


def step(i):
    threads = [threading.Thread(target=serve, args=(n,)) for n in range(N)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


measure("server", step, 20, 3, torch.cuda.synchronize,
        torch_digest(torch, lambda: answers))
