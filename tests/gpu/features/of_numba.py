# SPDX-License-Identifier: MIT
"""numba-cuda: kernels, streams, atomics, kinds of memory."""
import numpy as np

# numba-cuda still asks numpy 2.4 and newer for what they dropped
for old, new in (("row_stack", "vstack"), ("in1d", "isin"),
                 ("trapz", "trapezoid")):
    if not hasattr(np, old):
        setattr(np, old, getattr(np, new))

from numba import cuda  # noqa: E402

from common import digits, feature, main  # noqa: E402


@cuda.jit
def twice(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


@cuda.jit
def count(x, counts):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, int(x[i]) % 16, 1)


@feature
def arrays():
    total = 0.
    for i in range(40):
        x = cuda.to_device(np.arange(1. + i * 20011 % 90000))
        twice[(x.size + 255) // 256, 256](x)
        total += x.copy_to_host().sum()
    return digits(total, n=9)


@feature
def streams():
    total = 0.
    for _ in range(20):
        stream = cuda.stream()
        x = cuda.to_device(np.arange(5000.), stream=stream)
        twice[20, 256, stream](x)
        host = x.copy_to_host(stream=stream)
        stream.synchronize()
        total += host.sum()
    return digits(total, n=9)


@feature
def atomics():
    counts = cuda.to_device(np.zeros(16, dtype=np.int64))
    count[391, 256](cuda.to_device(np.arange(100000)), counts)
    return counts.copy_to_host().tolist()


@feature
def kinds_of_memory():
    sums = []
    for kind in cuda.mapped_array, cuda.managed_array:
        x = kind(1000, dtype=np.float64)
        x[:] = 2
        twice[4, 256](x)
        cuda.synchronize()
        sums.append(x.sum())
    return digits(*sums)


@feature
def deferred_frees():
    with cuda.defer_cleanup():
        return digits(sum(cuda.to_device(np.ones(1000 + i)).copy_to_host()
                          .sum() for i in range(100)))


@feature
def part_of_an_array():
    x = cuda.to_device(np.arange(10000.).reshape(100, 100))
    return digits(x[10:20].copy_to_host().sum())


@feature
def ipc_handle():
    return type(cuda.to_device(np.arange(1000.)).get_ipc_handle()).__name__


main()
