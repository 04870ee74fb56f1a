# SPDX-License-Identifier: MIT
"""torch_processes [DEVICES]: CUDA tensors passed between processes by
torch.multiprocessing (spawn), and memory of cupy by CUDA's own handles.
DEVICES: how many GPUs to use, 1 without it.

With its own cache off torch finds no block of its own to share (2.11), so a
program that passes tensors then teaches torch.multiprocessing to do it by
CUDA's handles. That is what by_handle() is."""
import collections
import os
import sys
import time
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing as mp
from torch.multiprocessing.reductions import reduce_tensor

try:
    import cupy as cp
except ImportError:
    cp = None

DEVICES = int(sys.argv[1]) if len(sys.argv) > 1 else 1
MANY = 300
PATIENCE = 40
SIZES = [1, 7, 100, 1000, 50000, 250000, 262144, 700001, 3000000]
IS_CACHE_OFF = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1"

sent = collections.deque(maxlen=64)  # more than are ever on their way


class Opened:
    """Memory of another process; closed with the last tensor over it."""

    def __init__(self, handle, device):
        self.device = device
        with cp.cuda.Device(device):
            self.pointer = cp.cuda.runtime.ipcOpenMemHandle(handle)

    def __del__(self):
        with cp.cuda.Device(self.device):
            cp.cuda.runtime.ipcCloseMemHandle(self.pointer)


def open_tensor(handle, size, device):
    opened = Opened(handle, device)
    memory = cp.cuda.UnownedMemory(opened.pointer, size, opened, device)
    with cp.cuda.Device(device):
        a = cp.ndarray(size // 4, cp.int32, cp.cuda.MemoryPointer(memory, 0))
        return torch.as_tensor(a, device=f"cuda:{device}")


def by_handle(t):
    """A whole tensor of int32, for ForkingPickler."""
    sent.append(t)
    device = t.device.index
    with cp.cuda.Device(device):
        handle = cp.cuda.runtime.ipcGetMemHandle(t.data_ptr())
    return open_tensor, (handle, t.numel() * 4, device)


if IS_CACHE_OFF and cp:
    ForkingPickler.register(torch.Tensor, by_handle)  # in children too


def number(i, device):
    n = SIZES[i % len(SIZES)] + i
    return torch.arange(n, device=device, dtype=torch.int32) * 3 + i


def device_of(i):
    return f"cuda:{i % DEVICES}"


def is_good(t, i, plus=0):
    return torch.equal(t, number(i, t.device) + plus)


def receive(things, answers, is_over, device):
    """Checks what comes, changes it, says so."""
    torch.cuda.set_device(device)
    bad = 0
    while True:
        i, t = things.get(timeout=PATIENCE)
        if t is None:
            break
        bad += not is_good(t, i)
        if t.device.index != device:  # to a device of its own too
            bad += not is_good(t.to(f"cuda:{device}"), i)
        t.add_(1)
        torch.cuda.synchronize(t.device)
        answers.put(i)
        del t
    answers.put(("bad", bad))
    is_over.wait(PATIENCE)


def produce(things, answers, is_over, device):
    torch.cuda.set_device(device)
    kept = {}
    for i in range(MANY):
        kept[i] = number(i, device_of(i))
        torch.cuda.synchronize(kept[i].device)
        things.put((i, kept[i]))
        if i >= 20:
            answers.get(timeout=PATIENCE)
        if i % 3:
            del kept[i]
    for _ in range(20):
        answers.get(timeout=PATIENCE)
    torch.cuda.synchronize()
    things.put((-1, sum(not is_good(t, i, 1) for i, t in kept.items())))
    is_over.wait(PATIENCE)


def hold_and_die(things, answers, is_over, device):
    held = [things.get(timeout=PATIENCE) for _ in range(20)]
    answers.put(sum(not is_good(t, i) for i, t in held))
    time.sleep(0.3)  # the queue's thread sends it
    os._exit(0)


class Pair:
    """This process and a child."""

    def __init__(self, target):
        context = mp.get_context("spawn")
        self.things, self.answers = context.Queue(), context.Queue()
        self.is_over = context.Event()
        self.child = context.Process(
            target=target, args=(self.things, self.answers, self.is_over,
                                 DEVICES - 1), daemon=True)
        self.child.start()

    def end(self):
        self.is_over.set()
        self.child.join(PATIENCE)
        return self.child.exitcode


def to_a_child():
    pair, bad, kept = Pair(receive), 0, {}
    for i in range(MANY):
        kept[i] = number(i, device_of(i))
        torch.cuda.synchronize(kept[i].device)
        pair.things.put((i, kept[i]))
        if i % 3 == 0:
            del kept[i]  # at once: torch keeps it for the child
        if i >= 16:
            j = pair.answers.get(timeout=PATIENCE)
            if j in kept:
                bad += not is_good(kept.pop(j), j, 1)
    for _ in range(16):
        j = pair.answers.get(timeout=PATIENCE)
        if j in kept:
            bad += not is_good(kept.pop(j), j, 1)
    pair.things.put((-1, None))
    bad += pair.answers.get(timeout=PATIENCE)[1]
    torch.cuda.ipc_collect()
    return bad or pair.end()


def from_a_child():
    pair, bad = Pair(produce), 0
    while True:
        i, t = pair.things.get(timeout=PATIENCE)
        if i < 0:
            bad += t
            break
        bad += not is_good(t, i)
        t.add_(1)
        torch.cuda.synchronize(t.device)
        del t
        pair.answers.put(i)
    return bad or pair.end()


def consumer_ends_first():
    bad, kept = 0, {}
    for turn in range(3):
        pair = Pair(hold_and_die)
        for i in range(20):
            kept[i] = number(i, device_of(i))
            torch.cuda.synchronize(kept[i].device)
            pair.things.put((i, kept[i]))
        bad += pair.answers.get(timeout=PATIENCE)
        pair.child.join(PATIENCE)
        more = [number(i, device_of(i)) for i in range(60)]
        torch.cuda.synchronize()
        bad += sum(not is_good(t, i) for i, t in kept.items())
        bad += sum(not is_good(t, i) for i, t in enumerate(more))
        if turn:
            kept.clear()
            torch.cuda.ipc_collect()
    return bad


def from_cupy():
    """Memory of cupy, which passes it by the same handles."""
    cp.cuda.set_allocator(None)
    pair, bad = Pair(receive), 0
    for i in range(MANY):
        a = cp.asarray(number(i, "cuda:0")).copy()
        cp.cuda.Device().synchronize()
        t = torch.as_tensor(a, device="cuda:0")
        pair.things.put((i, t))
        bad += pair.answers.get(timeout=PATIENCE) != i
        bad += not is_good(t, i, 1)
        del a, t
    pair.things.put((-1, None))
    bad += pair.answers.get(timeout=PATIENCE)[1]
    return bad or pair.end()


def say(name, function, *arguments):
    start = time.monotonic()
    try:
        bad = function(*arguments)
        print(f"{name}: " + (f"WRONG {bad}" if bad else "ok"), flush=True)
    except Exception as error:  # pylint: disable=broad-except
        text = (str(error).splitlines() or [""])[0][:100]
        print(f"{name}: failed, {type(error).__name__}: {text}", flush=True)
    print(f"{name}: {time.monotonic() - start:.1f} s", file=sys.stderr)


def main():
    can_share = True
    try:
        reduce_tensor(number(3, "cuda:0"))
        print("torch's own sharing: ok")
    except RuntimeError as error:
        can_share = IS_CACHE_OFF and cp
        print("torch's own sharing: failed, " +
              str(error).splitlines()[0].split(":")[0][:80])
    if can_share:
        say("to a child", to_a_child)
        say("from a child", from_a_child)
        say("consumer ends first", consumer_ends_first)
    if IS_CACHE_OFF and cp:
        say("cupy's memory", from_cupy)


if __name__ == "__main__":
    main()
