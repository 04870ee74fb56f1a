# SPDX-License-Identifier: MIT
"""Whatever a stream is given counts as its use (Note [Two feeders] in
src/base/stream.h): each function of the toolkit at hand that takes a stream is
hooked, and its hook says so, or it is in the list of those that give it
nothing."""
import glob
import os
import re
import subprocess
import sys

SRC = os.path.join(os.environ.get("srcdir", "."), "src")
BUILD = os.environ.get("top_builddir", ".")
SKIP = 77

# By the names that cuGetProcAddress takes: they ask, or are of a capture, which
# is no work before the graph is launched.
GIVES_NOTHING = set("""
cuStreamBeginCapture cuStreamBeginCaptureToCig cuStreamBeginCaptureToGraph
cuStreamBeginRecaptureToGraph cuStreamCopyAttributes cuStreamDestroy
cuStreamEndCapture cuStreamEndCaptureToCig cuStreamGetAttribute
cuStreamGetCaptureInfo cuStreamGetCtx
cuStreamGetDevResource cuStreamGetDevice cuStreamGetFlags cuStreamGetGreenCtx
cuStreamGetId cuStreamGetPriority cuStreamIsCapturing cuStreamQuery
cuStreamSetAttribute cuStreamSynchronize cuStreamUpdateCaptureDependencies
""".split())
# Before CUDA 4 addresses were of 32 bits: not for programs of 64.
OLDEST = 4000
OLD_TOO = {"cuLaunchGridAsync", "cuEventRecord"}

# What a hook says, or what its file's macros do that end in it.
SAYS = re.compile(r"\b(VS_ENTER_STREAM|VS_ENTER_WORK|VS_ASYNC|VS_ASYNC_PT|"
                  r"RETURN_WORK|RETURN_SEEN(_IN)?|"
                  r"RETURN_RETRIED_(WORK|IN)|LAUNCHED)\b")


def setting(name):
    """What configure found."""
    with open(os.path.join(BUILD, "Makefile"), encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(name + " ="):
                return line.split("=", 1)[1].split()
    return []


def preprocessed():
    """cudaTypedefs.h, and the version of CUDA that it is of."""
    done = subprocess.run(
        setting("CC") + setting("CUDA_CPPFLAGS") + ["-E", "-P", "-"],
        input="#include <cudaTypedefs.h>\nCUDA_VERSION\n",
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print("no cudaTypedefs.h: skipped")
        sys.exit(SKIP)
    return done.stdout, int(done.stdout.split()[-1])


def taking_a_stream(header):
    """(name, since, is of the thread) of those in cudaTypedefs.h."""
    typedef = re.compile(r"typedef\s+CUresult\s*\(\s*\*\s*PFN_(\w+?)_v(\d+)"
                         r"(_ptsz|_ptds)?\)\s*\(([^;]*)\);")
    for name, since, per_thread, parameters in typedef.findall(header):
        if re.search(r"\bCUstream\b(?!\s*\*)", parameters):
            yield name, int(since), bool(per_thread)


def hooked():
    """The same to the symbol, of the rows of api.def."""
    row = re.compile(r'^API\((\w+),\s*"(\w+)",\s*(\d+),\s*([A-Z |]+)\)', re.M)
    with open(os.path.join(SRC, "api.def"), encoding="utf-8") as file:
        return {(name, int(since), "PTSZ" in flags): symbol
                for symbol, name, since, flags in row.findall(file.read())}


def bodies():
    """Symbol to the text of its hook."""
    hook = re.compile(r"^VS_EXPORT CUresult CUDAAPI\s+(\w+)\(.*?^}",
                      re.M | re.S)
    found = {}
    for path in glob.glob(os.path.join(SRC, "hook", "*.c")):
        with open(path, encoding="utf-8") as file:
            for match in hook.finditer(file.read()):
                found[match[1]] = match[0]
    return found


def unseen(rows, text, seen, version):
    """Hooks of what this toolkit has, with a stream of their own, that were not
    seen there: the header is not read as it should be."""
    stream = re.compile(r"^[^{]*\bCUstream\b(?!\s*\*)")
    return [symbol for key, symbol in rows.items()
            if key[1] <= version and key not in seen and
            key[0] not in GIVES_NOTHING and
            stream.search(text.get(symbol, ""))]


def main():
    rows, text, n, wrong = hooked(), bodies(), 0, 0
    header, version = preprocessed()
    seen = set(taking_a_stream(header))
    for symbol in unseen(rows, text, seen, version):
        print(f"{symbol} takes a stream and is not in cudaTypedefs.h")
        wrong += 1
    for key in sorted(seen):
        name, since, _ = key
        if name in GIVES_NOTHING or (since < OLDEST and name not in OLD_TOO
                                     and key not in rows):
            continue
        n += 1
        symbol = rows.get(key)
        if not symbol:
            print(f"{name} of {since} takes a stream and is not hooked")
        elif not SAYS.search(text.get(symbol, "")):
            print(f"the hook of {symbol} does not say that the stream is used")
        else:
            continue
        wrong += 1
    print(f"{n} functions that give a stream something, {wrong} wrong")
    return 1 if wrong or n == 0 else 0


sys.exit(main())
