# SPDX-License-Identifier: MIT
"""ipc: legacy IPC between processes, with crashes at every step.

Two puppets (ipc_puppet.c), each an ordinary CUDA program, pass memory to each
other. Some tests speak the shim's own messages (src/hook/ipc_wire.h) instead,
to leave off or lie at any point. Prints TAP. Arguments: names of tests.
With VS_DRIVER=real the tests that need no simulator, on a GPU.
"""
import os
import signal
import struct
import subprocess
import sys

import ipc_ends
import ipc_errors
import ipc_neighbours
import ipc_works
from ipc_kit import TESTS, Failed, Puppet, Skipped, true, violations

# each adds its own to TESTS
PARTS = (ipc_works, ipc_errors, ipc_ends, ipc_neighbours)


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
