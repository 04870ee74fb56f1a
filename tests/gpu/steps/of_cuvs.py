# SPDX-License-Identifier: MIT
"""cuVS: nearest neighbours of vectors, by each of its indexes."""
import cupy as cp
from cuvs.cluster import kmeans
from cuvs.neighbors import brute_force, cagra, ivf_flat, ivf_pq

from common import main, near, step

cp.random.seed(1)
data = cp.random.random((200000, 96), dtype=cp.float32)
many = cp.random.random((1000, 96), dtype=cp.float32)
few = many[:10].copy()
flat_params = ivf_flat.IndexParams(n_lists=512)
flat_search = ivf_flat.SearchParams(n_probes=64)
pq_params = ivf_pq.IndexParams(n_lists=512)
pq_search = ivf_pq.SearchParams(n_probes=64)
exact = brute_force.build(data, metric="sqeuclidean")
flat = ivf_flat.build(flat_params, data)
coded = ivf_pq.build(pq_params, data)
walked = cagra.build(cagra.IndexParams(), data)


def ids_of(answer):
    return cp.asnumpy(cp.asarray(answer[1]))


right = ids_of(brute_force.search(exact, many, 10))


def found(ids):
    """Enough of the right ones were found; how many differs by chance."""
    hits = sum(len(set(a) & set(b)) for a, b in zip(ids, right))
    return hits > .2 * len(ids) * 10


@step(100, found)
def exact_10():
    return ids_of(brute_force.search(exact, few, 10))


@step(30, found)
def exact_1000():
    return ids_of(brute_force.search(exact, many, 10))


@step(100, found)
def flat_10():
    return ids_of(ivf_flat.search(flat_search, flat, few, 10))


@step(30, found)
def flat_1000():
    return ids_of(ivf_flat.search(flat_search, flat, many, 10))


@step(5)
def flat_build():
    return ivf_flat.build(flat_params, data) is not None


@step(100, found)
def pq_10():
    return ids_of(ivf_pq.search(pq_search, coded, few, 10))


@step(30, found)
def pq_1000():
    return ids_of(ivf_pq.search(pq_search, coded, many, 10))


@step(2)
def pq_build():
    return ivf_pq.build(pq_params, data) is not None


@step(100, found)
def cagra_10():
    return ids_of(cagra.search(cagra.SearchParams(itopk_size=64), walked, few,
                               10))


@step(30, found)
def cagra_1000():
    return ids_of(cagra.search(cagra.SearchParams(itopk_size=64), walked, many,
                               10))


@step(2)
def cagra_build():
    return cagra.build(cagra.IndexParams(), data) is not None


@step(5)
def means():
    params = kmeans.KMeansParams(n_clusters=64, max_iter=20)
    return near(kmeans.fit(params, data)[1], 2)


main()
