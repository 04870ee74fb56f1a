# SPDX-License-Identifier: MIT
"""Programs that say what they tried, run without and with the shim.

A program prints one line for each thing, `WHAT: ANSWER`. An answer is
  ok ...          data was right; the shim's line must be the same
  WRONG ...       data was wrong: never
  lost N of M     the shim may lose fewer, never more
  failed ...      an error; where the driver alone fails, the shim may do better
  skipped ...     not possible on this machine
Anything else must be the same. A program that dies without the shim may do so
with it, but what it said before must hold."""
import os
import re
import sys
import threading

import shim

OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


def answers(run):
    said = {}
    for line in run.out.splitlines():
        what, colon, answer = line.partition(": ")
        if colon:
            said[what] = answer
    return said


def lost(answer):
    found = re.match(r"lost (\d+)", answer)
    return int(found[1]) if found else None


def worse(what, native, under):
    """Why the shim's answer will not do; None if it will."""
    if under is None:
        return f"{what}: '{native}' without, nothing with the shim"
    if under.startswith("WRONG"):
        return f"{what}: {under}"
    if native is None or under == native or native.startswith("failed"):
        return None
    if lost(native) is not None and lost(under) is not None and \
            lost(under) <= lost(native):
        return None
    return f"{what}: '{native}' without, '{under}' with the shim"


class Report:
    """Counts cases, prints a line or more for each. Any thread may use it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.passed = self.failed = 0
        self.wanted = sys.argv[1:]

    def line(self, name, problems, notes=()):
        good = not problems
        with self.lock:
            self.passed += good
            self.failed += not good
            print("\n    ".join([("ok " if good else "FAILED ") + name,
                                 *problems, *notes]), flush=True)

    def skip(self, name, why):
        print(f"skipped {name}: {why}", flush=True)

    def wants(self, name):
        return not self.wanted or any(w in name for w in self.wanted)

    def compare(self, name, command, env=None, timeout=90, pool=True):
        """One case; returns what the program said under the shim."""
        if not self.wants(name):
            return {}
        plain = shim.Run(command, env or {}, False, timeout)
        under = shim.Run(command, env or {}, True, timeout)
        native, said = answers(plain), answers(under)
        problems, notes = [], []
        if under.status != 0 and plain.status == 0:
            problems.append(f"exit {plain.status} without, {under.status} "
                            "with the shim")
        if pool and under.served() == 0:
            problems.append("the pool served nothing")
        if not said:
            problems.append("it said nothing")
        for what in list(native) + [w for w in said if w not in native]:
            if what not in said and plain.status != 0:
                continue
            why = worse(what, native.get(what), said.get(what))
            if why:
                problems.append(why)
            elif native.get(what) != said.get(what):
                notes.append(f"{what}: '{native.get(what)}' without, "
                             f"'{said.get(what)}' with the shim")
            elif said[what].startswith(("failed", "skipped")):
                notes.append(f"{what}: {said[what]}, with or without")
        if plain.status != 0:
            notes.append(f"exit {plain.status} without, {under.status} with "
                         "the shim; without: " + last_words(plain))
        if problems:
            problems += ["| " + line for line in
                         under.err.strip().splitlines()[-12:]]
        if "vmmshim" in under.err:
            notes += ["| " + line for line in under.err.splitlines()
                      if "vmmshim" in line][:3]
        self.line(f"{name} ({under.served()} served, {plain.seconds:.1f} s "
                  f"without, {under.seconds:.1f} s with)", problems, notes)
        return said

    def end(self):
        print(f"{self.passed} passed, {self.failed} failed")
        return self.failed > 0 or self.passed == 0


def last_words(run):
    lines = [line for line in run.err.strip().splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no message"


def script(name, *arguments):
    return [sys.executable, os.path.join(os.path.dirname(
        os.path.abspath(__file__)), name), *arguments]
