# SPDX-License-Identifier: MIT
"""ipc_kit: two puppets, the shim's messages, and what is asked of both.

Tests of ipc*.py register themselves with @test; ipc.py runs them.
"""
import array
import os
import re
import select
import signal
import socket
import struct
import subprocess
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
# clients that an exporter answers at once
MAX_CLIENTS = 32

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
            subprocess.run(["prlimit", f"--pid={self.pid}",
                            f"--nofile={self.files() + 40}"], check=True)

    def files(self):
        """Descriptors that it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

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


def stop(puppet):
    """Until all its threads are, which takes a busy machine a while."""
    os.kill(puppet.pid, signal.SIGSTOP)
    for task in os.listdir(f"/proc/{puppet.pid}/task"):
        with open(f"/proc/{puppet.pid}/task/{task}/status",
                  encoding="ascii") as status:
            while not re.search(r"State:\s+T", status.read()):
                time.sleep(0.01)
                status.seek(0)


def pair(*variables, **options):
    return Puppet(*variables, **options), Puppet(*variables, **options)


def round_trip(exporter, importer, size, seed):
    p, handle = exporter.share(size, seed)
    q = importer.do("open", handle)
    expect(importer.say("check", q, size, seed), "ok", f"{size} bytes there")
    importer.do("fill", q, size, seed + 1)
    expect(exporter.say("check", p, size, seed + 1), "ok", f"{size} here")
    importer.do("close", q)
    exporter.do("free", p)


# --- the shim's messages ------------------------------------------------------

HANDLE = struct.Struct("<Q16s4QII")
REQUEST = struct.Struct("<16sQII")
REPLY = struct.Struct("<IIIIQ8Q")
OK, GONE, BUSY, FAILED = range(4)


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
    return "\0vmmshim-ipc-" + key[:8].hex()


class Client(socket.socket):
    """Of an exporter, whose key it says."""

    def __init__(self, key):
        super().__init__(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.key = key
        self.settimeout(5 * SLOW)
        self.connect(name_of(key))


def connect(handle):
    return Client(unpack(handle)[1])


def ask(s, id, first=0, most=8):
    s.send(REQUEST.pack(s.key, id, first, most))


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


def listen_by(key):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(name_of(key))
    listener.listen()
    listener.settimeout(5 * SLOW)
    return listener


def relay(importer, exporter, times=1000):
    """
    Passes on so many requests and their replies between two sockets, or until
    the importer has no more.
    """
    for _ in range(times):
        request = importer.recv(100)
        if not request:
            return
        exporter.send(REQUEST.pack(exporter.key, *REQUEST.unpack(request)[1:]))
        reply, fds = answer(exporter)
        importer.sendmsg([REPLY.pack(*reply)],
                         [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                           array.array("i", fds))])
        close_all(fds)


def cpu_seconds(puppet):
    with open(f"/proc/{puppet.pid}/stat", encoding="ascii") as stat:
        user, system = stat.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def violations(puppet):
    """What the simulator's judge, or a sanitizer, said of a puppet."""
    return [line for line in puppet.log().splitlines()
            if re.search(r"violation \((busy|unseen|illegal|handout|overlap|"
                         r"stale)\)|(Address|Thread)Sanitizer|runtime error:",
                         line)]
