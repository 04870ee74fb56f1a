# SPDX-License-Identifier: MIT
"""Steps of a library (tests/gpu/libraries): of each one line `NAME: ok ANSWER`,
the same in every run, or `NAME: failed ERROR`, and one `TIME NAME MS`."""
import os
import time
import traceback

import cupy as cp

ALL = []


def step(times, judge=None):
    """The function is a step, which is made once and then so many times. Its
    answer is what `judge` says of the last one: that takes time that is not
    the step's."""
    def add(function):
        ALL.append((function, times, judge))
        return function
    return add


def use_resource(name):
    """RMM's own pool, or the driver's, instead of cudaMalloc for each."""
    if not name:
        return
    import rmm  # its libraries have it with them
    resources = {
        "pool": lambda: rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(),
                                                  initial_pool_size=1 << 28),
        "async": lambda: rmm.mr.CudaAsyncMemoryResource(
            release_threshold=1 << 40),
    }
    rmm.mr.set_current_device_resource(resources[name]())


def make(function, times):
    """What it answers last, and milliseconds."""
    function()
    cp.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(times):
        answer = function()
    cp.cuda.Device().synchronize()
    return answer, (time.perf_counter() - start) / times * 1000


def main():
    use_resource(os.environ.get("RMM_RESOURCE"))
    for function, times, judge in ALL:
        name = function.__name__
        try:
            answer, ms = make(function, times)
            answer = judge(answer) if judge else answer
        except Exception as error:  # whatever it is, the other run has it too
            text = str(error).strip().splitlines()
            print(f"{name}: failed {type(error).__name__} {text[:1]}",
                  flush=True)
            traceback.print_exc()
            continue
        print(f"{name}: ok {answer}\nTIME {name} {ms:.4f}", flush=True)


def near(value, n=4):
    """An answer that does not depend on the order of a sum."""
    return f"{float(value):.{n}g}"
