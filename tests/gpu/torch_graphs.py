# SPDX-License-Identifier: MIT
"""torch_graphs MODE: torch.cuda.graph in one capture error mode, beside a thread
that allocates and frees. What the graphs compute is compared with eager."""
import hashlib
import os
import random
import sys
import threading
import time

import torch

MODE = sys.argv[1]
CACHED = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1"
CAPTURES, STEPS, N = 20, 8, 512
MIB = 1 << 20


class Churn(threading.Thread):
    """Allocates, uses and frees; its data is looked at in the end alone."""

    def __init__(self):
        super().__init__(daemon=True)
        self.is_over = threading.Event()
        self.stream = torch.cuda.Stream()
        self.bad = torch.zeros((), device="cuda", dtype=torch.int64)
        self.random = random.Random(1)
        self.held, self.done, self.lost = [], 0, 0

    def once(self):
        n = int(2 ** self.random.uniform(4, 23))
        t = torch.empty(n, device="cuda", dtype=torch.int32)
        t.fill_(n)
        self.held.append((t, n))
        if len(self.held) > 12:
            old, value = self.held.pop(self.random.randrange(12))
            self.bad.add_((old != value).sum())

    def run(self):
        with torch.cuda.stream(self.stream):
            while not self.is_over.is_set():
                try:
                    self.once()
                    self.done += 1
                except RuntimeError:
                    self.lost += 1
                time.sleep(0.0001)


def sha(t):
    return hashlib.sha1(t.cpu().numpy().tobytes()).hexdigest()[:16]


def main():
    g = torch.Generator("cuda").manual_seed(1)
    start = torch.randn(N, N, device="cuda", generator=g)
    w = torch.randn(N, N, device="cuda", generator=g) / N
    x, y, z = (torch.empty_like(start) for _ in range(3))
    stream = torch.cuda.Stream()

    def step():
        torch.mm(x, w, out=y)
        torch.sin(y, out=z)
        if CACHED:  # intermediates, of the graph's own pool
            z.add_((z @ w).relu() * 0.25)
        x.mul_(0.5).add_(z)

    def steps(nap=0.0):
        for _ in range(STEPS):
            step()
            time.sleep(nap)

    churn = Churn()
    with torch.cuda.stream(churn.stream):
        for _ in range(40):
            churn.once()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        x.copy_(start)
        steps()
        steps()
    torch.cuda.synchronize()
    eager = x.clone()
    torch.cuda.synchronize()
    churn.start()
    lost = wrong = 0
    why = ""
    graphs = []
    for _ in range(CAPTURES):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream,
                                  capture_error_mode=MODE):
                steps(0.001)
        except RuntimeError as error:
            lost += 1
            why = why or str(error).splitlines()[0][:90]
            continue
        graphs.append(graph)
        for replayed in (graph, graphs[0]):
            with torch.cuda.stream(stream):
                x.copy_(start)
                replayed.replay()
                replayed.replay()
            stream.synchronize()
            wrong += not torch.equal(x, eager)
    churn.is_over.set()
    churn.join(20)
    torch.cuda.synchronize()
    print(f"captures: lost {lost} of {CAPTURES}" + (f", {why}" if why else ""))
    print(f"allocations of the other thread: lost {churn.lost}")
    if graphs:
        print(f"replays: ok {sha(x)}" if not wrong else
              f"replays: WRONG {wrong} of {2 * len(graphs)}")
    print("data of the other thread: " +
          ("ok" if churn.bad.item() == 0 else "WRONG"))
    print(f"{churn.done} allocations beside", file=sys.stderr)


main()
