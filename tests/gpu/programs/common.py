# SPDX-License-Identifier: MIT
"""What the workloads share: time, peak device memory, and a checksum that must
not depend on the allocator."""
import ctypes
import hashlib
import os
import threading
import time


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in
                ("total", "free", "used")]


class PeakSampler(threading.Thread):
    """Device memory in use (NVML, whole device), every millisecond."""

    def __init__(self):
        super().__init__(daemon=True)
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.nvml.nvmlInit_v2()
        self.handle = ctypes.c_void_p()
        self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle))
        self.peak = 0
        self.cpu = 0.0  # seconds of this thread's, in all
        self.stop = False
        self.base = self.used()

    def used(self):
        memory = Memory()
        self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory))
        return memory.used

    def run(self):
        while not self.stop:
            self.peak = max(self.peak, self.used())
            self.cpu = time.thread_time()
            time.sleep(0.001)


def measure(name, step, steps, warmup, sync, checksum_bytes):
    """Runs step(i) warmup + steps times; prints one line: name, steps per
    second, CPU time of a step (of all threads but the sampler's: a host that is
    slow for others' sake takes little more of it), peak MiB above the start,
    checksum."""
    sampler = PeakSampler()
    sampler.start()
    for i in range(warmup):
        step(i)
    sync()
    start = time.perf_counter()
    cpu = time.process_time() - sampler.cpu
    for i in range(warmup, warmup + steps):
        step(i)
    sync()
    elapsed = time.perf_counter() - start
    cpu = time.process_time() - sampler.cpu - cpu
    sampler.stop = True
    sampler.join()
    digest = hashlib.sha256(checksum_bytes()).hexdigest()[:16]
    print(f"RESULT {name} cpu_ms={cpu / steps * 1000:.2f} "
          f"steps_per_s={steps / elapsed:.3f} "
          f"peak_mib={(sampler.peak - sampler.base) / 2**20:.0f} "
          f"sha={digest}", flush=True)


def torch_setup(seed=0):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return torch


def torch_digest(torch, tensors):
    return lambda: b"".join(t.detach().float().cpu().numpy().tobytes()
                            for t in tensors())
