# SPDX-License-Identifier: MIT
"""torch_processes [DEVICES]: CUDA tensors passed between processes by
torch.multiprocessing (spawn), and memory of torch and cupy by CUDA's own
handles. DEVICES: how many GPUs to use, 1 without it."""
import os
import sys
import time
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing as mp

DEVICES = int(sys.argv[1]) if len(sys.argv) > 1 else 1
MANY = 300
PATIENCE = 40
SIZES = [1, 7, 100, 1000, 50000, 250000, 262144, 700001, 3000000]


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


def open_handles(things, answers, is_over, device):
    import cupy as cp
    cp.cuda.Device(0).use()
    runtime = cp.cuda.runtime
    bad = 0
    while True:
        i, size, handle = things.get(timeout=PATIENCE)
        if handle is None:
            break
        p = runtime.ipcOpenMemHandle(handle)
        memory = cp.cuda.UnownedMemory(p, size, None)
        a = cp.ndarray(size // 4, cp.int32, cp.cuda.MemoryPointer(memory, 0))
        bad += not is_good(torch.as_tensor(a, device="cuda"), i)
        a += 1
        cp.cuda.Device().synchronize()
        runtime.ipcCloseMemHandle(p)
        answers.put(i)
    answers.put(bad)
    is_over.wait(PATIENCE)


def by_handles(make):
    """Memory by cudaIpcGetMemHandle, opened by cupy in the other process."""
    import cupy as cp
    pair, bad = Pair(open_handles), 0
    for i in range(MANY):
        t, p, size = make(i)
        torch.cuda.synchronize()
        pair.things.put((i, size, cp.cuda.runtime.ipcGetMemHandle(p)))
        bad += pair.answers.get(timeout=PATIENCE) != i
        bad += not is_good(torch.as_tensor(t, device="cuda"), i, 1)
        del t
    pair.things.put((-1, 0, None))
    bad += pair.answers.get(timeout=PATIENCE)
    return bad or pair.end()


def torch_memory(i):
    t = number(i, "cuda:0")
    return t, t.data_ptr(), t.numel() * 4


def cupy_memory(i):
    import cupy as cp
    a = cp.asarray(number(i, "cuda:0")).copy()
    cp.cuda.Device().synchronize()
    return a, a.data.ptr, a.nbytes


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
    t = number(3, "cuda:0")
    can_share = True
    try:
        ForkingPickler.dumps(t)
        print("sharing: ok")
    except RuntimeError as error:
        # torch's own cache off: torch finds no block of its own to share
        can_share = False
        print("sharing: failed, " +
              str(error).splitlines()[0].split(":")[0][:80])
    if can_share:
        say("to a child", to_a_child)
        say("from a child", from_a_child)
        say("consumer ends first", consumer_ends_first)
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1":
        try:
            import cupy as cp
        except ImportError:
            return
        say("torch's memory by handle", by_handles, torch_memory)
        cp.cuda.set_allocator(None)
        say("cupy's memory by handle", by_handles, cupy_memory)


if __name__ == "__main__":
    main()
