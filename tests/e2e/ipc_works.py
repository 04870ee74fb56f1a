# SPDX-License-Identifier: MIT
"""ipc_works: what is passed on between two processes, and its bookkeeping."""
import os
import resource
import time

from ipc_kit import (MAX_CLIENTS, OK, SLOW, KiB, MiB, Puppet, Skipped, answer,
                     ask, close_all, connect, cpu_seconds, expect, pair,
                     round_trip, test, true, unpack)


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
def older_open():
    """As programs of before CUDA 11 call it; it is the same memory."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB, 5)
    q = importer.do("older", handle)
    expect(importer.say("check", q, 3 * MiB, 5), "ok")
    expect(importer.do("open", handle), q, "opened again")
    importer.do("close", q)
    importer.do("close", q)


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
            "capable 0 ordinal 0 id 1 decompressible 0 "
            "retain CUDA_ERROR_INVALID_VALUE")
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
def between_imports():
    """What is not the shim's, at addresses between what it has opened."""
    exporter, importer = pair()
    told = {}
    for size in range(3, 7):
        importer.do("open", exporter.share(size * MiB)[1])
        p = importer.do("async", 3 * MiB)
        told[p] = importer.do("attributes", p)
    for p, before in told.items():
        expect(importer.do("attributes", p), before)


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
    # one context for each device (cuda.h)
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


def limit(puppet, n):
    """Descriptors that it may open from now on; returns what it was."""
    if os.environ.get("VS_WRAP"):
        raise Skipped("valgrind has descriptors of its own")
    before, most = resource.prlimit(puppet.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(puppet.pid, resource.RLIMIT_NOFILE, (n, most))
    return before


def leave(puppet, n):
    """The same, so many more than it has open."""
    return limit(puppet, puppet.files() + n)


@test
def few_descriptors_left():
    """poll() refuses more of them than a program may have."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB, 8)
    leave(exporter, 4)
    q = importer.do("open", handle)
    expect(importer.say("check", q, 3 * MiB, 8), "ok")
    importer.do("close", q)


@test
def no_descriptors_for_a_while():
    """The serving thread rests meanwhile, and goes on after that."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB, 9)
    # not even those that it looks at; none for a client
    for have_none in (lambda: limit(exporter, 0)), (lambda: leave(exporter, 0)):
        before = have_none()
        with connect(handle):  # which wakes it
            began = cpu_seconds(exporter)
            time.sleep(1)
            true(cpu_seconds(exporter) - began < 0.3, "it spins")
        limit(exporter, before)
    q = importer.do("open", handle)
    expect(importer.say("check", q, 3 * MiB, 9), "ok")


@test
def one_descriptor_left():
    """The exporter takes the importer in, and has none to send for a while."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB, 11)
    before = leave(exporter, 1)
    importer.send("open", handle)
    time.sleep(0.3)
    limit(exporter, before)
    q = importer.ok_line()
    expect(importer.say("check", q, 3 * MiB, 11), "ok")
    importer.do("close", q)


@test
def no_descriptor_to_open_by():
    """An importer without one: out of memory, and nothing is left of it."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB, 12)
    books = importer.books()
    used = importer.files()
    for spare in (0, 1):
        before = limit(importer, used + spare)
        expect(importer.say("open", handle), "CUDA_ERROR_OUT_OF_MEMORY")
        limit(importer, before)
        importer.balanced(books)
    q = importer.do("open", handle)
    expect(importer.say("check", q, 3 * MiB, 12), "ok")


@test
def fewer_descriptors_than_clients():
    """Clients that leave are noticed where no poll() may look at them all."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB, 10)
    used = exporter.files()
    if used + 6 > MAX_CLIENTS:
        raise Skipped("the driver has more open than there are clients")
    clients = []
    for _ in range(used + 6):
        clients.append(connect(handle))
        ask(clients[-1], 0)
        answer(clients[-1])
    limit(exporter, used + 4)
    for client in clients:
        client.close()
    q = importer.do("open", handle)
    expect(importer.say("check", q, 3 * MiB, 10), "ok")
    end = time.monotonic() + 5 * SLOW
    while exporter.files() > used + 1:
        true(time.monotonic() < end, "those that left are still there")
        time.sleep(0.02)


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
    # an H100's answer
    expect(importer.say("open", handle), "CUDA_ERROR_INVALID_HANDLE")
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
def green_context():
    """What is opened under one is the primary context's, and outlives it."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    before = importer.books()
    importer.do("context", "green")
    q = importer.do("open", handle)
    true("context 1" in importer.say("attributes", q), "whose it is")
    importer.do("context", "0")
    importer.do("context", "ungreen")
    expect(importer.say("check", q, 3 * MiB, 1), "ok")
    expect(importer.do("open", handle), q)
    importer.do("close", q)
    importer.do("close", q)
    importer.balanced(before)
    importer.do("context", "green")
    q = importer.do("open", handle)
    expect(importer.say("context", "reset"), "CUDA_ERROR_NOT_PERMITTED")
    expect(importer.say("check", q, 3 * MiB, 1), "ok")
    importer.do("context", "0")
    importer.do("context", "ungreen")
    importer.do("context", "reset")
    after = importer.books()
    expect(after[:4], before[:4])


def captured(importer, mode, *call):
    importer.do("capture", mode)
    answer = importer.do(*call)
    importer.do("captured")
    return answer


@test
def open_and_close_in_a_capture():
    """The driver lets both pass in each mode (an H100)."""
    exporter, importer = pair()
    p, handle = exporter.share(3 * MiB)
    # the first capture of a context leaves a small block of the driver's
    captured(importer, 0, "close", importer.do("open", handle))
    importer.do("close", importer.do("open", handle))
    before = importer.books()
    for mode in range(3):
        q = captured(importer, mode, "open", handle)
        expect(importer.say("check", q, 3 * MiB, 1), "ok")
        importer.do("capture", mode)
        importer.do("close", q)
        true(importer.say("close", q)[:2] != "ok", "closed twice")
        importer.do("captured")
        true(importer.say("attributes", q)[:2] != "ok", "known after its close")
    # and what could not be unmapped then is unmapped later: by an open, by a
    # close, or when its context ends
    importer.do("close", importer.do("open", handle))
    importer.balanced(before)
    other = importer.do("open", exporter.share(3 * MiB)[1])
    captured(importer, 0, "close", importer.do("open", handle))
    importer.do("close", other)
    importer.balanced(before)
    importer.do("context", "new")
    captured(importer, 0, "close", importer.do("open", handle))
    importer.do("context", "destroy")
    importer.do("context", "0")
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
def close_under_work_of_others():
    """
    Of another context of the device that opened it, where the memory is on a
    second one, and of peers: with access before, or by it and then a copy.
    """
    exporter = Puppet(devices=2)
    exporter.do("context", "device1")
    importer = Puppet("SIM_LAG_US=50000", devices=3)
    p, handle = exporter.share(3 * MiB)
    q = importer.do("open", handle)
    importer.do("context", "new")
    importer.do("busy", q, MiB)
    importer.do("context", "0")
    importer.do("close", q)
    p, handle = Puppet().share(3 * MiB)
    importer.do("context", "destroy")
    importer.do("context", "device1")
    importer.do("peers")
    importer.do("context", "device2")
    r = importer.do("alloc", MiB)
    for is_copied in False, True:
        importer.do("context", "0")
        q = importer.do("open", handle)
        importer.do("context", "1")
        importer.do("busy", q, MiB)
        if is_copied:
            importer.do("context", "2")
            importer.do("copy", r, MiB, int(q, 16))
        importer.do("context", "0")
        importer.do("close", q)


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
    for what, said in say:
        print(f"# {what}: {said}")
