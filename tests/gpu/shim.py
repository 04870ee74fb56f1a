# SPDX-License-Identifier: MIT
"""Runs a program without and with the shim, for the scripts beside this file."""
import json
import os
import subprocess
import tempfile
import time

BUILD = os.path.abspath(os.environ.get("top_builddir", "build"))
SOURCE = os.path.abspath(os.environ.get("srcdir", "."))
LIBRARY = os.path.join(BUILD, ".libs", "libvmmshim.so")
SERVED = ("small_hit", "small_miss", "large_hit", "large_miss")


class Run:
    """What one run of a program left: output, exit status, statistics."""

    def __init__(self, command, env, shim, timeout=300, library=LIBRARY):
        self.env = {**os.environ, **env}
        self.env.pop("LD_PRELOAD", None)
        self.stats = {}
        handle, path = tempfile.mkstemp(prefix="vmmshim-")
        os.close(handle)
        if shim:
            self.env.update(LD_PRELOAD=library, VMMSHIM_STATS_AT_EXIT="1",
                            VMMSHIM_STATS_FORMAT="json",
                            VMMSHIM_STATS_FILE=path)
        start = time.monotonic()
        try:
            done = subprocess.run(command, env=self.env, timeout=timeout,
                                  stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True,
                                  errors="replace", check=False)
            self.status, self.out, self.err = (done.returncode, done.stdout,
                                               done.stderr)
        except subprocess.TimeoutExpired:
            self.status, self.out, self.err = -1, "", "timed out"
        except OSError as error:
            self.status, self.out, self.err = 127, "", str(error)
        self.seconds = time.monotonic() - start
        with open(path, encoding="utf-8", errors="replace") as lines:
            self.dumps = [json.loads(line) for line in lines if line.strip()]
        os.unlink(path)

    def count(self, *names):
        """Sum of counters over all processes and devices of the run."""
        return sum(device.get(name, 0) for dump in self.dumps
                   for device in dump.get("devices", []) for name in names)

    def most(self, name):
        """Largest value of a level over all processes and devices."""
        return max((device.get(name, 0) for dump in self.dumps
                    for device in dump.get("devices", [])), default=0)

    def served(self):
        return self.count(*SERVED)


def has_two():
    probe = Run([os.path.join(BUILD, "tests", "gpu", "probe")], {}, False)
    return not probe.out.startswith(("1 x", "no "))


def machine():
    """One line: GPU, driver, date."""
    probe = subprocess.run([os.path.join(BUILD, "tests", "gpu", "probe")],
                           capture_output=True, text=True, check=False)
    return probe.stdout.strip() + time.strftime(", %Y-%m-%d", time.gmtime())


def table(rows):
    """A markdown table; the first row is its head."""
    lines = ["| " + " | ".join(str(cell) for cell in row) + " |"
             for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join(lines)
