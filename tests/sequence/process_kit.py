# SPDX-License-Identifier: MIT
"""process_kit: the processes of processes.py, without the shim and with it.

What each has, as both must have it: contexts, blocks, and what it has opened.
"""
import os
import random
import re
import select
import subprocess
import tempfile

TOP = os.path.abspath(os.environ.get("top_builddir", "."))
HERE = os.path.abspath(os.environ.get("srcdir", "."))
WITH_SIM = os.path.join(HERE, "tests", "e2e", "with-sim")
SLOW = 20 if os.environ.get("VS_WRAP") else 1
KiB, MiB = 1 << 10, 1 << 20
N_PROCESSES, N_THREADS, N_BLOCKS, N_OPENED = 3, 2, 12, 16
GREEN = 4  # a context of the first device's primary one
N_CTX = 5
OK, LAZY = "CUDA_SUCCESS", 1


class Different(Exception):
    pass


# --- two worlds ---------------------------------------------------------------

class Program:
    """One process of one world."""

    def __init__(self, options, variables):
        self.errors = tempfile.TemporaryFile()
        self.said = b""
        self.process = subprocess.Popen(
            [WITH_SIM, *options, *variables,
             os.path.join(TOP, "tests", "sequence", "process")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            env=dict(os.environ, top_builddir=TOP), bufsize=0)

    def send(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            pass

    def line(self):
        """What it says, or how it has ended."""
        out = self.process.stdout
        while b"\n" not in self.said:
            if not select.select([out], [], [], 60 * SLOW)[0]:
                return "hangs"
            more = os.read(out.fileno(), 65536)
            if not more:
                return f"ended: {self.process.wait()}"
            self.said += more
        line, self.said = self.said.split(b"\n", 1)
        return line.decode().strip()

    def end(self):
        """By itself: how many violations it counts is its last line."""
        self.process.stdin.close()
        self.line()
        return self.process.wait(60 * SLOW)

    def kill(self):
        self.process.kill()
        self.process.wait()
        for pipe in self.process.stdin, self.process.stdout:
            pipe.close()

    def complaints(self):
        """What the simulator's judge, or a sanitizer, said."""
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")
        return [line for line in text.splitlines()
                if re.search(r"violation \((busy|unseen|illegal|handout|overlap"
                             r"|stale|rule)\)|Sanitizer|runtime error:", line)]


class Both:
    """The same process without and with the shim."""

    def __init__(self, run):
        self.run = run
        self.programs = [Program(["--no-shim"], run.variables),
                         Program([], run.variables)]
        run.all += self.programs

    def send(self, line, handles=("", "")):
        for program, handle in zip(self.programs, handles):
            program.send(line.replace("HANDLE", handle))

    def hear(self, name, line):
        """The answer to that, and the handles in it."""
        answers = [program.line() for program in self.programs]
        said = [answer.split("#")[0] for answer in answers]
        self.run.note(f"{name} {line}: {said[0]}")
        if said[0] != said[1]:
            raise Different(f"{name} {line}\n< {said[0]}\n> {said[1]}")
        if said[0] == "hangs" or said[0].startswith("ended"):
            raise Different(f"{name} {line}: {said[0]}")
        return said[0].strip(), [a.partition("#")[2] for a in answers]

    def end(self):
        statuses = [program.end() for program in self.programs]
        if statuses != [0, 0]:
            raise Different(f"exit statuses {statuses}")

    def kill(self):
        for program in self.programs:
            program.kill()


# --- what there is ------------------------------------------------------------

class Block:
    """An allocation; `handles`: of the two worlds, once it was exported."""

    def __init__(self, owner, slot, size, kind, ctx):
        self.owner, self.slot, self.size, self.kind = owner, slot, size, kind
        self.ctx, self.device = ctx, owner.devices[ctx]
        self.is_live, self.is_freed, self.handles = True, False, None
        self.name = f"b{slot}"
        self.is_linear = kind in ("linear", "pitch")


class Opened:
    """A block in another process."""

    def __init__(self, slot, block, ctx):
        self.slot, self.block, self.ctx, self.count = slot, block, ctx, 1
        self.size = block.size
        self.name = f"o{slot}"


def is_ok(said):
    return said.split()[:1] == [OK] and "CUDA_ERROR" not in said


class Process:
    """One that is there in both worlds; `both`: those that it goes on as."""

    def __init__(self, run, number, both=None):
        self.run, self.number, self.both = run, number, both or Both(run)
        self.is_there = True
        last = run.n_devices - 1
        self.devices = [0, 0, last, last, 0]
        self.is_primary = [True, False, False, last > 0, False]
        self.is_live = [False] * N_CTX
        self.current = [None] * N_THREADS
        self.blocks, self.opened = {}, {}

    def send(self, t, line, handles=("", "")):
        self.both.send(f"{t} {line}", handles)

    def hear(self, t, line):
        return self.both.hear(f"p{self.number} t{t}", line)

    def tell(self, t, line, handles=("", "")):
        self.send(t, line, handles)
        return self.hear(t, line)

    def does(self, t, line, handles=("", "")):
        """Whether all calls of that went well."""
        return is_ok(self.tell(t, line, handles)[0])

    def has_context(self, t):
        return self.current[t] is not None and self.is_live[self.current[t]]

    def owner(self, t):
        """Whose it is what this thread allocates and opens now."""
        k = self.current[t]
        return 0 if k == GREEN else k

    def device(self, t):
        return self.devices[self.current[t]]

    def start(self, k, t):
        """The context is made, and current."""
        word = "retain" if self.is_primary[k] else "create"
        if k == GREEN:
            if not self.is_live[0]:
                return
            word = "green"
        if self.does(t, f"{word} {k} {self.devices[k]}"):
            self.is_live[k] = True
            self.current[t] = k


class Run:
    def __init__(self, seed, variables):
        self.random = random.Random(seed)
        self.variables, self.all, self.lines = variables, [], []
        self.n_handles = 0  # of the shim's
        settings = dict(v.split("=", 1) for v in variables)
        self.n_devices = int(settings.get("SIM_DEVICES", 1))
        self.may_peer = settings.get("SIM_PEER") != "0"
        # what an exporter frees is used again sooner then (README, Limits)
        self.is_small = settings.get("SIM_MEMORY", "").endswith("M")
        self.most = 12 * MiB if self.is_small else 64 * MiB
        self.handles = []
        self.processes = [Process(self, i) for i in range(N_PROCESSES)]

    def note(self, line):
        self.lines.append(line)
        if os.environ.get("VERBOSE"):
            print(line, flush=True)

    def chance(self, n):
        return self.random.randrange(n)

    def one_of(self, things):
        things = list(things)
        return self.random.choice(things) if things else None
