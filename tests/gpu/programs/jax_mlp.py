# SPDX-License-Identifier: MIT
"""JAX training steps over a handful of batch shapes."""
import os
import random

os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")

import jax
import jax.numpy as jnp
import numpy as np

from common import measure


def init(key, sizes):
    return [(jax.random.normal(k, (a, b)) * a ** -.5, jnp.zeros(b))
            for k, a, b in zip(jax.random.split(key, len(sizes)),
                               sizes[:-1], sizes[1:])]


def loss(params, x):
    h = x
    for w, b in params:
        h = jax.nn.gelu(h @ w + b)
    return jnp.mean((h - x) ** 2)


step_fn = jax.jit(lambda p, x: jax.tree.map(
    lambda a, g: a - 1e-2 * g, p, jax.grad(loss)(p, x)))
params = init(jax.random.PRNGKey(0), [2048, 8192, 4096, 8192, 2048])
rnd = random.Random(7)
host = np.random.default_rng(8)
data = {n: host.standard_normal((n, 2048), dtype=np.float32)
        for n in (256, 1024, 3000, 8192)}


def step(i):
    global params
    params = step_fn(params, jnp.asarray(data[rnd.choice(list(data))]))


measure("jax_mlp", step, 120, 20, lambda: jax.block_until_ready(params),
        lambda: b"".join(np.asarray(a).tobytes() for l in params for a in l))
