# SPDX-License-Identifier: MIT
"""turns.py PROGRAM ROUNDS STEPS, for `turns`: a program of tests/gpu/programs
under the shim in which PyTorch's cache (expandable segments, by the environment,
which are no allocations of the shim's) and cudaMalloc take turns: in each round both do the
same steps, in an order drawn by chance. Prints the logarithm of the ratio of
their times for each round."""
import ctypes
import inspect
import math
import os
import random
import runpy
import sys
import time
import types

program, rounds, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import common  # noqa: E402
import torch  # noqa: E402

WARM_UP = 16  # steps of each


def begin():
    library = ctypes.CDLL(os.environ["TURNS"])
    library.turns_begin.restype = ctypes.c_char_p
    library.turns_count.restype = ctypes.c_uint64
    library.turns_failures.restype = ctypes.c_uint64
    torch.zeros(1, device="cuda")
    why = library.turns_begin()
    if not why:
        torch.zeros(1 << 20, device="cuda")
        library.turns_use(1)
        kept = torch.ones(1 << 20, device="cuda")
        library.turns_use(0)
        if kept.sum().item() != 1 << 20 or library.turns_count() == 0:
            why = b"tensors do not come from cudaMalloc"
    if why:
        sys.exit("turns: " + why.decode())
    return library


def take_turns(name, step, _steps, _warm_up, sync, _checksum):
    """In place of common.measure."""
    library = begin()
    order = random.Random(5)
    # what the step draws its sizes from, if they differ
    chance = inspect.unwrap(step).__globals__.get("rnd", random.Random())
    for plain in (0, 1):
        library.turns_use(plain)
        for i in range(WARM_UP):
            step(i)
    for _ in range(rounds):
        begun, took = chance.getstate(), {}
        for plain in order.sample((0, 1), 2):
            library.turns_use(plain)
            chance.setstate(begun)
            step(0)
            sync()
            chance.setstate(begun)
            start = time.perf_counter()
            for i in range(steps):
                step(i)
            sync()
            took[plain] = time.perf_counter() - start
        print(f"RATIO {name} {math.log(took[0] / took[1]):.6f} "
              f"ms={1000 * took[1] / steps:.3f}", flush=True)
    library.turns_use(0)
    if library.turns_failures():
        sys.exit("turns: cudaMalloc or cudaFree failed")


replaced = types.ModuleType("common")
replaced.__dict__.update(common.__dict__, measure=take_turns)
sys.modules["common"] = replaced
runpy.run_path(program)
