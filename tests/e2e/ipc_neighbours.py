# SPDX-License-Identifier: MIT
"""ipc_neighbours: two processes that share the memory of one device."""
import contextlib
import os
import re
import signal
import tempfile
import time

from ipc_kit import (REAL, SLOW, MiB, Puppet, Skipped, expect, stop, test,
                     true)


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
def on_one_device(*variables, lag_us=300000, **settings):
    """
    Two processes that ask each other, of 1 GiB if it is simulated, and the
    folder where they leave their statistics.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield *two_in(folder, lag_us, variables, settings), folder


def two_in(folder, lag_us, variables, settings):
    both = []
    for name in ("one", "two"):
        words = [*variables,
                 "VMMSHIM_DECAY_MS=600000", "VMMSHIM_STATS_AT_EXIT=1",
                 "VMMSHIM_STATS_FORMAT=json",
                 f"VMMSHIM_STATS_FILE={folder}/{name}",
                 f"VMMSHIM_NEIGHBOURS={settings.get(name, 1)}"]
        if not REAL:
            words += [f"SIM_SHARED={folder}/device", "SIM_MEMORY=1G",
                      f"SIM_LAG_US={lag_us}"]
        both.append(Puppet(*words))
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
def what_a_neighbour_gives_may_not_be_all():
    """
    Two fifths of the device are idle in one process; in another half of it was
    freed under work, and both together are enough.
    """
    if REAL:
        raise Skipped("needs the simulator")
    with on_one_device(lag_us=2000000) as (one, two, _):
        total = int(one.do("info").split()[0])
        one.do("free", one.do("alloc", total * 40 // 100))
        p = two.do("alloc", total * 50 // 100)
        two.do("busy", p, MiB)
        two.do("free", p)
        two.do("alloc", total * 85 // 100)


@test
def what_is_idle_here_is_given_up_for_what_a_neighbour_gives():
    """
    No block may span two chunks, and what is idle in one process lies in
    several: with what the other gives it has to be made anew in one.
    """
    with on_one_device("VMMSHIM_CONTIGUOUS=1") as (one, two, _):
        total = int(one.do("info").split()[0])
        p = one.do("alloc", total * 30 // 100)
        for q in [two.do("alloc", total * 10 // 100) for _ in range(3)]:
            two.do("free", q)
        one.do("free", p)
        two.do("alloc", total * 85 // 100)


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


def thread_status(puppet):
    """What the system tells of the shim's thread in it, None without one."""
    tasks = f"/proc/{puppet.pid}/task"
    for task in os.listdir(tasks):
        with open(f"{tasks}/{task}/status", encoding="ascii") as lines:
            said = lines.read()
        if said.startswith("Name:\tvmmshim\n"):
            return said
    return None


def n_wakes(puppet):
    """How often the shim's thread in it slept."""
    end = time.monotonic() + 10 * SLOW
    while not (said := thread_status(puppet)) and time.monotonic() < end:
        time.sleep(0.01)  # it has its name a while after it was made
    true(said, "no thread")
    return int(re.search(r"\nvoluntary\S*\s*([0-9]+)", said).group(1))


def enter_others(puppet, last):
    """A context of each device up to that one; that of the last is current."""
    for device in range(1, last + 1):
        puppet.do("context", f"device{device}")


@contextlib.contextmanager
def beside_idle(device, *variables):
    """
    Two processes of the same devices, of 1 GiB each; the first has so many bytes
    of one idle as it yields, and the second knows that device 0 alone.
    """
    if REAL:
        raise Skipped("needs the simulator")
    with tempfile.TemporaryDirectory() as folder:
        both = [f"SIM_SHARED={folder}/device", "SIM_MEMORY=1G",
                "VMMSHIM_DECAY_MS=600000", "VMMSHIM_NEIGHBOURS=1"]
        n = max(2, device + 1)
        one = Puppet(*both, devices=n)
        enter_others(one, device)
        size = 700 * MiB
        one.do("free", one.do("alloc", size))
        yield one, Puppet(*both, *variables, devices=n), size


@test
def a_further_pool_is_shown_at_once():
    """What is idle there is asked for before its owner's next look."""
    with beside_idle(1) as (_, two, size):
        two.do("context", "device1")
        two.do("alloc", size)


@test
def who_has_no_pool_on_a_device_asks_all_the_same():
    """It has no context there, or serves nothing from a pool."""
    with beside_idle(1) as (_, two, size):
        two.do("create", 1, size)
    for verb in "alloc", "async":
        with beside_idle(0, "VMMSHIM_IPC=native") as (_, two, size):
            two.do(verb, size)


@test
def two_threads_that_ask_first_both_ask():
    """The one does not wait for the other, but for where the others are."""
    for _ in range(10):
        with beside_idle(0, "VMMSHIM_IPC=native") as (_, two, size):
            two.do("both", 0, size // 14 * 9)


@test
def who_has_no_pool_on_a_device_asks_in_vain_at_times():
    """It tries how much there is, beside one that has nothing to give."""
    with beside_idle(1) as (one, two, size):
        one.do("alloc", size)
        before = n_wakes(one)
        for _ in range(100):
            expect(two.say("create", 1, size), "CUDA_ERROR_OUT_OF_MEMORY")
        true(n_wakes(one) - before < 100 * SLOW, "asks each time")


@test
def what_another_device_is_short_of_is_asked_for():
    """A pool of the driver's on one device, the context is of the other."""
    for ipc in "emulate", "native":
        with beside_idle(1, f"VMMSHIM_IPC={ipc}") as (_, two, size):
            two.do("context", "device1")
            two.do("context", 0)
            two.do("from", 1, size)


@test
def what_the_last_of_several_devices_is_short_of_is_asked_for():
    """What others have of the devices before is little, and then nothing."""
    with beside_idle(3) as (_, two, size):
        enter_others(two, 3)
        two.do("context", 0)
        two.do("from", 3, size)


@test
def who_has_some_to_give_up_each_time_asks_at_last():
    """Other threads leave it, and it is never enough."""
    with beside_idle(0) as (_, two, size):
        two.do("refill", "creating")
        two.do("create", 0, size)


@test
def what_is_given_each_time_keeps_no_device_from_being_asked_for():
    """A neighbour is busy on the likely device; what helps is on the next."""
    with beside_idle(1) as (one, two, size):
        one.do("refill", "giving")
        two.do("context", "device1")
        two.do("context", 0)
        two.do("from", 1, size)


@test
def a_stopped_neighbour_is_not_waited_for_on_each_device():
    """It does not answer for one, so it will not for another."""
    with beside_idle(3) as (one, two, size):
        enter_others(two, 3)
        stop(one)
        began = time.monotonic()
        expect(two.say("from", 3, size), "CUDA_ERROR_OUT_OF_MEMORY")
        took = time.monotonic() - began
        true(took < 4.5 * SLOW, f"waited {took:.1f} s")


@test
def a_context_that_is_retained_again_wakes_nobody():
    """The thread that shows others a pool has shown it."""
    one = Puppet("VMMSHIM_DECAY_MS=600000", "VMMSHIM_NEIGHBOURS=1")
    before = n_wakes(one)
    for _ in range(200):
        one.do("context", "retain")
    true(n_wakes(one) - before < 100, "wakes each time")


@test
def a_latecomer_is_given_what_is_idle():
    """One that starts when the device has not a byte left."""
    if REAL:
        raise Skipped("needs the simulator")
    with tempfile.NamedTemporaryFile() as file:
        variables = [f"SIM_SHARED={file.name}", "SIM_MEMORY=1G",
                     "VMMSHIM_DECAY_MS=600000", "VMMSHIM_NEIGHBOURS=1"]
        one = Puppet(*variables)
        blocks = []
        for size in 512, 64, 2:
            while (line := one.say("alloc", size * MiB))[:2] == "ok":
                blocks.append(line.split()[1])
        for p in blocks:
            one.do("free", p)
        two = Puppet(*variables)
        two.do("alloc", 700 * MiB)
        two.end()
        # its first context takes memory, too
        one.do("free", one.do("alloc", 700 * MiB))
        two = Puppet(*variables, "SIM_FAIL=cuDevicePrimaryCtxRetain:1:2")
        two.do("alloc", 700 * MiB)


@test
def a_context_that_cannot_be_made_asks_once():
    """Nobody else is there, and the second answer would be the first."""
    if REAL:
        raise Skipped("needs the simulator")
    with tempfile.TemporaryDirectory() as folder:
        both = ["VMMSHIM_NEIGHBOURS=1", f"SIM_SHARED={folder}/device",
                "SIM_MEMORY=1G"]
        # those that tests before have killed are asked by this one
        one = Puppet(*both)
        one.do("alloc", 600 * MiB)
        expect(one.say("alloc", 600 * MiB), "CUDA_ERROR_OUT_OF_MEMORY")
        one.end()
        one = Puppet(*both, "SIM_FAIL=cuCtxCreate:1:2:0",
                     "VMMSHIM_STATS_AT_EXIT=1", "VMMSHIM_STATS_FORMAT=json",
                     f"VMMSHIM_STATS_FILE={folder}/one")
        one.do("alloc", MiB)
        expect(one.say("context", "new"), "CUDA_ERROR_OUT_OF_MEMORY")
        expect(counted(one, folder, "one", "asked"), 1)


@test
def who_does_not_ask_is_not_given():
    """With knob NEIGHBOURS 0 on either side nothing goes back early."""
    for off in ("one", "two"):
        with on_one_device(**{off: 0}) as (one, two, _):
            size = most_of_it(one)
            one.do("free", one.do("alloc", size))
            expect(two.say("alloc", size), "CUDA_ERROR_OUT_OF_MEMORY")
