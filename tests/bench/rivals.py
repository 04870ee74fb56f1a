#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""rivals.py torch|rmm MEASURE

What tests/bench/measure does, with the allocator of PyTorch or RMM's pool,
called from Python. Asked on standard input, a line each: `pair SECONDS SIZE`,
`churn SECONDS SEED`, `free SECONDS`, `call SECONDS` (a pair of calls that do
nothing: what Python itself costs). Answers KEY=VALUE lines; first of all
`ready=1`, or `missing=MODULE`."""
import ctypes
import math
import subprocess
import sys
import time

now = time.perf_counter_ns
REPEATS = 9
N_SLOTS, BATCH, N_BATCHES = 64, 32, 4
cuda = None


class Torch:
    def __init__(self):
        import torch
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.raw_alloc = torch._C._cuda_cudaCachingAllocator_raw_alloc
        self.raw_free = torch._C._cuda_cudaCachingAllocator_raw_delete
        self.new_stream = torch.cuda.Stream

    def stream(self):
        stream = self.new_stream()
        return stream, stream.cuda_stream

    def pair(self, size, stream):
        alloc, free, handle = self.raw_alloc, self.raw_free, stream[1]
        return lambda: free(alloc(size, handle))

    def alloc(self, size, stream):
        return self.raw_alloc(size, stream[1])

    def free(self, p, _size, _stream):
        self.raw_free(p)


class Rmm:
    def __init__(self):
        import rmm
        from rmm.pylibrmm.stream import Stream
        self.pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(),
                                              initial_pool_size=1 << 32)
        self.new_stream = Stream

    def stream(self):
        stream = self.new_stream()
        return stream, stream.__cuda_stream__()[1]

    def pair(self, size, stream):
        alloc, free = self.pool.allocate, self.pool.deallocate
        stream = stream[0]
        return lambda: free(alloc(size, stream), size, stream)

    def alloc(self, size, stream):
        return self.pool.allocate(size, stream[0])

    def free(self, p, size, stream):
        self.pool.deallocate(p, size, stream[0])


def check(result):
    if result:
        raise RuntimeError(f"driver: error {result}")


class Sleep:
    """The kernel vs_sleep(ns, p, value, n_words)."""

    def __init__(self, measure):
        ptx = subprocess.run([measure, "ptx"], capture_output=True, check=True)
        module = ctypes.c_void_p()
        self.kernel = ctypes.c_void_p()
        check(cuda.cuModuleLoadData(ctypes.byref(module), ptx.stdout + b"\0"))
        check(cuda.cuModuleGetFunction(ctypes.byref(self.kernel), module,
                                       b"vs_sleep"))

    def __call__(self, p, size, ns, stream):
        values = (ctypes.c_uint64(ns), ctypes.c_uint64(p), ctypes.c_uint32(1),
                  ctypes.c_uint64(size // 4))
        args = (ctypes.c_void_p * 4)(*(ctypes.addressof(v) for v in values))
        check(cuda.cuLaunchKernel(self.kernel, 64, 1, 1, 256, 1, 1, 0,
                                  ctypes.c_void_p(stream[1]), args, None))


def median(values):
    return sorted(values)[len(values) // 2]


def ns_a_call(call, seconds):
    call()
    n = 1
    while True:
        start = now()
        for _ in range(n):
            call()
        if now() - start > 20000 or n > 1 << 20:
            break
        n *= 2
    means = []
    for _ in range(REPEATS):
        start, calls = now(), 0
        while now() - start < seconds * 1e9 / REPEATS:
            for _ in range(n):
                call()
            calls += n
        means.append((now() - start) / calls)
    return median(means)


def churn(rival, sleep, seconds, seed):
    state = seed

    def random():
        nonlocal state
        state = (state * 6364136223846793005 + 1) & (1 << 64) - 1
        return state >> 32

    streams = [rival.stream() for _ in range(2)]
    slots, means, batches = [None] * N_SLOTS, [], 0
    done = [[ctypes.c_void_p() for _ in range(2)] for _ in range(N_BATCHES)]
    for pair in done:
        for event in pair:
            check(cuda.cuEventCreate(ctypes.byref(event), 2))

    def replace(i, stream):
        size = int(4096 * math.pow(16384, random() / 2**32)) & ~3
        old = slots[i]
        start = now()
        if old:
            rival.free(*old)
        p = rival.alloc(size, stream)
        ns = now() - start
        slots[i] = (p, size, stream)
        sleep(p, size, 10000, stream)
        return ns

    for i in range(N_SLOTS):
        replace(i, streams[i % 2])
    for repeat in range(-1, REPEATS):
        start, total, n = now(), 0, 0
        while now() - start < seconds * 1e9 / REPEATS:
            for event in done[batches % N_BATCHES]:
                check(cuda.cuEventSynchronize(event))
            for _ in range(BATCH):
                total += replace(random() % N_SLOTS, streams[random() % 2])
            n += BATCH
            for event, stream in zip(done[batches % N_BATCHES], streams):
                check(cuda.cuEventRecord(event, ctypes.c_void_p(stream[1])))
            batches += 1
        if repeat >= 0:
            means.append(total / n)
    check(cuda.cuCtxSynchronize())
    for old in slots:
        rival.free(*old)
    return median(means)


def free_under(rival, sleep, seconds):
    sizes = [4096, 1 << 20, 16 << 20, 64 << 20]
    stream, times, start = rival.stream(), [], None
    while start is None or now() - start < seconds * 1e9:
        blocks = [(rival.alloc(sizes[i % 4], stream), sizes[i % 4], stream)
                  for i in range(40)]
        held = rival.alloc(4096, stream), 4096, stream
        sleep(held[0], 4096, 100000000, stream)
        for p, _, _ in blocks:
            sleep(p, 4096, 0, stream)
        for block in blocks:
            busy = cuda.cuStreamQuery(ctypes.c_void_p(stream[1])) == 600
            before = now()
            rival.free(*block)
            ns = now() - before
            if busy and start is not None:
                times.append(ns)
        rival.free(*held)
        check(cuda.cuStreamSynchronize(ctypes.c_void_p(stream[1])))
        if start is None:
            start = now()
    return sorted(times)[len(times) * 99 // 100]


def main():
    global cuda
    try:
        rival = {"torch": Torch, "rmm": Rmm}[sys.argv[1]]()
    except ImportError as error:
        print(f"missing={error.name}", flush=True)
        return
    cuda = ctypes.CDLL("libcuda.so.1")
    sleep = Sleep(sys.argv[2])
    print("ready=1", flush=True)
    for line in sys.stdin:
        what, seconds, *args = line.split()
        seconds = float(seconds)
        if what == "pair":
            ns = ns_a_call(rival.pair(int(args[0]), rival.stream()), seconds)
        elif what == "churn":
            ns = churn(rival, sleep, seconds, int(args[0]))
        elif what == "free":
            ns = free_under(rival, sleep, seconds)
        else:
            ns = ns_a_call(lambda: abs(abs(1)), seconds)
        print(f"{what}=1 ns={ns:.1f}", flush=True)


main()
