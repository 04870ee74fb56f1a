# SPDX-License-Identifier: MIT
"""processes: random calls of several processes that share memory by IPC.

processes.py [SEED [N_STEPS [VAR=VALUE]...]]

Three programs (process.c) without the shim and three with it are told the same,
one line at a time; each answer must be the same. So must the contents of the
memory that they share, which is looked at all the time. Nothing is done that is
undefined by CUDA's rules and differs (README.md, Limits): what is avoided says
so. Without arguments some seeds in several surroundings, always the same ones.
VERBOSE=1 prints all, CONTEXT=N the last N lines before a difference.
"""
import os
import signal
import sys

from process_kit import (GREEN, LAZY, N_BLOCKS, N_CTX, N_OPENED, N_THREADS, OK,
                         Block, Different, KiB, MiB, Opened, Process, Run,
                         is_ok)


# --- what is done -------------------------------------------------------------

def offset(run, size):
    """Begin, middle or last byte."""
    at = run.one_of((0, 0, run.chance(size), size - 1))
    return f"+{at}" if at else ""


def free_slot(run, taken, n):
    return run.one_of(i for i in range(n) if i not in taken)


def alloc(run, p, t):
    kind = "linear"
    if p.has_context(t):
        kind = run.one_of(["linear"] * 6 + ["pitch", "async", "managed"])
    size = run.one_of((1, 512, 1000, 64 * KiB, MiB, MiB + 1, 2 * MiB,
                       1 + run.chance(MiB), 1 + run.chance(4 * MiB)))
    if kind == "pitch":
        size = (size + 511) // 512 * 512
    allocate(run, p, t, size, kind)


def allocate(run, p, t, size, kind):
    slot = free_slot(run, p.blocks, N_BLOCKS)
    live = sum(b.size + 2 * MiB for b in p.blocks.values())
    if slot is None or live + size > run.most:
        return
    if not p.does(t, f"alloc b{slot} {size} {kind}"):
        return
    block = Block(p, slot, size, kind, p.owner(t))
    p.blocks[slot] = block
    p.does(t, f"fill {block.name} {size} {run.chance(1 << 30)}")


def is_small_block(block):
    return block.size <= MiB


def free(run, p, t):
    block = run.one_of(p.blocks.values())
    if not block:
        return
    if run.chance(8) == 0 and block.size > 1:
        p.does(t, f"free {block.name}+{1 + run.chance(block.size - 1)}")
    # a stream of a context that is there, and of the memory's own device
    is_async = p.has_context(t) and p.device(t) == block.device and \
        block.kind != "managed" and run.chance(4) == 0
    verb = "freeasync" if is_async else "free"
    if not p.does(t, f"{verb} {block.name}"):
        return
    block.is_live, block.is_freed = False, True
    del p.blocks[block.slot]
    # at once: the address may be another's soon
    for line in ("get", "ask") if is_async else ("get", "free", "ask"):
        if block.is_linear and run.chance(3) == 0:
            p.tell(t, f"{line} {block.name}")
    if block.handles and run.chance(2):
        allocate(run, p, t, block.size, block.kind)
        look_elsewhere(run, block)


def look_elsewhere(run, block):
    """What was exported is not what is allocated next."""
    for p in run.processes:
        for o in p.opened.values():
            if o.block is block:
                look(run, p, 0, o)


def export(run, p, t):
    block = run.one_of(p.blocks.values())
    if not block:
        return
    line = f"get {block.name}{offset(run, block.size)}"
    said, handles = p.tell(t, line)
    if said.split()[0] != OK:
        return
    block.handles = handles
    run.n_handles += handles[1].startswith(b"vmmshim".hex())
    run.handles = [h for h in run.handles if h is not block][-24:] + [block]


def is_openable(run, block):
    """
    The driver opens a small block that was freed while others of its 2 MiB are
    live.
    """
    return not (block.is_freed and is_small_block(block)
                and block.owner.is_there)


def is_good(p, t, block):
    """It can be opened."""
    return (p.has_context(t) and block.is_live and block.owner is not p and
            all(o.block is not block or o.ctx == p.owner(t)
                for o in p.opened.values()))


def import_(run, p, t):
    block = run.one_of(h for h in run.handles if is_openable(run, h))
    if run.chance(4) > 0:
        block = run.one_of(h for h in run.handles if is_good(p, t, h)) or block
    flags = LAZY if run.chance(20) else 0
    if not block:
        return
    opened = None
    if p.has_context(t):
        for o in p.opened.values():
            if o.block is block and o.ctx == p.owner(t):
                opened = o
    slot = opened.slot if opened else free_slot(run, p.opened, N_OPENED)
    if slot is None:
        return
    if not p.does(t, f"open o{slot} HANDLE {flags}", block.handles):
        return
    if opened:
        opened.count += 1
    else:
        p.opened[slot] = Opened(slot, block, p.owner(t))
        look(run, p, t, p.opened[slot])


def import_at_once(run, *_):
    """Each asks another process, while that asks as well."""
    asked = []
    for p in run.processes:
        block = None
        if p.is_there:
            block = run.one_of(h for h in run.handles if is_good(p, 0, h))
        slot = free_slot(run, p.opened, N_OPENED)
        if block and slot is not None and \
                not any(o.block is block for o in p.opened.values()):
            asked.append((p, slot, block))
            p.send(0, f"open o{slot} HANDLE 1", block.handles)
    for p, slot, block in asked:
        if is_ok(p.hear(0, f"open o{slot} HANDLE 1")[0]):
            p.opened[slot] = Opened(slot, block, p.owner(0))


def import_broken(run, p, t):
    """One byte of what says whose handle it is."""
    block = run.one_of(run.handles)
    slot = free_slot(run, p.opened, N_OPENED)
    if not block or slot is None:
        return
    at = 2 * run.chance(8)
    broken = [h[:at] + f"{int(h[at:at + 2], 16) ^ 255:02x}" + h[at + 2:]
              for h in block.handles]
    p.tell(t, f"open o{slot} HANDLE 1", broken)


def close(run, p, t):
    o = run.one_of(p.opened.values())
    if not o:
        return
    if run.chance(6) == 0 and o.size > 1:
        p.tell(t, f"close {o.name}+{1 + run.chance(o.size - 1)}")
    # of work that is under way no rule says what it waits for
    if not p.does(t, f"close {o.name}"):
        return
    o.count -= 1
    if o.count:
        return
    del p.opened[o.slot]
    is_gone(run, p, t, o)


def is_gone(run, p, t, o):
    """At once: the address may be another's soon."""
    for line in f"close {o.name}", f"ask {o.name}", f"sum {o.name} {o.size}":
        if run.chance(2):
            p.tell(t, line)
    p.tell(t, f"forget {o.name}")


# --- use ----------------------------------------------------------------------

def is_used(run, thing):
    """
    What its exporter has freed is kept for whoever looks at it by mistake, as
    long as there is memory (README, Limits). The driver has used a small block
    again at once.
    """
    if not isinstance(thing, Opened) or thing.block.is_live:
        return True
    return not run.is_small and not (thing.block.is_freed and
                                     is_small_block(thing.block))


def some_memory(run, p):
    return run.one_of(m for m in (*p.blocks.values(), *p.opened.values())
                      if is_used(run, m))


def device_of(m):
    return m.block.device if isinstance(m, Opened) else m.device


def is_set(run, p, t, m):
    """Work of a device that cannot reach it ends the context (an H200)."""
    if not p.has_context(t) or not is_used(run, m):
        return False
    devices = {device_of(m)}
    if isinstance(m, Opened):
        devices.add(p.devices[m.ctx])
    return p.device(t) in devices


def look(run, p, t, m=None):
    m = m or some_memory(run, p)
    if m and is_used(run, m):
        p.tell(t, f"sum {m.name} {m.size}")


def change(run, p, t):
    m = some_memory(run, p)
    if not m or not is_set(run, p, t, m):
        return
    verb = run.one_of(("fill", "set8", "set32", "set2d"))
    size = m.size if verb == "fill" else m.size // 1024 * 1024
    at = run.chance(m.size - size + 1) // 4 * 4
    if size:
        p.tell(t, f"{verb} {m.name}+{at} {size} {run.chance(256)}")


def copy(run, p, t):
    to, of = some_memory(run, p), some_memory(run, p)
    if not to or to is of:
        return
    # the same block under two names
    if isinstance(to, Opened) and isinstance(of, Opened) and \
            to.block is of.block:
        return
    size = min(to.size, of.size)
    verbs = ["copy", "copyd", "copyasync", "copy2d", "copypeer"]
    # nodes do not copy between devices that cannot be peers (README, Limits)
    if not p.has_context(t) or run.may_peer or \
            device_of(to) == device_of(of) == p.device(t):
        verbs.append("copygraph")
    verb = run.one_of(verbs)
    if verb == "copy2d" and size < 512:
        return
    p.tell(t, f"{verb} {to.name} {of.name} {size}")


def copy_past(run, p, t):
    """More than there is."""
    to, of = some_memory(run, p), some_memory(run, p)
    if not to or to is of or not p.has_context(t):
        return
    verb = run.one_of(("copy", "copyd", "copyasync"))
    most = max(to.size, of.size)
    p.tell(t, f"{verb} {to.name} {of.name} {(most + 511) // 512 * 512 + 512}")


def set_past(run, p, t):
    m = some_memory(run, p)
    if m and is_set(run, p, t, m):
        p.tell(t, f"set8 {m.name} {(m.size + 511) // 512 * 512 + 512} 1")


def ask(run, p, t):
    m = some_memory(run, p)
    # of what another device has open a driver's answer is not known
    if isinstance(m, Opened) and p.has_context(t) and \
            not is_set(run, p, t, m):
        return
    if m:
        p.tell(t, f"ask {m.name}{offset(run, m.size)}")


def misuse(run, p, t):
    """What is opened is freed or exported, what is allocated is closed."""
    m = some_memory(run, p)
    if isinstance(m, Opened):
        p.tell(t, f"{run.one_of(('free', 'get'))} {m.name}")
    elif m:
        p.tell(t, f"close {m.name}")


# --- contexts and processes ---------------------------------------------------

def make_current(run, p, t):
    k = run.one_of(k for k in range(N_CTX) if p.is_live[k])
    if k is None or run.chance(12) == 0:
        k = run.chance(N_CTX)
        if not p.is_live[k]:
            p.start(k, t)
            return
    if p.does(t, f"current {k}"):
        p.current[t] = k


def no_context(run, p, t):
    if p.does(t, "current -"):
        p.current[t] = None


def create(run, p, t):
    k = run.chance(N_CTX)
    if not p.is_live[k]:
        p.start(k, t)


def destroy(run, p, t):
    """What it has opened and allocated goes with it."""
    k = run.one_of(k for k in range(N_CTX) if p.is_live[k])
    if k is None:
        return
    if k == 0 and p.is_live[GREEN]:
        return
    verb = f"reset - {p.devices[k]}" if p.is_primary[k] else f"destroy {k}"
    if k == GREEN:
        if p.current.count(k):
            return
        verb = "ungreen"
    mine = [o for o in p.opened.values() if o.ctx == k]
    for o in mine:
        if run.chance(2) == 0 and is_set(run, p, t, o) and \
                p.current[t] == k:
            p.tell(t, f"setasync {o.name} {o.size} {run.chance(256)}")
    if not p.does(t, verb):
        return
    p.is_live[k] = False
    if not p.is_primary[k] and p.current[t] == k:
        p.current[t] = None
    blocks = [b for b in p.blocks.values() if b.ctx == k]
    for b in blocks:
        b.is_live = False
        del p.blocks[b.slot]
    for o in mine:
        del p.opened[o.slot]
        is_gone(run, p, t, o)
    for b in blocks:
        if b.is_linear and run.chance(4) == 0:
            p.tell(t, f"get {b.name}")
    # one that has ended is not used again
    make_current(run, p, t)
    for other in range(N_THREADS):
        if other != t and p.current[other] == k:
            p.tell(other, "sync")
            make_current(run, p, other)


def trim(_, p, __):
    """The shim gives idle memory back, at some time from now on."""
    p.both.programs[1].process.send_signal(signal.SIGUSR2)


def end(run, p, t):
    how = run.chance(3)
    if how == 0:
        replace(run, p, t)
        return
    if how == 1:
        run.note(f"p{p.number} ends")
        p.both.end()
    else:
        run.note(f"p{p.number} is killed")
        p.both.kill()
    p.is_there = False
    lose(p)


def lose(p):
    for b in p.blocks.values():
        b.is_live = False
    p.blocks, p.opened = {}, {}


def replace(run, p, t):
    """Another program, which is the same process."""
    run.note(f"p{p.number} is replaced")
    p.tell(t, "exec")
    lose(p)
    p.is_there = False
    # what it says of the handles of the one before is not known
    run.handles = [h for h in run.handles if h.owner.both is not p.both]
    start_anew(run, p, p.both)


def restart(run, p):
    run.note(f"p{p.number} starts")
    start_anew(run, p)


def start_anew(run, p, both=None):
    new = Process(run, p.number, both)
    run.processes[p.number] = new
    start_threads(new)


def start_threads(p):
    for t in range(N_THREADS):
        p.start(0, t)


OPERATIONS = (
    (alloc, 10), (free, 4), (export, 10), (import_, 14),
    (import_at_once, 4), (import_broken, 1), (close, 6), (look, 10),
    (change, 8), (copy, 8), (copy_past, 2), (set_past, 2), (ask, 4),
    (misuse, 2), (make_current, 4), (no_context, 1), (create, 2), (destroy, 2),
    (trim, 2), (end, 1),
)


def take_steps(run, n):
    for process in run.processes:
        start_threads(process)
    steps = [step for step, weight in OPERATIONS for _ in range(weight)]
    for _ in range(n):
        process = run.one_of(run.processes)
        t = run.chance(N_THREADS)
        if not process.is_there:
            restart(run, process)
            continue
        if run.chance(4) > 0 and not process.has_context(t):
            make_current(run, process, t)
        run.one_of(steps)(run, process, t)
    for process in run.processes:
        if process.is_there:
            process.both.end()


def same(seed, n_steps, variables):
    run = Run(seed, variables)
    problem = None
    try:
        take_steps(run, n_steps)
        for plain, shim in zip(run.all[::2], run.all[1::2]):
            said = shim.complaints()
            if len(said) > len(plain.complaints()):
                problem = "\n".join(said)
    except Different as e:
        problem = str(e)
    if problem:
        print(f"FAILED: seed {seed}, {n_steps} steps {' '.join(variables)}, "
              f"step {len(run.lines)}")
        for line in run.lines[-int(os.environ.get("CONTEXT", "6")):]:
            print("  " + line)
        print(problem)
        for program in run.all[1::2]:
            for line in program.complaints()[:3]:
                print("shim: " + line)
    for program in run.all:
        if program.process.poll() is None:
            program.kill()
        program.errors.close()
    return run, problem is None


SURROUNDINGS = (
    "SIM_MEMORY=4G",
    "SIM_MEMORY=4G SIM_DEVICES=2",
    "SIM_MEMORY=4G SIM_LAG_US=300",
    "SIM_MEMORY=64M VMMSHIM_CHUNK_SIZE=2M",
    "SIM_MEMORY=4G SIM_DEVICES=2 SIM_LAG_US=300",
    "SIM_MEMORY=4G VMMSHIM_IPC=native",
    "SIM_MEMORY=4G SIM_DEVICES=2 SIM_PEER=0",
    "SIM_MEMORY=4G VMMSHIM_GUARD=1",
)


def main():
    if len(sys.argv) > 1:
        n_steps = int(sys.argv[2]) if len(sys.argv) > 2 else 300
        run, is_same = same(int(sys.argv[1]), n_steps, sys.argv[3:])
        if is_same:
            print(f"same: {len(run.lines)} lines")
        return 0 if is_same else 1
    n_same = n_lines = n_handles = 0
    n_seeds = 2 * len(SURROUNDINGS)
    if os.environ.get("VS_WRAP") or os.environ.get("VS_SANITIZER"):
        n_seeds = 4
    for seed in range(1, n_seeds + 1):
        variables = SURROUNDINGS[seed % len(SURROUNDINGS)].split()
        run, is_same = same(seed, 250, variables)
        n_same += is_same
        n_lines += len(run.lines)
        n_handles += run.n_handles
    print(f"{n_same} of {n_seeds} the same, {n_lines} lines, {n_handles} "
          "handles of the shim's")
    return 0 if n_same == n_seeds and n_handles > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
