# SPDX-License-Identifier: MIT
"""torch_share: one process in which several libraries look at one memory."""
import gc
import sys

import torch

MIB = 1 << 20


def case(name):
    def run(function):
        try:
            why = function()
            print(f"{name}: " + (f"WRONG {why}" if why else "ok"))
        except ImportError as error:
            print(f"{name}: skipped, {error}")
        except Exception as error:  # pylint: disable=broad-except
            print(f"{name}: failed, {type(error).__name__}: "
                  f"{str(error).splitlines()[0][:100]}")
        sys.stdout.flush()
    return run


@case("torch to cupy by DLPack")
def _():
    import cupy as cp
    bad = 0
    for i in range(60):
        t = torch.arange(1 + i * 9973, device="cuda")
        a = cp.from_dlpack(t)
        a += i
        cp.cuda.Device().synchronize()
        bad += not torch.equal(t, torch.arange(t.numel(), device="cuda") + i)
        del t  # the array keeps it
        other = torch.full((1 + i * 9973,), -1, device="cuda")
        torch.cuda.synchronize()
        bad += int(a[-1]) != i * 9974
        del other
    return bad


@case("cupy to torch by DLPack, cupy's pool off")
def _():
    import cupy as cp
    cp.cuda.set_allocator(None)
    bad = 0
    for i in range(60):
        a = cp.arange(1 + i * 9973, dtype=cp.int64)
        t = torch.from_dlpack(a)
        t += i
        torch.cuda.synchronize()
        bad += int(a[-1]) != i * 9974
        del a
        other = cp.full(1 + i * 9973, -1, dtype=cp.int64)
        cp.cuda.Device().synchronize()
        bad += int(t[-1].item()) != i * 9974
        del other
    return bad


@case("__cuda_array_interface__")
def _():
    import cupy as cp
    t = torch.arange(3 * MIB, device="cuda", dtype=torch.int32)
    a = cp.asarray(t)
    b = torch.as_tensor(a, device="cuda")
    b += 1
    torch.cuda.synchronize()
    attributes = cp.cuda.runtime.pointerGetAttributes(t.data_ptr() + 4096)
    return int(a.sum() != t.sum().item()) or t[0].item() != 1 or \
        attributes.device != 0 or attributes.devicePointer != \
        t.data_ptr() + 4096


@case("pinned memory")
def _():
    bad = 0
    for n in (1, 1000, MIB, 16 * MIB):
        source = torch.arange(n, dtype=torch.int32).pin_memory()
        there = source.to("cuda", non_blocking=True)
        there.mul_(3)
        back = torch.empty(n, dtype=torch.int32, pin_memory=True)
        back.copy_(there, non_blocking=True)
        torch.cuda.synchronize()
        bad += not torch.equal(back, source * 3)
    return bad


def mem_get_info():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    first, total = torch.cuda.mem_get_info()
    held = [torch.empty(256 * MIB, device="cuda", dtype=torch.uint8)
            for _ in range(4)]
    torch.cuda.synchronize()
    less, _ = torch.cuda.mem_get_info()
    del held
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    again, _ = torch.cuda.mem_get_info()
    true_total = torch.cuda.get_device_properties(0).total_memory
    told = [n // MIB for n in (total, first, less, again)]
    if total != true_total or not 0 < first <= total:
        return told
    if not 1024 * MIB <= first - less <= 1100 * MIB:
        return told
    return told if abs(again - first) > 64 * MIB else None


@case("torch.cuda.mem_get_info")
def _():
    # What the device says counts for all processes: asked again while
    # another one may have moved it.
    for _ in range(5):
        told = mem_get_info()
        if told is None:
            break
    return told


@case("out of memory is an exception, and not the end")
def _():
    free, _ = torch.cuda.mem_get_info()
    try:
        torch.empty(free + 2048 * MIB, device="cuda", dtype=torch.uint8)
        return "no error"
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
    t = torch.empty(int(free * 0.8), device="cuda", dtype=torch.uint8)
    t[-1] = 7
    return t[-1].item() != 7


@case("streams of three kinds over one allocation")
def _():
    bad = 0
    streams = [torch.cuda.Stream(priority=p) for p in (0, -1, 0)]
    for i in range(200):
        t = torch.zeros(1 + i * 4999, device="cuda", dtype=torch.int32)
        torch.cuda.current_stream().synchronize()
        with torch.cuda.stream(streams[i % 3]):
            u = t + i
            v = u * 2
        streams[i % 3].synchronize()
        bad += v[-1].item() != 2 * i
        del t, u, v
    return bad
