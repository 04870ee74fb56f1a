# SPDX-License-Identifier: MIT
"""ipc: legacy IPC between processes, with crashes at every step.

Two puppets (ipc_puppet.c), each an ordinary CUDA program, pass memory to each
other. Some tests speak the shim's own messages (src/hook/ipc_wire.h) instead,
to leave off or lie at any point. Prints TAP. Arguments: names of tests.
With VS_DRIVER=real the tests that need no simulator, on a GPU.
"""
import array
import contextlib
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

TOP = os.path.abspath(os.environ.get("top_builddir", "."))
HERE = os.path.join(os.path.abspath(os.environ.get("srcdir", ".")),
                    "tests", "e2e")
REAL = os.environ.get("VS_DRIVER") == "real"
SLOW = 20 if os.environ.get("VS_WRAP") else 1
# driver calls made when a context is born, which prepares the pool
BIRTH = {"cuMemAddressReserve": 1, "cuMemMap": 3, "cuMemSetAccess": 3,
         "cuMemRelease": 1}
# under valgrind there is less address space, and the arena takes some tries
HAS_SPACE = not os.environ.get("VS_WRAP")
KiB, MiB = 1 << 10, 1 << 20
TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def expect(got, want, what=""):
    if got != want:
        raise Failed(f"{what}: got {got!r}, expected {want!r}")


def true(condition, what):
    if not condition:
        raise Failed(what)


def n_devices():
    probe = os.path.join(TOP, "tests", "gpu", "probe")
    said = subprocess.run([probe], stdout=subprocess.PIPE, check=False).stdout
    return int(said.split()[0]) if said[:1].isdigit() else 0


class Puppet:
    """A CUDA program that obeys."""

    all = []

    def __init__(self, *variables, shim=True, files=None, user=None,
                 log="warn", devices=1):
        if REAL and any(v.startswith("SIM_") for v in variables):
            raise Skipped("needs the simulator")
        if REAL and devices > n_devices():
            raise Skipped(f"needs {devices} GPUs")
        if not REAL and devices > 1:
            variables += (f"SIM_DEVICES={devices}",)
        self.said = b""
        self.errors = tempfile.TemporaryFile()
        words = [os.path.join(HERE, "with-sim")]
        if not shim:
            words.append("--no-shim")
        words += [f"VMMSHIM_LOG={log}", *variables]
        if user:
            words += ["setpriv", f"--reuid={user}", f"--regid={user}",
                      "--clear-groups"]
        words.append(os.path.join(TOP, "tests", "e2e", "ipc_puppet"))
        if files and not REAL:
            words = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *words]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, env=dict(os.environ, top_builddir=TOP))
        Puppet.all.append(self)
        self.pid = int(self.ok_line().split()[0])
        if files and REAL:
            used = len(os.listdir(f"/proc/{self.pid}/fd"))
            subprocess.run(["prlimit", f"--pid={self.pid}",
                            f"--nofile={used + 40}"], check=True)

    def line(self, seconds=20):
        out = self.process.stdout
        while b"\n" not in self.said:
            if not select.select([out], [], [], seconds * SLOW)[0]:
                raise Failed("a puppet hangs")
            more = os.read(out.fileno(), 65536)
            if not more:
                raise Failed("a puppet died: " + self.log())
            self.said += more
        line, self.said = self.said.split(b"\n", 1)
        return line.decode()

    def ok_line(self):
        line = self.line()
        if line.split()[:1] != ["ok"]:
            raise Failed(f"{line}; {self.log()}")
        return line[3:]

    def send(self, *words):
        self.process.stdin.write(
            (" ".join(str(w) for w in words) + "\n").encode())
        self.process.stdin.flush()

    def say(self, *words):
        """What it answers, as it is."""
        self.send(*words)
        return self.line()

    def do(self, *words):
        """What it answers after "ok"."""
        self.send(*words)
        try:
            return self.ok_line()
        except Failed as e:
            raise Failed(f"{' '.join(str(w)[:40] for w in words)}: {e}") \
                from None

    def share(self, size, seed=1):
        """Allocates, fills, returns pointer and handle."""
        p = self.do("alloc", size)
        self.do("fill", p, size, seed)
        return p, self.do("get", p)

    def books(self):
        """Once they stand still: serving threads take a moment."""
        last = None
        for _ in range(100):
            now = [int(n) for n in self.do("books").split()]
            if now == last:
                break
            last = now
            time.sleep(0.02)
        return now

    def balanced(self, before):
        """Nothing is left over."""
        for _ in range(5):
            now = self.books()
            if now == before:
                return
            time.sleep(0.1)
        expect(now, before, "handles, physical, mappings, reservations, "
               "descriptors, violations")

    def end(self):
        self.process.stdin.close()
        expect(self.process.wait(20 * SLOW), 0, "exit status")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def log(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")


def pair(*variables, **options):
    return Puppet(*variables, **options), Puppet(*variables, **options)


# --- the shim's messages ------------------------------------------------------

HANDLE = struct.Struct("<Q16s4QII")
REQUEST = struct.Struct("<QII")
REPLY = struct.Struct("<IIIIQ8Q")
OK, GONE, REFUSED, BUSY, FAILED = range(5)


def unpack(handle):
    return HANDLE.unpack(bytes.fromhex(handle))


def hash64(data):
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return h


def forge(handle, **changes):
    """The handle with some fields changed, and a checksum that is right."""
    names = ("magic", "key", "id", "size", "offset", "device", "pid", "sum")
    fields = dict(zip(names, unpack(handle)))
    fields.update(changes)
    data = HANDLE.pack(*fields.values())[:-4]
    h = hash64(data)
    return (data + struct.pack("<I", (h ^ h >> 32) & 0xffffffff)).hex()


def name_of(key):
    return "\0vmmshim-ipc-" + key.hex()


def connect(handle):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(5 * SLOW)
    s.connect(name_of(unpack(handle)[1]))
    return s


def ask(s, id, first=0, most=8):
    s.send(REQUEST.pack(id, first, most))


def answer(s):
    """Fields of a reply and its descriptors."""
    data, control, _, _ = s.recvmsg(4096, 4096)
    fds = array.array("i")
    for level, kind, content in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[:len(content) - len(content) % 4])
    return REPLY.unpack(data), list(fds)


def close_all(fds):
    for fd in fds:
        os.close(fd)


# --- what works ---------------------------------------------------------------

def round_trip(exporter, importer, size, seed):
    p, handle = exporter.share(size, seed)
    q = importer.do("open", handle)
    expect(importer.say("check", q, size, seed), "ok", f"{size} bytes there")
    importer.do("fill", q, size, seed + 1)
    expect(exporter.say("check", p, size, seed + 1), "ok", f"{size} here")
    importer.do("close", q)
    exporter.do("free", p)


@test
def data():
    exporter, importer = pair()
    round_trip(exporter, importer, 1000, 1)
    before = importer.books()
    for i, size in enumerate((1, 512, 100 * KiB, MiB, MiB + 1, 3 * MiB,
                              65 * MiB + 100, 300 * MiB)):
        round_trip(exporter, importer, size, 10 * i)
    importer.balanced(before)
    exporter.end()
    importer.end()


@test
def many_chunks():
    """Allocations over many chunks, beginning and ending within one."""
    exporter, importer = pair("VMMSHIM_CHUNK_SIZE=2M")
    holes = [exporter.do("alloc", 5 * MiB + 64 * KiB) for _ in range(9)]
    for p in holes[::2]:
        exporter.do("free", p)
    live = []
    for i, size in enumerate((3 * MiB, 5 * MiB, 9 * MiB, 300 * MiB)):
        p, handle = exporter.share(size, i)
        live.append((p, importer.do("open", handle), size, i))
    for p, q, size, seed in live:
        expect(importer.say("check", q, size, seed), "ok", f"{size}")
    for p, q, size, seed in live:
        importer.do("close", q)
        expect(exporter.say("check", p, size, seed), "ok", f"{size}")
    exporter.end()
    importer.end()


@test
def contiguous():
    exporter, importer = pair("VMMSHIM_CONTIGUOUS=1")
    for i, size in enumerate((3 * MiB, 40 * MiB)):
        round_trip(exporter, importer, size, i)


@test
def both_ways():
    a, b = pair()
    p, handle_a = a.share(3 * MiB, 1)
    q, handle_b = b.share(3 * MiB, 2)
    there = b.do("open", handle_a)
    here = a.do("open", handle_b)
    expect(a.say("check", here, 3 * MiB, 2), "ok")
    expect(b.say("check", there, 3 * MiB, 1), "ok")


@test
def bytes_are_stable():
    exporter, importer = pair()
    p, first = exporter.share(3 * MiB)
    expect(exporter.do("get", p), first, "again")
    expect(exporter.do("get", f"{int(p, 16) + MiB:x}"), first, "interior")
    small, handle = exporter.share(1000)
    other, neighbour = exporter.share(1000)
    true(handle != neighbour, "neighbours have one handle")
    expect(exporter.do("get", f"{int(small, 16) + 999:x}"), handle)
    for size, p, old in (3 * MiB, p, first), (1000, small, handle):
        exporter.do("free", p)
        seen = {old}
        for _ in range(50):
            p = exporter.do("alloc", size)
            new = exporter.do("get", p)
            true(new not in seen, "bytes of a handle came back")
            seen.add(new)
            exporter.do("free", p)
        # a stale one opens nothing
        expect(importer.say("open", old), "CUDA_ERROR_INVALID_VALUE")


@test
def interior():
    exporter, importer = pair()
    p, handle = exporter.share(5 * MiB, 3)
    inner = exporter.do("get", f"{int(p, 16) + 4 * MiB:x}")
    q = importer.do("open", inner)
    expect(importer.say("check", q, 5 * MiB, 3), "ok")
    expect(importer.do("open", handle), q)
    importer.do("close", q)
    importer.do("close", q)


@test
def counted():
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    before = importer.books()
    q = importer.do("open", handle)
    for _ in range(3):
        expect(importer.do("open", handle), q)
    for _ in range(3):
        importer.do("close", q)
        expect(importer.say("check", q, 3 * MiB, 1), "ok")
    importer.do("close", q)
    expect(importer.say("check", q, 3 * MiB, 1)[:10], "CUDA_ERROR")
    true(importer.say("close", q) != "ok", "one close too many")
    importer.books()
    q = importer.do("open", handle)
    expect(importer.say("check", q, 3 * MiB, 1), "ok")
    importer.do("close", q)
    after = importer.books()
    expect(after[:5], before[:5])


@test
def attributes():
    """An import answers queries as the driver's own does."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB + 1000)
    q = importer.do("open", handle)
    want = (f"{q} {3 * MiB + 1000} type 2 context 1 start 1 range 1 mapped 1 "
            "capable 0 ordinal 0 id 1 retain CUDA_ERROR_INVALID_VALUE")
    expect(importer.do("attributes", q), want)
    expect(importer.do("attributes", f"{int(q, 16) + MiB:x}"), want)
    true(importer.say("attributes",
                      f"{int(q, 16) + 3 * MiB + 1000:x}")[:2] != "ok",
         "one past the end is known")
    true(importer.say("get", q) == "CUDA_ERROR_INVALID_VALUE",
         "an import can be exported")
    true(importer.say("free", q) == "CUDA_ERROR_INVALID_VALUE",
         "an import can be freed")
    importer.do("close", q)
    true(importer.say("attributes", q)[:2] != "ok", "known after its close")


@test
def devices():
    """Ordinals differ between processes."""
    exporter, importer = pair(devices=2)
    exporter.do("context", "device1")
    p, handle = exporter.share(3 * MiB, 5)
    q = importer.do("open", handle)
    expect(importer.say("check", q, 3 * MiB, 5), "ok")
    true(" ordinal 1 " in importer.do("attributes", q), "ordinal")
    # device 1 is given access to what device 0 has open
    importer.do("context", "device1")
    importer.do("peers")
    expect(importer.say("check", q, 3 * MiB, 5), "ok")
    # one context for each device (semantics, 3.2)
    r = importer.do("open", handle)
    expect(importer.say("check", r, 3 * MiB, 5), "ok")
    importer.do("close", r)
    importer.do("close", q)


@test
def copies_between_devices():
    """Plain copies that need no peer access with the driver's memory."""
    exporter = Puppet()
    importer = Puppet(devices=2)
    p, handle = exporter.share(3 * MiB, 5)
    q = importer.do("open", handle)
    importer.do("context", "device1")
    r = importer.do("alloc", 3 * MiB)
    importer.do("copy", r, 3 * MiB, int(q, 16))
    expect(importer.say("check", r, 3 * MiB, 5), "ok")
    importer.do("fill", r, 3 * MiB, 6)
    importer.do("copy", q, 3 * MiB, int(r, 16))
    expect(exporter.say("check", p, 3 * MiB, 6), "ok")
    importer.do("context", "0")
    importer.do("close", q)


@test
def no_peers():
    exporter = Puppet("SIM_DEVICES=2", "SIM_PEER=0")
    importer = Puppet("SIM_DEVICES=2", "SIM_PEER=0")
    exporter.do("context", "device1")
    p, handle = exporter.share(3 * MiB)
    expect(importer.say("open", handle), "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED")
    importer.do("context", "device1")
    importer.do("close", importer.do("open", handle))


@test
def hundreds_of_handles():
    """400 handles on both sides with 64 descriptors."""
    exporter, importer = pair(files=64)
    sizes = [1000, 4 * KiB, 64 * KiB, 100 * KiB]
    shared = []
    for i in range(400):
        size = sizes[i % 4]
        shared.append((*exporter.share(size, i), size, i))
    opened = [(importer.do("open", handle), size, seed)
              for _, handle, size, seed in shared]
    for q, size, seed in opened:
        expect(importer.say("check", q, size, seed), "ok")
    for q, _, _ in opened:
        importer.do("close", q)


@test
def many_pieces_few_descriptors():
    """More pieces than descriptors: they come a few at a time."""
    exporter = Puppet("VMMSHIM_CHUNK_SIZE=2M")
    importer = Puppet("VMMSHIM_CHUNK_SIZE=2M")
    p, handle = exporter.share(300 * MiB, 7)
    s = connect(handle)
    id = unpack(handle)[2]
    first, pieces = 0, []
    while True:
        ask(s, id, first)
        reply, fds = answer(s)
        expect(reply[0], OK)
        true(1 <= len(fds) <= 8, "descriptors in a reply")
        expect(reply[2], len(fds))
        pieces += reply[5:5 + len(fds)]
        first += len(fds)
        close_all(fds)
        if first == reply[3]:
            break
    expect(sum(pieces), reply[4])
    true(len(pieces) > 100, "pieces")
    q = importer.do("open", handle)
    expect(importer.say("check", q, 300 * MiB, 7), "ok")


@test
def contexts():
    """What a context opened goes with it."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    before = importer.books()
    q = importer.do("open", handle)
    importer.do("context", "new")
    expect(importer.say("open", handle), "CUDA_ERROR_ALREADY_MAPPED")
    _, other = exporter.share(3 * MiB, 9)
    r = importer.do("open", other)
    expect(importer.say("check", r, 3 * MiB, 9), "ok")
    importer.do("context", "destroy")
    importer.do("context", "0")
    expect(importer.say("check", q, 3 * MiB, 1), "ok")
    expect(importer.say("check", r, 3 * MiB, 9)[:10], "CUDA_ERROR")
    true(importer.say("close", r) != "ok", "closed after its context")
    importer.do("context", "reset")
    true(importer.say("close", q) != "ok", "closed after the reset")
    after = importer.books()
    expect(after[:4], before[:4])


@test
def close_in_a_capture():
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    # the first capture of a context leaves a small block of the driver's
    importer.do("captureclose", importer.do("open", handle))
    importer.do("close", importer.do("open", handle))
    before = importer.books()
    q = importer.do("open", handle)
    importer.do("captureclose", q)
    true(importer.say("attributes", q)[:2] != "ok", "known after its close")
    # and what could not be unmapped then is unmapped later
    importer.do("close", importer.do("open", handle))
    importer.balanced(before)


@test
def close_under_work():
    """Unmapped only when the work on it is done: the judge looks on."""
    exporter = Puppet()
    importer = Puppet("SIM_LAG_US=50000")
    p, handle = exporter.share(3 * MiB)
    for last in ("close", None), ("context", "reset"):
        q = importer.do("open", handle)
        importer.do("busy", q, MiB)
        importer.do("busy", f"{int(q, 16) + MiB:x}", MiB)
        importer.do(last[0], last[1] or q)
    importer.do("context", "retain")
    # a context that nobody told of this one's imports
    q = importer.do("open", handle)
    importer.do("context", "new")
    importer.do("busy", q, 3 * MiB)
    importer.do("context", "0")
    importer.do("close", q)
    old = Puppet("SIM_LAG_US=50000", "SIM_DRIVER_VERSION=12040")
    q = old.do("open", handle)
    old.do("busy", q, 3 * MiB)
    old.do("close", q)


@test
def native_answers():
    """What the driver itself says where the shim has to say the same."""
    exporter, importer = pair(shim=False)
    p, handle = exporter.share(3 * MiB)
    q = importer.do("open", handle)
    say = [("own", exporter.say("open", handle)),
           ("interior close", importer.say("close", f"{int(q, 16) + 512:x}"))]
    importer.do("context", "new")
    _, other = exporter.share(3 * MiB)
    say += [("open in a second context", importer.say("open", handle)),
            ("another handle there", importer.say("open", other)[:30]),
            ("attributes", importer.say("attributes", q)),
            ("export of an import", importer.say("get", q)[:30])]
    importer.do("context", "0")
    p, handle = exporter.share(4 * MiB)
    exporter.do("free", p)
    say += [("open of freed memory", importer.say("open", handle)[:30])]
    p, handle = exporter.share(5 * MiB)
    exporter.kill()
    say += [("open after the exporter's end", importer.say("open", handle)),
            ("open again then", importer.say("open", other)[:30]),
            ("check after its end", importer.say("check", q, 3 * MiB, 1)),
            ("close", importer.say("close", q)),
            ("close again", importer.say("close", q))]
    for what, answer in say:
        print(f"# {what}: {answer}")


# --- errors -------------------------------------------------------------------

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
    expect(importer.say("close", "1000"), plain.say("close", "1000"))
    q = importer.do("open", handle)
    true(importer.say("close", f"{int(q, 16) + 512:x}") != "ok", "interior")
    true(exporter.say("get", "1000") == "CUDA_ERROR_INVALID_VALUE", "get")
    exporter.do("free", p)
    true(exporter.say("get", p) == "CUDA_ERROR_INVALID_VALUE", "get, freed")
    importer.do("context", "none")
    expect(importer.say("open", handle), "CUDA_ERROR_INVALID_CONTEXT",
           "no context")
    expect(importer.say("close", q), "CUDA_ERROR_INVALID_CONTEXT")
    importer.do("context", "0")
    importer.do("close", q)


@test
def forged():
    """Handles that only look right."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    not_shared = exporter.do("alloc", 3 * MiB)
    id = unpack(handle)[2]
    before = importer.books()
    for changes in (dict(id=id + 1), dict(id=id - 1), dict(id=0),
                    dict(key=os.urandom(16))):
        expect(importer.say("open", forge(handle, **changes)),
               "CUDA_ERROR_INVALID_VALUE", str(changes))
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
    before = exporter.books()
    importer = Puppet(user=65534)
    expect(importer.say("open", handle), "CUDA_ERROR_INVALID_VALUE")
    true("another user" in importer.log(), "the importer's log")
    # nor does root get the memory of another user's process
    _, handle = importer.share(MiB)
    expect(exporter.say("open", handle), "CUDA_ERROR_INVALID_VALUE")
    # a client that does not care whom it talks to is refused all the same
    s = connect(handle)
    ask(s, unpack(handle)[2])
    reply, fds = answer(s)
    expect(reply[0], REFUSED)
    expect(fds, [])


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


# --- ends and crashes ---------------------------------------------------------

@test
def exporter_ends_before_open():
    for end in Puppet.end, Puppet.kill:
        exporter, importer = pair()
        p, handle = exporter.share(3 * MiB)
        end(exporter)
        start = time.monotonic()
        expect(importer.say("open", handle), "CUDA_ERROR_INVALID_VALUE")
        true(time.monotonic() - start < SLOW, "that took long")


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
        expect(importer.say("open", handle), "CUDA_ERROR_INVALID_VALUE")
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
        true(line in ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_MAP_FAILED"),
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
        s.sendmsg([REQUEST.pack(id, 0, 8)],
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
    for s in talkers[:32]:
        ask(s, unpack(handle)[2])
        close_all(answer(s)[1])
    for s in talkers:
        s.close()
    importer.do("close", importer.do("open", handle))


def stop(puppet):
    """Until all its threads are stopped; on a busy machine that takes a while."""
    os.kill(puppet.pid, signal.SIGSTOP)
    for task in os.listdir(f"/proc/{puppet.pid}/task"):
        with open(f"/proc/{puppet.pid}/task/{task}/status",
                  encoding="ascii") as status:
            while not re.search(r"State:\s+T", status.read()):
                time.sleep(0.01)
                status.seek(0)


@test
def exporter_stopped():
    """It does not answer: an error in seconds, and later it opens."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    stop(exporter)
    start = time.monotonic()
    expect(importer.say("open", handle), "CUDA_ERROR_INVALID_VALUE")
    true(time.monotonic() - start < 5 * SLOW, "that took long")
    os.kill(exporter.pid, signal.SIGCONT)
    importer.do("close", importer.do("open", handle))


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
            s.sendmsg([REPLY.pack(*fields)],
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
            true(line in ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_MAP_FAILED",
                          "CUDA_ERROR_OUT_OF_MEMORY"), f"{name}: {line}")
    close_all(fds)
    # the simulator counts what the lies led to: maps of parts of a handle
    after = importer.books()
    expect(after[:5], before[:5])
    importer.do("close", importer.do("open", handle))


@test
def fork():
    """Children open nothing, serve nothing and hold nothing."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    expect(exporter.say("child", handle), "ok", "exporter's child")
    expect(importer.say("child", handle), "ok", "importer's child")
    child = int(exporter.do("leave"))
    importer.do("close", importer.do("open", handle))
    exporter.kill()
    start = time.monotonic()
    expect(importer.say("open", handle), "CUDA_ERROR_INVALID_VALUE")
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


# --- one device, two processes ------------------------------------------------

@test
def idle_memory_goes_to_a_neighbour():
    """
    One process has freed most of the device. Another that fills it gets that
    memory, too, long before it has the age to go back by itself.
    """
    if REAL:
        raise Skipped("needs the simulator")
    with tempfile.NamedTemporaryFile() as file:
        # looks at its memory each second
        one = Puppet(f"SIM_SHARED={file.name}", "SIM_MEMORY=1G",
                     "VMMSHIM_DECAY_MS=600000")
        two = Puppet(f"SIM_SHARED={file.name}", "SIM_MEMORY=1G")
        p = one.do("alloc", 600 * MiB)
        true(int(two.do("info").split()[0]) <= 424 * MiB, "not shared")
        one.do("free", p)
        # but for what the other prepared when its context was born
        true(int(one.do("info").split()[0]) >= 1016 * MiB, "idle is free")
        parts = []
        end = time.monotonic() + 10 * SLOW
        while len(parts) < 40 and time.monotonic() < end:
            line = two.say("alloc", 20 * MiB)
            if line[:2] == "ok":
                parts.append(line.split()[1])
            else:
                expect(line, "CUDA_ERROR_OUT_OF_MEMORY")
                time.sleep(0.05)
        expect(len(parts), 40, "parts of 20 MiB")
        for p in parts:
            two.do("free", p)
        one.do("free", one.do("alloc", 100 * MiB))
        two.end()
        # the end of a process gives all it had back
        one.do("alloc", 900 * MiB)


@contextlib.contextmanager
def on_one_device(lag_us=300000, **settings):
    """
    Two processes that ask each other, of 1 GiB if it is simulated, and the
    folder where they leave their statistics.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield *two_in(folder, lag_us, settings), folder


def two_in(folder, lag_us, settings):
    both = []
    for name in ("one", "two"):
        variables = ["VMMSHIM_DECAY_MS=600000", "VMMSHIM_STATS_AT_EXIT=1",
                     "VMMSHIM_STATS_FORMAT=json",
                     f"VMMSHIM_STATS_FILE={folder}/{name}",
                     f"VMMSHIM_NEIGHBOURS={settings.get(name, 1)}"]
        if not REAL:
            variables += [f"SIM_SHARED={folder}/device", "SIM_MEMORY=1G",
                          f"SIM_LAG_US={lag_us}"]
        both.append(Puppet(*variables))
    # all but 4 GiB of a real one: to make and clear 100 GiB takes seconds
    ballast = int(both[0].do("info").split()[0]) - 4096 * MiB
    if ballast > 0:
        both[0].do("alloc", ballast)
    return both


def counted(puppet, folder, name, what):
    """A counter of a puppet, which ends."""
    puppet.end()
    with open(f"{folder}/{name}", encoding="ascii") as lines:
        found = re.search(rf'"{what}": *([0-9]+)', lines.read())
    return int(found.group(1)) if found else 0


def most_of_it(puppet):
    """Bytes of which only one block fits in the device."""
    return int(puppet.do("info").split()[0]) // 10 * 7


@test
def a_neighbour_is_given_what_is_idle():
    """
    One process has freed most of the device, under work that is not done yet.
    Another that asks for it in one piece gets it, as from the driver, and then
    the first one gets it back.
    """
    with on_one_device() as (one, two, folder):
        size = most_of_it(one)
        for _ in range(3):
            p = one.do("alloc", size)
            expect(two.say("alloc", size), "CUDA_ERROR_OUT_OF_MEMORY")
            one.do("busy", p, MiB)
            one.do("free", p)
            p = two.do("alloc", size)
            expect(one.say("alloc", size), "CUDA_ERROR_OUT_OF_MEMORY")
            two.do("free", p)
        true(counted(two, folder, "two", "oom_neighbours") >= 3, "by whom?")
        true(counted(one, folder, "one", "given") >= 2 * size, "gave nothing")


@test
def a_stopped_neighbour_is_not_waited_for_each_time():
    """It holds another up for some seconds, and answers when it can."""
    with on_one_device() as (one, two, _):
        size = most_of_it(one)
        one.do("free", one.do("alloc", size))
        stop(one)
        began = time.monotonic()
        for _ in range(10):
            expect(two.say("alloc", size), "CUDA_ERROR_OUT_OF_MEMORY")
        true(time.monotonic() - began < 8 * SLOW, "waits each time")
        os.kill(one.pid, signal.SIGCONT)
        end = time.monotonic() + 10 * SLOW
        while two.say("alloc", size)[:2] != "ok":
            true(time.monotonic() < end, "deaf for ever")
            time.sleep(0.05)


@test
def what_comes_back_in_pieces_is_waited_for():
    """Freed one after the other, under work that ends as slowly."""
    with on_one_device() as (one, two, _):
        size = most_of_it(one)
        blocks = [one.do("alloc", size // 8) for _ in range(8)]
        for p in blocks:
            one.do("busy", p, MiB)
            one.do("free", p)
            time.sleep(0.03)
        two.do("alloc", size)


@test
def who_tries_how_much_there_is_waits_once():
    """Beside a neighbour whose work does not end."""
    if REAL:
        raise Skipped("needs the simulator")
    with on_one_device(lag_us=20000000) as (one, two, _):
        size = most_of_it(one)
        p = one.do("alloc", size)
        one.do("busy", p, MiB)
        one.do("free", p)
        began = time.monotonic()
        for i in range(20):
            expect(two.say("alloc", size - i * MiB),
                   "CUDA_ERROR_OUT_OF_MEMORY")
        true(time.monotonic() - began < 4 * SLOW, "waits each time")
        for puppet in one, two:
            puppet.kill()


@test
def other_allocators_are_given_what_is_idle():
    """cuMemAllocAsync of one process, cuMemAlloc of another."""
    with on_one_device() as (one, two, folder):
        size = most_of_it(one)
        one.do("free", one.do("alloc", size))
        two.do("async", size)
        true(counted(one, folder, "one", "given") >= size, "by whom?")


@test
def who_does_not_ask_is_not_given():
    """With knob NEIGHBOURS 0 on either side nothing goes back early."""
    for off in ("one", "two"):
        with on_one_device(**{off: 0}) as (one, two, _):
            size = most_of_it(one)
            one.do("free", one.do("alloc", size))
            expect(two.say("alloc", size), "CUDA_ERROR_OUT_OF_MEMORY")


def violations(puppet):
    """What the simulator's judge, or a sanitizer, said of a puppet."""
    return [line for line in puppet.log().splitlines()
            if re.search(r"violation \((busy|unseen|illegal|handout|overlap|"
                         r"stale)\)|(Address|Thread)Sanitizer|runtime error:", line)]


def main():
    wanted = sys.argv[1:]
    tests = [t for t in TESTS if not wanted or t.__name__ in wanted]
    print(f"1..{len(tests)}", flush=True)
    status = 0
    for n, function in enumerate(tests, 1):
        Puppet.all = []
        problem = skipped = None
        try:
            skipped = function()
            for puppet in Puppet.all:
                true(not violations(puppet), str(violations(puppet)))
        except Skipped as e:
            skipped = e
        except (Failed, OSError, subprocess.SubprocessError,
                ValueError, struct.error) as e:
            problem = f"{type(e).__name__}: {e}"
        for puppet in Puppet.all:
            try:
                os.kill(puppet.pid, signal.SIGCONT)
            except (AttributeError, ProcessLookupError):
                pass
            puppet.process.kill()
            puppet.process.wait()
        name = function.__name__.replace("_", " ")
        if problem:
            status = 1
            print(f"not ok {n} - {name}")
            print("# " + problem.replace("\n", "\n# "))
            for puppet in Puppet.all:
                print("# " + puppet.log()[-2000:].replace("\n", "\n# "))
        else:
            print(f"ok {n} - {name}" + (f" # SKIP {skipped}" if skipped
                                        else ""))
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
