# SPDX-License-Identifier: MIT
"""ipc_ends: ends and crashes of either process, at every step."""
import array
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time

from ipc_kit import (BIRTH, BUSY, GONE, HAS_SPACE, MAX_CLIENTS, OK, REPLY,
                     REQUEST, SLOW, Failed, KiB, MiB, Puppet, answer, ask,
                     close_all, connect, cpu_seconds, expect, forge, listen_by,
                     name_of, pair, relay, round_trip, stop, test, true, unpack)


@test
def exporter_ends_before_open():
    for end in Puppet.end, Puppet.kill:
        exporter, importer = pair()
        p, handle = exporter.share(3 * MiB)
        end(exporter)
        start = time.monotonic()
        expect(importer.say("open", handle), "CUDA_ERROR_INVALID_HANDLE")
        true(time.monotonic() - start < SLOW, "that took long")
        true("vmmshim" not in importer.log(), "it warns of that")


@test
def exporter_ends_before_close():
    for end in Puppet.end, Puppet.kill:
        exporter, importer = pair()
        before = importer.books()
        p, handle = exporter.share(300 * MiB, 8)
        q = importer.do("open", handle)
        end(exporter)
        expect(importer.say("check", q, 300 * MiB, 8), "ok")
        expect(importer.do("open", handle), q)
        importer.do("close", q)
        importer.do("close", q)
        expect(importer.say("open", handle), "CUDA_ERROR_INVALID_HANDLE")
        importer.balanced(before)


@test
def exporter_frees_before_close():
    """
    Bytes of an exported allocation stay the importer's, whatever the exporter
    allocates and writes after its free.
    """
    exporter, importer = pair()
    shares = []
    for i, size in enumerate((1000, 700 * KiB, 3 * MiB, 40 * MiB)):
        p, handle = exporter.share(size, i)
        shares.append((size, i, p, importer.do("open", handle)))
    for size, i, p, q in shares:
        exporter.do("free", p)
    for _ in range(3):
        others = []
        for size, i, p, q in shares:
            for _ in range(5):
                other = exporter.do("alloc", size)
                exporter.do("fill", other, size, 99)
                others.append(other)
        for other in others:
            exporter.do("free", other)
    for size, i, p, q in shares:
        expect(importer.say("check", q, size, i), "ok")
        importer.do("close", q)


@test
def importer_killed():
    """At every step of its life; the exporter goes on, its books balance."""
    exporter = Puppet("VMMSHIM_CHUNK_SIZE=2M")
    p, handle = exporter.share(3 * MiB)
    exporter.do("free", p)
    before = exporter.books()
    steps = [("alloc", 1), ("open", None), ("check",), ("open", None),
             ("close",), ("close",)]
    for n in range(len(steps) + 1):
        importer = Puppet()
        p, handle = exporter.share(30 * MiB, n)
        q = None
        for step in steps[:n]:
            if step[0] == "open":
                q = importer.do("open", handle)
            elif step[0] == "check":
                expect(importer.say("check", q, 30 * MiB, n), "ok")
            elif step[0] == "close":
                importer.do("close", q)
            else:
                importer.do(*step)
        importer.kill()
        expect(exporter.say("check", p, 30 * MiB, n), "ok")
        exporter.do("free", p)
        exporter.balanced(before)


def dies(puppet, *words):
    """Whether a puppet dies of a command; its answer if not."""
    puppet.send(*words)
    try:
        return None, puppet.line()
    except Failed as e:
        if "died" not in str(e):
            raise
    expect(puppet.process.wait(20 * SLOW), -signal.SIGKILL, "its end")
    return True, ""


@test
def importer_killed_inside():
    """Within each driver call of an open and a close."""
    exporter = Puppet("VMMSHIM_CHUNK_SIZE=2M")
    exporter.do("free", exporter.share(30 * MiB)[0])
    before = exporter.books()
    for call, n in (("cuMemImportFromShareableHandle", 1),
                    ("cuMemImportFromShareableHandle", 9),
                    ("cuMemAddressReserve", 1), ("cuMemMap", 1),
                    ("cuMemMap", 2), ("cuMemSetAccess", 1), ("cuMemUnmap", 1),
                    ("cuMemRelease", 1), ("cuMemAddressFree", 1)):
        if call == "cuMemAddressReserve" and not HAS_SPACE:
            continue
        at = BIRTH.get(call, 0) + n
        importer = Puppet(f"SIM_FAIL={call}:{at}:kill")
        p, handle = exporter.share(30 * MiB, 6)
        is_dead, line = dies(importer, "open", handle)
        if not is_dead:
            is_dead, line = dies(importer, "close", line.split()[-1])
        true(is_dead, f"{call} {n} was not reached: {line}")
        other = Puppet()
        q = other.do("open", handle)
        expect(other.say("check", q, 30 * MiB, 6), "ok", f"{call} {n}")
        other.do("close", q)
        other.end()
        exporter.do("free", p)
        exporter.balanced(before)


@test
def exporter_killed_inside():
    """While it passes descriptors: an error at once, and nothing is left."""
    importer = Puppet("VMMSHIM_CHUNK_SIZE=2M")
    before = importer.books()
    for n in 1, 2, 8, 9, 15:
        exporter = Puppet(f"SIM_FAIL=cuMemExportToShareableHandle:{n}:kill",
                          "VMMSHIM_CHUNK_SIZE=2M")
        p, handle = exporter.share(30 * MiB, n)
        start = time.monotonic()
        line = importer.say("open", handle)
        true(line in ("CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_MAP_FAILED"),
             f"killed at descriptor {n}: {line}")
        true(time.monotonic() - start < SLOW, "that took long")
        expect(exporter.process.wait(20 * SLOW), -signal.SIGKILL)
        importer.balanced(before)
    exporter = Puppet()
    round_trip(exporter, importer, 30 * MiB, 1)
    importer.balanced(before)


@test
def killed_at_any_moment():
    """One side opens and closes all the time; either side is killed."""
    exporter, importer = pair("VMMSHIM_CHUNK_SIZE=2M")
    exporter.do("free", exporter.share(20 * MiB)[0])
    importer.do("cycle", exporter.share(MiB)[1], 1)
    here, there = exporter.books(), importer.books()
    for ms in range(0, 30, 3):
        victim = Puppet()
        p, handle = exporter.share(20 * MiB, ms)
        victim.send("cycle", handle, 1000000)
        time.sleep(ms / 1000 * SLOW)
        victim.kill()
        expect(exporter.say("check", p, 20 * MiB, ms), "ok")
        exporter.do("free", p)
        exporter.balanced(here)

        victim = Puppet("VMMSHIM_CHUNK_SIZE=2M")
        p, handle = victim.share(20 * MiB, ms)
        importer.send("cycle", handle, 300)
        time.sleep(ms / 1000 * SLOW)
        victim.kill()
        importer.ok_line()
        importer.balanced(there)
    round_trip(exporter, importer, 20 * MiB, 1)


@test
def importer_leaves_off():
    """At every step of the talk."""
    exporter = Puppet("VMMSHIM_CHUNK_SIZE=2M")
    importer = Puppet()
    p, handle = exporter.share(60 * MiB, 3)
    importer.do("close", importer.do("open", handle))
    before = exporter.books()
    id = unpack(handle)[2]

    def just_connect(s):
        pass

    def just_ask(s):
        ask(s, id)

    def take_one(s):
        ask(s, id)
        close_all(answer(s)[1])

    def ask_twice(s):
        ask(s, id)
        ask(s, id, 8)

    def short(s):
        s.send(b"x")

    def nothing(s):
        s.send(b"")

    def long(s):
        s.send(b"x" * 5000)

    def far(s):
        ask(s, id, 0xffffffff, 0xffffffff)

    def none(s):
        ask(s, id, 0, 0)

    def files(s):
        s.sendmsg([REQUEST.pack(s.key, id, 0, 8)],
                  [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                    array.array("i", [0, 1, 2]))])

    for step in (just_connect, just_ask, take_one, ask_twice, short, nothing,
                 long, far, none, files):
        for _ in range(3):
            s = connect(handle)
            step(s)
            s.close()
        exporter.balanced(before)
        q = importer.do("open", handle)
        expect(importer.say("check", q, 60 * MiB, 3), "ok", step.__name__)
        importer.do("close", q)
    exporter.do("free", p)


@test
def many_clients_hang():
    """More silent clients than the exporter has places for."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    idle = [connect(handle) for _ in range(20)]
    importer.do("close", importer.do("open", handle))
    for s in idle:
        s.close()
    talkers = [connect(handle) for _ in range(60)]
    for s in talkers[:MAX_CLIENTS]:
        ask(s, unpack(handle)[2])
        close_all(answer(s)[1])
    began = cpu_seconds(exporter)
    time.sleep(0.5)
    true(cpu_seconds(exporter) - began < 0.2, "it spins")
    for s in talkers:
        s.close()
    importer.do("close", importer.do("open", handle))


@test
def silent_clients():
    """They have been stopped, it seems: they make room for others at last."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    silent = [connect(handle) for _ in range(MAX_CLIENTS)]
    importer.do("close", importer.do("open", handle))
    for s in silent:
        s.close()


def stop_until(exporter, number, seconds):
    """It is stopped, and that signal comes so much later."""
    stop(exporter)
    timer = threading.Timer(seconds, os.kill, (exporter.pid, number))
    timer.start()
    return timer


@test
def exporter_stopped():
    """It does not answer for some seconds: it is waited for, in sleep."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    timer = stop_until(exporter, signal.SIGCONT, 3.5)
    began = cpu_seconds(importer)
    importer.do("close", importer.do("open", handle))
    true(cpu_seconds(importer) - began < 0.3 * SLOW, "it spins")
    timer.join()


@test
def importer_stopped():
    """It is taken for gone, amid an open, and comes again."""
    exporter, importer = Puppet("VMMSHIM_CHUNK_SIZE=2M"), Puppet()
    p, handle = exporter.share(60 * MiB, 3)
    key = os.urandom(16)
    with listen_by(key) as listener:
        importer.send("open", forge(handle, key=key))
        for times in 2, 60:
            with listener.accept()[0] as s, connect(handle) as t:
                relay(s, t, times)
    q = importer.ok_line().split()[0]
    expect(importer.say("check", q, 60 * MiB, 3), "ok")
    importer.do("close", q)


@test
def exporter_ends_stopped():
    """Nobody waits for it then."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    timer = stop_until(exporter, signal.SIGKILL, 0.5)
    start = time.monotonic()
    expect(importer.say("open", handle), "CUDA_ERROR_INVALID_HANDLE")
    true(time.monotonic() - start < 5 * SLOW, "that took long")
    timer.join()


def outlive(reap):
    """What becomes of an open when a child has the socket of who has ended."""
    exporter, importer = pair()
    handle = exporter.share(MiB)[1]
    key = os.urandom(16)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(name_of(key))
    parent = os.fork()
    if parent == 0:
        listener.listen()  # so it counts as this process's
        os._exit(0)
    os.waitid(os.P_PID, parent, os.WEXITED | (0 if reap else os.WNOWAIT))
    start = time.monotonic()
    said = importer.say("open", forge(handle, key=key))
    took = time.monotonic() - start
    if not reap:
        os.waitpid(parent, 0)
    listener.close()
    expect(said, "CUDA_ERROR_INVALID_HANDLE")
    true(took < 5 * SLOW, "that took long")


@test
def socket_outlives_exporter():
    """A child that nobody told of its birth holds it: that is an end, too."""
    outlive(True)


@test
def socket_outlives_zombie():
    """Nor does it help that nobody has asked how the exporter ended."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return "nobody tells of zombies here"
    outlive(False)
    return None


@test
def exporter_stopped_beside_others():
    """Only opens of its own memory wait for it, and one handle is one open."""
    stopped, other = pair()
    importer = Puppet()
    before = importer.books()
    open_one = stopped.share(MiB, 1)[1]
    handle = stopped.share(3 * MiB, 2)[1]
    first = importer.do("open", open_one)
    q, elsewhere = other.share(3 * MiB, 3)
    importer.do("close", importer.do("open", elsewhere))
    stop(stopped)
    importer.do("beside", handle)
    time.sleep(0.3)
    start = time.monotonic()
    for _ in range(20):
        p = importer.do("open", elsewhere)
        expect(importer.say("check", p, 3 * MiB, 3), "ok")
        importer.do("close", p)
    # what is open already is not asked for
    expect(importer.do("open", open_one), first)
    importer.do("close", first)
    expect(importer.say("child", handle), "ok", "a child")
    true(time.monotonic() - start < 2.5 * SLOW, "others waited")
    importer.send("open", handle)
    time.sleep(0.3)
    os.kill(stopped.pid, signal.SIGCONT)
    p = importer.ok_line()
    expect(importer.do("join"), p, "the other thread's")
    expect(importer.say("check", p, 3 * MiB, 2), "ok")
    importer.do("close", p)
    expect(importer.say("check", p, 3 * MiB, 2), "ok", "closed once")
    importer.do("close", p)
    importer.do("close", first)
    true(importer.say("close", p)[:5] == "CUDA_", "closed thrice")
    importer.balanced(before)


@test
def context_ends_beside_an_open():
    """
    In another thread, before its exporter answers, or while its own end waits
    for its work: nothing is left open of it, and others may open the same.
    """
    for lag_us in 0, 1500000 * SLOW:
        exporter = Puppet()
        importer = Puppet(f"SIM_LAG_US={lag_us}" if lag_us else "A=1")
        handle = exporter.share(3 * MiB, 4)[1]
        importer.do("close", importer.do("open", handle))
        before = importer.books()
        p = importer.do("alloc", MiB)
        importer.do("context", "new")
        importer.do("context", 0)
        importer.do("busy", p, MiB)
        timer = stop_until(exporter, signal.SIGCONT, 1 * SLOW)
        importer.do("beside", handle)
        time.sleep(0.3 * SLOW)
        importer.do("context", "reset")
        timer.join()
        importer.say("join")
        importer.do("context", 1)
        q = importer.do("open", handle)
        expect(importer.say("check", q, 3 * MiB, 4), "ok")
        importer.do("close", q)
        importer.balanced(before)


@test
def exporter_leaves_off():
    """An exporter that ends, or lies, at every step of the talk."""
    real, importer = pair()
    real.share(2 * MiB)  # what was idle: the next one is of one chunk
    p, handle = real.share(3 * MiB)
    s = connect(handle)
    ask(s, unpack(handle)[2])
    reply, fds = answer(s)
    size = reply[5]
    before = importer.books()
    good = (OK, 0, 1, 1, size, size, *[0] * 7)

    def answer_with(fields, n_fds=1):
        def step(s):
            s.recv(100)
            s.sendmsg([REPLY.pack(*fields)] if fields else [],
                      [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                        array.array("i", fds[:1] * n_fds))] if n_fds else [])
        return step

    def changed(**changes):
        names = ["status", "result", "n", "n_all", "bytes"] + \
            [f"size{i}" for i in range(8)]
        fields = dict(zip(names, good))
        fields.update(changes)
        return list(fields.values())

    steps = {
        "nothing": lambda s: None,
        "hears": lambda s: s.recv(100),
        "short": lambda s: (s.recv(100), s.send(b"x")),
        "long": lambda s: (s.recv(100), s.send(b"x" * 300)),
        "more to come": answer_with(changed(n_all=2, bytes=2 * size)),
        "no descriptor": answer_with(good, 0),
        "more descriptors": answer_with(good, 3),
        "no pieces": answer_with(changed(n=0)),
        "many pieces": answer_with(changed(n=9)),
        "more pieces": answer_with(changed(n=8, n_all=8)),
        "a larger piece": answer_with(changed(size0=2 * size)),
        "a smaller piece": answer_with(changed(size0=size // 2)),
        "an odd piece": answer_with(changed(size0=size - 1)),
        "no bytes": answer_with(changed(bytes=0)),
        "many bytes": answer_with(changed(bytes=1 << 60)),
        "few bytes": answer_with(changed(bytes=2 * MiB, size0=2 * MiB)),
        "an unknown status": answer_with(changed(status=77)),
        "busy, and a descriptor": answer_with(changed(status=BUSY)),
        "a descriptor alone": answer_with(None),
    }
    for name, step in steps.items():
        key = os.urandom(16)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(name_of(key))
        listener.listen()
        importer.send("open", forge(handle, key=key))
        listener.settimeout(5 * SLOW)
        s, _ = listener.accept()
        step(s)
        s.close()
        listener.close()
        line = importer.line()
        if name == "more descriptors":
            # those too many are closed
            importer.do("close", line.split()[1])
        else:
            true(line in ("CUDA_ERROR_INVALID_HANDLE", "CUDA_ERROR_MAP_FAILED",
                          "CUDA_ERROR_OUT_OF_MEMORY"), f"{name}: {line}")
    close_all(fds)
    # the simulator counts what the lies led to: maps of parts of a handle
    after = importer.books()
    expect(after[:5], before[:5])
    importer.do("close", importer.do("open", handle))


def has_socket(pid):
    files = f"/proc/{pid}/fd"
    for fd in os.listdir(files):
        with contextlib.suppress(FileNotFoundError):
            if "socket:" in os.readlink(f"{files}/{fd}"):
                return True
    return False


@test
def fork():
    """Children open nothing, serve nothing and hold nothing."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    expect(exporter.say("child", handle), "ok", "exporter's child")
    expect(importer.say("child", handle), "ok", "importer's child")
    importer.do("close", importer.do("open", handle))
    with connect(handle) as s:
        for id in unpack(handle)[2], 0:  # the second when the first is done
            ask(s, id)
            close_all(answer(s)[1])
        expect(exporter.say("child", handle), "ok", "its child later")
        child = int(exporter.do("start"))
        true(not has_socket(child), "a program that was started has a socket")
        os.kill(child, signal.SIGKILL)
    child = int(exporter.do("leave"))
    importer.do("close", importer.do("open", handle))
    exporter.kill()
    start = time.monotonic()
    expect(importer.say("open", handle), "CUDA_ERROR_INVALID_HANDLE")
    true(time.monotonic() - start < SLOW, "the child kept the socket")
    os.kill(child, signal.SIGKILL)


@test
def lost_socket():
    """A program that closes all descriptors, as daemons do."""
    exporter = Puppet("SIM_BACKING=memfd")
    importer = Puppet()
    p = exporter.do("alloc", 1000)
    handle = exporter.do("get", p)
    listener = [int(fd) for fd in os.listdir(f"/proc/{exporter.pid}/fd")
                if "socket:" in os.readlink(f"/proc/{exporter.pid}/fd/{fd}")]
    true(listener, "no socket")
    id = unpack(handle)[2]
    time.sleep(0.1 * SLOW)  # its thread is to wait by now
    exporter.do("closefiles")
    # the simulator's own files are gone too, so there is nothing to be had
    true(importer.say("open", handle)[:5] == "CUDA_", "open")
    s = connect(handle)
    ask(s, id + 1)
    expect(answer(s)[0][0], GONE, "the socket is back")


@test
def replaced_socket():
    """And that has files of its own by their numbers at once."""
    exporter = Puppet("SIM_BACKING=memfd")
    p = exporter.do("alloc", 1000)
    handle = exporter.do("get", p)
    id = unpack(handle)[2]
    with connect(handle) as client:
        ask(client, id + 1)
        expect(answer(client)[0][0], GONE)
        time.sleep(0.1 * SLOW)  # its thread is to wait by now
        exporter.do("replacefiles")
        Puppet().say("open", handle)
        with connect(handle) as s:
            ask(s, id + 1)
            expect(answer(s)[0][0], GONE, "the socket is back")
    exporter.do("checkfiles")


@test
def no_descriptor_left():
    """A process that has none for the socket: an error, and no handle."""
    exporter = Puppet()
    p = exporter.do("alloc", 1000)
    subprocess.run(["prlimit", f"--pid={exporter.pid}", "--nofile=3:3"],
                   check=True)
    expect(exporter.say("get", p), "CUDA_ERROR_OUT_OF_MEMORY")
    true("no socket or thread" in exporter.log(), "the log")


@test
def concurrent():
    """Several importers at once, many exports."""
    exporter = Puppet("VMMSHIM_CHUNK_SIZE=2M")
    importers = [Puppet() for _ in range(6)]
    shared = [(*exporter.share(20 * MiB, i), i) for i in range(6)]
    opened = []
    for _ in range(3):
        for i in importers:
            for _, handle, _ in shared:
                i.send("open", handle)
        for i in importers:
            opened.append((i, [i.ok_line() for _ in shared]))
        for i, pointers in opened[-6:]:
            for q, (_, _, seed) in zip(pointers, shared):
                expect(i.say("check", q, 20 * MiB, seed), "ok")
    for i, pointers in opened:
        for q in pointers:
            i.do("close", q)
