# SPDX-License-Identifier: MIT
"""Array expressions, FFTs, sorts and reductions on arrays of random size (CuPy,
its own pool off unless CUPY_POOL=1)."""
import os
import random

import cupy as cp

from common import measure

if os.environ.get("CUPY_POOL") != "1":
    cp.cuda.set_allocator(None)
    cp.cuda.set_pinned_memory_allocator(None)
rnd = random.Random(5)
rs = cp.random.RandomState(6)
acc = cp.zeros(8, dtype=cp.float64)


def step(i):
    for _ in range(20):
        n = int(10 ** rnd.uniform(3, 7.6))
        x = rs.rand(n, dtype=cp.float32)
        y = (x * 2 + 1) ** 2 - cp.sqrt(x)
        z = cp.fft.rfft(y)
        w = cp.sort(y[:n // 2])
        acc[rnd.randrange(8)] += (float(w[0]) + float(cp.abs(z[0])) +
                                  float(cp.cumsum(x)[-1] > 0))


measure("cupy_arrays", step, 15, 3, cp.cuda.runtime.deviceSynchronize,
        lambda: cp.asnumpy(acc).tobytes())
