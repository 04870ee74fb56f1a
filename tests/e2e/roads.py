# SPDX-License-Identifier: MIT
"""roads: the driver by way of Python's ctypes."""
import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
size_t, ptr = ctypes.c_size_t, ctypes.c_uint64


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", size_t)] + [
        (name, ctypes.c_uint64)
        for name in ("reserved", "reserved_high", "live", "live_high",
                     "pending", "idle", "blocks")]


def blocks():
    try:
        ask = ctypes.CDLL(None).vmmshim_stats
    except AttributeError:
        return -1
    stats = Stats(struct_size=ctypes.sizeof(Stats))
    return stats.blocks if ask(0, ctypes.byref(stats)) == 0 else 0


def check(name, *args):
    result = getattr(cuda, name)(*args)
    if result:
        raise SystemExit(f"{name}: error {result}")


ctx, p = ctypes.c_void_p(), ptr()
check("cuInit", 0)
check("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), 0)
check("cuCtxSetCurrent", ctx)
before = blocks()
check("cuMemAlloc_v2", ctypes.byref(p), size_t(5 << 20))
print("pool", "yes" if blocks() > before else "no")
check("cuMemFree_v2", p)
