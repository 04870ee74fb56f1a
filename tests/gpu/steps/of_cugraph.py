# SPDX-License-Identifier: MIT
"""cuGraph: algorithms on a graph of 200,000 vertices."""
import cupy as cp
import numpy as np
import pylibcugraph as graph

from common import main, near, step

VERTICES, EDGES = 200000, 2000000


def edges():
    """Both ways, each once."""
    rng = np.random.RandomState(0)
    one = (VERTICES * rng.power(3, EDGES)).astype(np.int64)
    two = rng.randint(0, VERTICES, EDGES)
    one, two = one[one != two], two[one != two]
    both = np.unique(np.concatenate([one * VERTICES + two,
                                     two * VERTICES + one]))
    return [cp.asarray(ends.astype(np.int32))
            for ends in (both // VERTICES, both % VERTICES)]


def made(is_transposed=False):
    return graph.SGGraph(
        handle, graph.GraphProperties(is_symmetric=True, is_multigraph=False),
        source, target, weight_array=weight, store_transposed=is_transposed,
        renumber=True, do_expensive_check=False)


handle = graph.ResourceHandle()
source, target = edges()
weight = cp.ones(len(source), dtype=cp.float32)
plain, transposed = made(), made(True)


def whole(values):
    return int(cp.asarray(values).astype(cp.int64).sum())


@step(20)
def build():
    return made() is not None


@step(20)
def pagerank():
    _, ranks = graph.pagerank(handle, transposed, None, None, None, None, .85,
                              1e-6, 100, False)
    return near(cp.asarray(ranks).max())


@step(20)
def breadth_first():
    start = cp.asarray([1], dtype=cp.int32)
    far = graph.bfs(handle, plain, start, False, 20, True, False)[0]
    return whole(cp.asarray(far).clip(0, 100))


@step(20)
def shortest_paths():
    far = graph.sssp(handle, plain, 1, 1e9, True, False)[1]
    return near(cp.asarray(far).clip(0, 100).sum())


@step(20)
def components():
    labels = graph.weakly_connected_components(handle, plain, None, None, None,
                                               None, False)[1]
    return len(cp.unique(cp.asarray(labels)))


@step(5)
def louvain():
    # which communities it finds differs from run to run
    return float(graph.louvain(handle, plain, 10, 1e-4, 1.0, False)[2]) > .05


@step(10)
def triangles():
    return whole(graph.triangle_count(handle, plain, None, False)[1])


@step(5)
def cores():
    return whole(graph.core_number(handle, plain, "incoming", False)[1])


main()
