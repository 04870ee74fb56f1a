# SPDX-License-Identifier: MIT
"""The programs that `workloads` and `beside` measure, and the allocators under
which they run. A program prints a line `RESULT NAME [cpu_ms=C] steps_per_s=X
peak_mib=Y sha=Z`."""
import glob
import math
import os
import re
import statistics
import sys

import shim

# no cache of the framework's own, whichever it is
OFF = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
       "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
SETTINGS = [
    # key, head of the column, environment, under the shim
    ("own", "framework's own cache", {"CUPY_POOL": "1"}, False),
    ("driver", "`cudaMalloc` for every tensor", OFF, False),
    ("expandable", "PyTorch expandable segments",
     {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, False),
    ("shim", "shim", OFF, True),
    ("ordered", "shim, `VMMSHIM_REUSE=ordered`",
     {**OFF, "VMMSHIM_REUSE": "ordered"}, True),
    ("sync", "shim, `VMMSHIM=sync`", {**OFF, "VMMSHIM": "sync"}, True),
]
PYTORCH_ONLY = {"expandable"}
# where programs find what they have in common
COMMON = {"PYTHONPATH": os.pathsep.join(filter(None, (
    os.path.join(shim.SOURCE, "tests", "gpu", "programs"),
    os.environ.get("PYTHONPATH"))))}


def arguments():
    """--NAME=VALUE as a dictionary, and the folder of the programs."""
    options = dict(a[2:].split("=", 1) for a in sys.argv[1:]
                   if a.startswith("--") and "=" in a)
    folders = [a for a in sys.argv[1:] if not a.startswith("--")]
    return options, folders[0] if folders else os.path.join(
        shim.SOURCE, "tests", "gpu", "programs")


def programs(folder, only, settings):
    """Name, path and settings of each program; those in `only`, if any, which
    may be in folders below."""
    pattern = os.path.join("**" if only else "", "*.py")
    for path in sorted(glob.glob(os.path.join(folder, pattern),
                                 recursive=True)):
        name = os.path.basename(path)[:-3]
        if name == "common" or (only and name not in only.split(",")):
            continue
        with open(path, encoding="utf-8") as text:
            is_torch = "torch" in text.read()
        yield name, path, [s for s in settings
                           if is_torch or s[0] not in PYTORCH_ONLY]


def parse(run):
    found = re.search(r"^RESULT (\S+) .*?steps_per_s=([\d.]+) "
                      r"peak_mib=(-?\d+) sha=(\w+)", run.out, re.M)
    if run.status != 0 or not found:
        return None
    cpu = re.search(r" cpu_ms=([\d.]+)", found[0])
    return {"speed": float(found[2]), "peak": int(found[3]), "sha": found[4],
            "cpu": float(cpu[1]) if cpu else None, "run": run}


def failure(run):
    """What is to be said of a run that did not say what it should."""
    tail = (run.out + run.err).strip().splitlines()[-8:]
    return f"exit {run.status}: " + "\n  ".join(tail)


def once(path, env, under):
    """What one run says; or None, and why."""
    run = shim.Run([sys.executable, path], {**COMMON, **env}, under,
                   timeout=500)
    result = parse(run)
    return (result, "") if result else (None, failure(run))


def percent(logarithm):
    """A ratio by its logarithm."""
    return f"{100 * math.expm1(logarithm):+.1f} %"


def mean(logarithms):
    """Of ratios, with the standard error in brackets."""
    n = len(logarithms)
    error = statistics.stdev(logarithms) / math.sqrt(n) if n > 1 else math.inf
    return f"{percent(statistics.mean(logarithms))} ({100 * error:.1f})"
