# SPDX-License-Identifier: MIT
"""torch_two WHAT: two GPUs: "processes" (NCCL, one process a GPU), "one" (NCCL,
one process), "ddp" (data parallel), "model" (one model over both)."""
import hashlib
import os
import random
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WHAT = sys.argv[1] if len(sys.argv) > 1 else "one"
MIB = 1 << 20
SIZES = [1, 1000, 65536, 300000, MIB, 5 * MIB + 3, 32 * MIB]
TURNS = 6


def sha(tensors):
    h = hashlib.sha1()
    for t in tensors:
        h.update(t.detach().cpu().numpy().tobytes())
    return h.hexdigest()[:16]


def whole(n, device, seed):
    return torch.arange(n, device=device, dtype=torch.int32) * 7 + seed


def sums(rank):
    bad = 0
    for turn in range(TURNS):
        for n in SIZES:
            t = whole(n, "cuda", rank + turn)
            dist.all_reduce(t)
            bad += not torch.equal(t, whole(n, "cuda", turn) +
                                   whole(n, "cuda", turn + 1))
            del t
    return bad


def gathers(rank):
    bad = 0
    for n in SIZES:
        parts = [torch.empty(n, device="cuda", dtype=torch.int32)
                 for _ in range(2)]
        dist.all_gather(parts, whole(n, "cuda", rank))
        bad += sum(not torch.equal(p, whole(n, "cuda", i))
                   for i, p in enumerate(parts))
        t = whole(n, "cuda", 5) if rank == 0 else torch.empty(
            n, device="cuda", dtype=torch.int32)
        dist.broadcast(t, 0)
        bad += not torch.equal(t, whole(n, "cuda", 5))
    return bad


def send_receive(rank):
    bad = 0
    for n in SIZES:
        got = torch.empty(n, device="cuda", dtype=torch.int32)
        sent = whole(n, "cuda", rank)
        for request in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, sent, 1 - rank),
                dist.P2POp(dist.irecv, got, 1 - rank)]):
            request.wait()
        del sent
        bad += not torch.equal(got, whole(n, "cuda", 1 - rank))
    return bad


def beside_frees(rank):
    """Sums on NCCL's stream while memory comes and goes on another."""
    bad, chance = 0, random.Random(rank)
    waiting = []
    for turn in range(60):
        n = SIZES[turn % len(SIZES)]
        t = whole(n, "cuda", rank + turn)
        waiting.append((t, n, turn, dist.all_reduce(t, async_op=True)))
        for _ in range(5):
            torch.full((int(2 ** chance.uniform(1, 22)),), -1,
                       device="cuda", dtype=torch.int32)
        if len(waiting) > 4:
            t, n, turn, request = waiting.pop(0)
            request.wait()
            bad += not torch.equal(t, whole(n, "cuda", turn) +
                                   whole(n, "cuda", turn + 1))
    for t, n, turn, request in waiting:
        request.wait()
        bad += not torch.equal(t, whole(n, "cuda", turn) +
                               whole(n, "cuda", turn + 1))
    return bad


def data_parallel(rank):
    torch.manual_seed(1)
    torch.backends.cudnn.deterministic = True
    model = torch.nn.Sequential(torch.nn.Linear(700, 3000), torch.nn.ReLU(),
                                torch.nn.Linear(3000, 10)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model,
                                                      device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    g = torch.Generator("cuda").manual_seed(rank)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(256, 700, device="cuda",
                          generator=g)).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    return sha(model.parameters())


def rank_main(rank, meeting, what, tell):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="file://" + meeting, rank=rank,
                            world_size=2,
                            device_id=torch.device("cuda", rank))
    if what == "ddp":
        tell.put(("parameters", rank, data_parallel(rank)))
    else:
        for name, function in (("all-reduce", sums), ("gather", gathers),
                               ("send and receive", send_receive),
                               ("beside frees", beside_frees)):
            tell.put((name, rank, function(rank)))
    torch.cuda.synchronize()
    dist.destroy_process_group()


def processes():
    tell = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (os.path.join(folder, "meeting"), WHAT, tell), 2)
    seen = {}
    while not tell.empty():
        name, rank, answer = tell.get()
        seen.setdefault(name, {})[rank] = answer
    for name, by_rank in seen.items():
        if WHAT == "ddp":
            print(f"{name}: " + (f"ok {by_rank[0]}" if by_rank[0] == by_rank[1]
                                 else f"WRONG {by_rank}"))
        else:
            print(f"{name}: " + ("ok" if by_rank == {0: 0, 1: 0} else
                                 f"WRONG {by_rank}"))


def one_process():
    import torch.cuda.nccl as nccl
    bad = 0
    for turn in range(TURNS):
        for n in SIZES:
            parts = [whole(n, f"cuda:{d}", d + turn) for d in range(2)]
            nccl.all_reduce(parts)
            for d in range(2):
                torch.cuda.synchronize(d)
                want = whole(n, f"cuda:{d}", turn) + \
                    whole(n, f"cuda:{d}", turn + 1)
                bad += not torch.equal(parts[d], want)
    print("all-reduce: " + (f"WRONG {bad}" if bad else "ok"))


def copies():
    bad = 0
    for i in range(150):
        n = SIZES[i % len(SIZES)] + i
        t = whole(n, f"cuda:{i % 2}", i)
        there = t.to(f"cuda:{1 - i % 2}", non_blocking=i % 3 == 0)
        del t
        back = there.to(f"cuda:{i % 2}")
        bad += not torch.equal(back, whole(n, back.device, i))
        bad += not torch.equal(there, whole(n, there.device, i))
    print("copies: " + (f"WRONG {bad}" if bad else "ok"))
    a = whole(3 * MIB, "cuda:0", 1).view(3, 1024, 1024)
    b = torch.zeros(3, 1024, 1024, device="cuda:1", dtype=torch.int32)
    b[:, ::2, 5:700] = a[:, ::2, 5:700].to("cuda:1")
    b[:, 1::2].copy_(a[:, 1::2])
    print("views: " + ("ok" if torch.equal(b[:, ::2, 5:700].cpu(),
                                           a[:, ::2, 5:700].cpu()) and
                       torch.equal(b[:, 1::2].cpu(), a[:, 1::2].cpu())
                       else "WRONG"))


def model():
    torch.manual_seed(1)
    first = torch.nn.Linear(512, 4000).to("cuda:0")
    second = torch.nn.Linear(4000, 512).to("cuda:1")
    parameters = list(first.parameters()) + list(second.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    g = torch.Generator("cuda:0").manual_seed(3)
    for _ in range(10):
        optimizer.zero_grad()
        x = torch.randn(300, 512, device="cuda:0", generator=g)
        second(first(x).relu().to("cuda:1")).square().mean().backward()
        optimizer.step()
    print("parameters: ok " + sha(parameters))
    copies()


if __name__ == "__main__":
    if torch.cuda.device_count() < 2:
        print("GPUs: skipped, fewer than two")
    elif WHAT in ("processes", "ddp"):
        processes()
    elif WHAT == "one":
        one_process()
    else:
        model()
