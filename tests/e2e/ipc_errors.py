# SPDX-License-Identifier: MIT
"""ipc_errors: arguments, handles and processes that are not what they seem."""
import array
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import time

from ipc_kit import (BIRTH, BUSY, FAILED, GONE, HAS_SPACE, MAX_CLIENTS, OK,
                     REAL, REPLY, REQUEST, SLOW, TOP, MiB, Puppet, answer, ask,
                     close_all, connect, cpu_seconds, expect, forge, listen_by,
                     pair, relay, test, true, unpack)


@test
def arguments():
    exporter, importer = pair()
    p, handle = exporter.share(MiB)
    expect(exporter.say("open", handle), "CUDA_ERROR_INVALID_CONTEXT", "own")
    expect(importer.say("open0", handle), "CUDA_ERROR_INVALID_VALUE", "flags")
    garbage = "5a" * 64
    plain = Puppet(shim=False)
    expect(importer.say("open", garbage), plain.say("open", garbage),
           "garbage goes to the driver")
    broken = handle[:-2] + ("00" if handle[-2:] != "00" else "01")
    expect(importer.say("open", broken), plain.say("open", broken),
           "a broken handle goes to the driver")
    newer = forge(handle, magic=unpack(handle)[0] + (1 << 56))
    expect(importer.say("open", newer), plain.say("open", newer),
           "one of another version of the shim goes to the driver")
    expect(importer.log().count("another version"), 1, "the log")
    expect(importer.say("close", "1000"), plain.say("close", "1000"))
    q = importer.do("open", handle)
    true(importer.say("close", f"{int(q, 16) + 512:x}") != "ok", "interior")
    true(exporter.say("get", "1000") == "CUDA_ERROR_INVALID_VALUE", "get")
    bad = "CUDA_ERROR_INVALID_VALUE"
    if not REAL:  # not known of others
        expect(importer.say("nowhere", handle), f"{bad} {bad}")
    exporter.do("context", "none")
    expect(exporter.say("get", p), "CUDA_ERROR_INVALID_CONTEXT", "get")
    exporter.do("context", "0")
    exporter.do("free", p)
    true(exporter.say("get", p) == "CUDA_ERROR_INVALID_VALUE", "get, freed")
    importer.do("context", "none")
    expect(importer.say("open", handle), "CUDA_ERROR_INVALID_CONTEXT",
           "no context")
    expect(importer.say("close", q), "CUDA_ERROR_INVALID_CONTEXT")
    importer.do("context", "0")
    importer.do("close", q)


@test
def chunks_without_descriptors():
    """A device that shares none: an error, and a line that says what helps."""
    # the last of four tries to make a chunk
    exporter = Puppet("SIM_FAIL=cuMemCreate:1:801:3")
    p = exporter.do("alloc", 3 * MiB)
    expect(exporter.say("get", p), "CUDA_ERROR_INVALID_VALUE")
    expect(exporter.say("get", p), "CUDA_ERROR_INVALID_VALUE")
    expect(exporter.log().count("VMMSHIM_"), 1, "names of knobs")
    true("VMMSHIM_IPC=native" in exporter.log(), "the log")
    native = Puppet("SIM_FAIL=cuMemCreate:1:801:3", "VMMSHIM_IPC=native")
    p, handle = native.share(3 * MiB, 4)
    importer = Puppet("VMMSHIM_IPC=native")
    expect(importer.say("check", importer.do("open", handle), 3 * MiB, 4),
           "ok")


@test
def forged():
    """Handles that only look right."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    exporter.do("alloc", 3 * MiB)  # not shared
    id = unpack(handle)[2]
    before = importer.books()
    for changes in (dict(id=id + 1), dict(id=id - 1), dict(id=0)):
        expect(importer.say("open", forge(handle, **changes)),
               "CUDA_ERROR_INVALID_VALUE", str(changes))
    expect(importer.say("open", forge(handle, key=os.urandom(16))),
           "CUDA_ERROR_INVALID_HANDLE")
    for changes in (dict(size=1 << 40), dict(offset=1 << 40),
                    dict(size=(1 << 64) - 1), dict(offset=(1 << 64) - 1)):
        true(importer.say("open", forge(handle, **changes))[:5] == "CUDA_",
             str(changes))
    importer.balanced(before)
    importer.do("open", handle)


@test
def unshimmed_importer():
    exporter = Puppet(log="info")
    importer = Puppet(shim=False)
    p, handle = exporter.share(MiB)
    answer = importer.say("open", handle)
    if REAL:
        true(answer.startswith("CUDA_ERROR"), answer)
    else:
        expect(answer, "CUDA_ERROR_INVALID_VALUE")
    true("VMMSHIM_IPC=native" in exporter.log(), "what to do is not logged")
    expect(exporter.log().count("VMMSHIM_IPC=native"), 1, "lines")


@test
def unshimmed_exporter():
    """The driver's own handles still open, and answer as before."""
    exporter = Puppet(shim=False)
    importer = Puppet()
    p, handle = exporter.share(3 * MiB, 4)
    q = importer.do("open", handle)
    expect(importer.say("check", q, 3 * MiB, 4), "ok")
    importer.do("close", q)


@test
def native():
    exporter = Puppet("VMMSHIM_IPC=native")
    plain = Puppet(shim=False)
    p, handle = exporter.share(3 * MiB, 4)
    q = plain.do("open", handle)
    expect(plain.say("check", q, 3 * MiB, 4), "ok")
    plain.do("close", q)
    # it opens handles of either kind
    shimmed = Puppet()
    p, handle = shimmed.share(3 * MiB, 5)
    q = exporter.do("open", handle)
    expect(exporter.say("check", q, 3 * MiB, 5), "ok")


@test
def other_user():
    if os.getuid() != 0:
        return "not root"
    exporter = Puppet()
    p, handle = exporter.share(MiB)
    if subprocess.run(["setpriv", "--reuid=65534", "test", "-x",
                       os.path.join(TOP, ".libs")]).returncode:
        return "the build folder is closed to others"
    importer = Puppet(user=65534)
    expect(importer.say("open", handle), "CUDA_ERROR_INVALID_VALUE")
    true("another user" in importer.log(), "the importer's log")
    # nor does root get the memory of another user's process
    _, handle = importer.share(MiB)
    expect(exporter.say("open", handle), "CUDA_ERROR_INVALID_VALUE")
    # nor is one asked that has the name of a process that has ended
    key = os.urandom(16)
    listener = listen_by(key)
    impostor = os.fork()
    if impostor == 0:
        os.setresuid(65534, 65534, 65534)
        listener.listen()  # so it counts as this user's
        os._exit(1 if listener.accept()[0].recv(100) else 0)
    time.sleep(0.3 * SLOW)
    expect(exporter.say("open", forge(handle, key=key)),
           "CUDA_ERROR_INVALID_VALUE")
    expect(os.waitpid(impostor, 0)[1], 0, "an impostor was asked")
    listener.close()
    # a client that does not care whom it talks to has no answer all the same
    s = connect(handle)
    try:
        ask(s, unpack(handle)[2])
        expect(s.recv(100), b"")
    except (BrokenPipeError, ConnectionResetError):
        pass


def connect_often(handle, n):
    """Another user's process, once it has so many connections."""
    ready, say_ready = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            clients = []
            while len(clients) < n:
                try:
                    clients.append(connect(handle))
                except BlockingIOError:  # it has not taken those before in
                    time.sleep(0.001)
            os.write(say_ready, b"x")
            while clients:
                signal.pause()
        finally:
            os._exit(1)
    os.close(say_ready)
    true(os.read(ready, 1), "it cannot connect")
    os.close(ready)
    return child


@test
def other_users_take_no_place():
    if os.getuid() != 0:
        return "not root"
    exporter, importer = pair()
    handle = exporter.share(MiB)[1]
    # as many as the exporter takes in, and the kernel keeps for it
    other = connect_often(handle, MAX_CLIENTS + 129)
    said = importer.say("open", handle)
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    true(said.startswith("ok"), said)


@test
def who_knows_only_the_name():
    """All of the network namespace can read that."""
    exporter = Puppet()
    handle = exporter.share(MiB)[1]
    _, key, id = unpack(handle)[:3]
    with open("/proc/net/unix", encoding="ascii") as names:
        true(key[8:].hex() not in names.read(), "the key is for all to read")
    with connect(handle) as s:
        s.key = key[:8] + os.urandom(8)
        ask(s, id)
        reply, fds = answer(s)
        expect((reply[0], fds), (GONE, []))
        s.key = key
        ask(s, id)
        reply, fds = answer(s)
        expect(reply[0], OK)
        close_all(fds)


@test
def export_fails():
    """Errors of each driver call on the way; nothing is left over."""
    for call, want in (("cuMemExportToShareableHandle", None),):
        exporter = Puppet(f"SIM_FAIL={call}:1:999:1")
        importer = Puppet()
        p, handle = exporter.share(3 * MiB)
        before = importer.books()
        expect(importer.say("open", handle), "CUDA_ERROR_MAP_FAILED", call)
        importer.balanced(before)
        importer.do("close", importer.do("open", handle))


@test
def import_fails():
    calls = {"cuMemImportFromShareableHandle": "CUDA_ERROR_MAP_FAILED",
             "cuMemAddressReserve": "CUDA_ERROR_MAP_FAILED",
             "cuMemMap": "CUDA_ERROR_MAP_FAILED",
             "cuMemSetAccess": "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"}
    exporter = Puppet("VMMSHIM_CHUNK_SIZE=2M")
    p, handle = exporter.share(5 * MiB)
    if not HAS_SPACE:
        del calls["cuMemAddressReserve"]
    for call, want in calls.items():
        for n in 1, 2:
            if n == 2 and call in ("cuMemAddressReserve", "cuMemSetAccess"):
                continue
            at = BIRTH.get(call, 0) + n
            importer = Puppet(f"SIM_FAIL={call}:{at}:304:1")
            before = importer.books()
            expect(importer.say("open", handle), want, f"{call} {n}")
            importer.balanced(before)
            importer.do("close", importer.do("open", handle))
            importer.end()


@test
def connection_breaks():
    """
    As of an exporter whose listening socket was closed with all others while
    somebody connected. It has a new one a moment later.
    """
    real, importer = pair()
    p, handle = real.share(3 * MiB, 5)
    key = os.urandom(16)
    for n_broken in 1, 2:
        before = importer.log()
        with listen_by(key) as listener:
            importer.send("open", forge(handle, key=key))
            for _ in range(n_broken):
                listener.accept()[0].close()
            if n_broken == 1:
                with listener.accept()[0] as s, connect(handle) as t:
                    relay(s, t)
                q = importer.ok_line()
                expect(importer.say("check", q, 3 * MiB, 5), "ok")
                importer.do("close", q)
            else:
                expect(importer.line(), "CUDA_ERROR_INVALID_HANDLE")
        expect(importer.log()[len(before):].count("the connection broke"),
               n_broken - 1, "lines of the log")


@test
def exporter_refuses():
    """What it may answer, and what the program is told."""
    real, importer = pair()
    p, handle = real.share(3 * MiB)
    key = os.urandom(16)
    for status, result, want in ((GONE, 0, "INVALID_VALUE"),
                                 (FAILED, 999, "MAP_FAILED")):
        with listen_by(key) as listener:
            importer.send("open", forge(handle, key=key))
            with listener.accept()[0] as s:
                s.recv(100)
                s.send(REPLY.pack(status, result, *[0] * 11))
                expect(importer.line(), "CUDA_ERROR_" + want, str(status))


@test
def exporter_is_short_for_long():
    """It has none to send, whenever it is asked, and memory is no help."""
    real, importer = pair()
    p, handle = real.share(3 * MiB)
    key = os.urandom(16)
    end = time.monotonic() + 3.5 * SLOW
    began = cpu_seconds(importer)
    with listen_by(key) as listener:
        importer.send("open", forge(handle, key=key))
        while select.select([listener, importer.process.stdout], [], [],
                            5 * SLOW)[0] == [listener]:
            with listener.accept()[0] as s:
                while s.recv(100):
                    true(time.monotonic() < end, "it asks for ever")
                    s.send(REPLY.pack(BUSY, 0, *[0] * 11))
        expect(importer.line(), "CUDA_ERROR_OUT_OF_MEMORY")
    true(cpu_seconds(importer) - began < 0.3 * SLOW, "it spins")


@test
def connection_breaks_amid_a_signal():
    """The exporter's new socket is waited for, as where no signal comes."""
    real, importer = pair()
    p, handle = real.share(3 * MiB)
    key = os.urandom(16)
    with listen_by(key) as listener:
        importer.send("open", forge(handle, key=key))
        s = listener.accept()[0]
        s.recv(100)
    s.close()
    time.sleep(0.005)
    os.kill(importer.pid, signal.SIGUSR1)
    time.sleep(0.01)
    with listen_by(key) as listener:
        with listener.accept()[0] as s:
            s.recv(100)
            s.send(REPLY.pack(GONE, 0, *[0] * 11))
            expect(importer.line(), "CUDA_ERROR_INVALID_VALUE")


ODD = (0, 1, 2, 7, 8, 9, (1 << 31) - 1, (1 << 32) - 1)
LONG = (0, 1, 2 * MiB, (1 << 47) - 1, 1 << 47, (1 << 64) - 1)


def send_any(s, rng, words, fds):
    """A message that is right, cut, too long or empty, with descriptors."""
    message = rng.choice([words, words, words[:rng.randrange(len(words))],
                          words + bytes(rng.randrange(3000)), b""])
    fds = [rng.choice(fds) for _ in range(rng.choice([0, 1, 2, 8, 9, 200]))]
    s.sendmsg([message] if message else [],
              [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
              if fds else [])


def lie(importer, handle, rng, size, fds):
    """One open, by an exporter that says what it likes."""
    key = os.urandom(16)
    with listen_by(key) as listener:
        importer.send("open", forge(handle, key=key))
        with listener.accept()[0] as s, \
                contextlib.suppress(ConnectionError):
            for _ in range(rng.randrange(5)):
                if not s.recv(100):
                    break
                send_any(s, rng, REPLY.pack(
                    rng.choice([OK, OK, OK, GONE, BUSY, FAILED, 77]),
                    *(rng.choice(ODD) for _ in range(3)),
                    *(rng.choice((size,) + LONG) for _ in range(9))), fds)
    line = importer.line()
    if line.startswith("ok"):
        importer.do("close", line.split()[1])


@test
def anything_is_said():
    """By exporters and importers: nothing is left of it."""
    seed = int(os.environ.get("VS_FUZZ_SEED", time.time()))
    rng = random.Random(seed)
    real, importer = pair()
    handle = real.share(3 * MiB)[1]
    _, key, id = unpack(handle)[:3]
    with connect(handle) as s:
        ask(s, id)
        reply, pieces = answer(s)
    fds = [*pieces, *os.pipe(), os.memfd_create("empty"),
           os.open("/dev/zero", os.O_RDWR), os.open("/", os.O_RDONLY)]
    importer_had, real_had = importer.books(), real.books()
    for _ in range(40):
        lie(importer, handle, rng, reply[5], fds)
        with contextlib.suppress(ConnectionError), connect(handle) as s:
            for _ in range(rng.randrange(5)):
                send_any(s, rng, REQUEST.pack(
                    key, rng.choice((id,) + LONG), rng.choice(ODD),
                    rng.choice(ODD)), fds)
    close_all(fds)
    # but for what the simulator thinks of maps of parts of a handle
    expect(importer.books()[:5], importer_had[:5], f"importer, seed {seed}")
    expect(real.books(), real_had, f"exporter, seed {seed}")
    importer.do("close", importer.do("open", handle))
