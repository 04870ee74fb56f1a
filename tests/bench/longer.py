#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""longer.py N TRACE.gz OUT.gz: the same trace, its steady part N times.

What a program does for hours, from a record of seconds: the longest stretch
between two moments behind its first third at which blocks of the same sizes are
live. What goes on to be live has its place in each turn, or a block of its size
has. Nothing is freed or allocated that the program did not."""
import collections
import gzip
import sys


def read(path):
    """Lines `a ID SIZE T_US THREAD` and `f ID T_US THREAD` (replay.c)."""
    with gzip.open(path, "rt", encoding="ascii") as file:
        lines = [line.split() for line in file]
    return [line for line in lines if line and line[0] in "af"]


def steady(ops):
    """The first and the last index of that stretch."""
    sizes, first, best, live = {}, {}, (0, 0), 0
    for i, op in enumerate(ops):
        if i >= len(ops) // 3:
            begin = first.setdefault(live, i)
            if i - begin > best[1] - best[0]:
                best = begin, i
        if op[0] == "a":
            sizes[op[1]] = hash((op[2], "size"))
            live += sizes[op[1]]
        else:
            live -= sizes.pop(op[1], 0)
    return best


class Longer:
    """The trace that is written, with names of its own."""

    def __init__(self, out):
        self.out, self.last, self.sizes = out, 0, {}

    def play(self, ops, names, later):
        """`names`: of what is live, by the names in the trace."""
        for op in ops:
            when = int(op[-2]) + later
            if op[0] == "a":
                self.last += 1
                names[op[1]] = self.last
                self.sizes[self.last] = op[2]
                self.out.write(f"a {self.last} {op[2]} {when} {op[-1]}\n")
            elif op[1] in names:
                name = names.pop(op[1])
                del self.sizes[name]
                self.out.write(f"f {name} {when} {op[-1]}\n")

    def again(self, names, sizes):
        """Whatever was live when the turn began stands for itself, or another
        of its size does."""
        kept = {old: names[old] for old in sizes
                if names.get(old) in self.sizes}
        taken, by_size = set(kept.values()), collections.defaultdict(list)
        for name, size in self.sizes.items():
            if name not in taken:
                by_size[size].append(name)
        for old, size in sizes.items():
            if old not in kept:
                kept[old] = by_size[size].pop(0)
        return kept


def main():
    if len(sys.argv) != 4 or not sys.argv[1].isdigit():
        sys.exit(__doc__)
    ops = read(sys.argv[2])
    begin, end = steady(ops)
    if begin == end:
        sys.exit(f"longer.py: {sys.argv[2]}: blocks of the same sizes are "
                 "never live again")
    lasts = int(ops[end][-2]) - int(ops[begin][-2])
    with gzip.open(sys.argv[3], "wt", 1, encoding="ascii") as out:
        trace, names = Longer(out), {}
        trace.play(ops[:begin], names, 0)
        sizes = {old: trace.sizes[name] for old, name in names.items()}
        for turn in range(int(sys.argv[1])):
            if turn:
                names = trace.again(names, sizes)
            trace.play(ops[begin:end], names, turn * lasts)
        trace.play(ops[end:], names, (int(sys.argv[1]) - 1) * lasts)
    print(f"{end - begin} of {len(ops)} lines, from {begin} on")


main()
