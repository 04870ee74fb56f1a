# SPDX-License-Identifier: MIT
"""JAX: compiled functions, gradients, donated buffers, its libraries, its
profiler."""
import os
import tempfile

import jax
import jax.numpy as jnp

from common import digits, feature, main

jax.config.update("jax_enable_x64", True)


@feature
def training():
    key = jax.random.PRNGKey(0)
    weights = [jax.random.normal(key, (256, 256)) * .05 for _ in range(4)]
    x = jnp.ones((64, 256))

    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return (x ** 2).mean()

    step = jax.jit(jax.value_and_grad(loss))
    for _ in range(20):
        value, gradients = step(weights, x)
        weights = [w - .1 * g for w, g in zip(weights, gradients)]
    return digits(value, n=5)


@feature
def changing_shapes():
    f = jax.jit(lambda x: jnp.sin(x).sum())
    return digits(sum(float(f(jnp.arange(1. + i * 99991)))
                      for i in range(12)), n=5)


@feature
def donated_buffers():
    f = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    x = jnp.ones(1 << 22)
    for _ in range(10):
        x = f(x)
    return digits(x.sum(), n=9)


@feature
def linear_algebra():
    a = jax.random.normal(jax.random.PRNGKey(1), (200, 200))
    s = a @ a.T + 200 * jnp.eye(200)
    return digits(jnp.linalg.eigvalsh(s).sum(),
                  jnp.linalg.svd(a, compute_uv=False).sum(),
                  jnp.linalg.cholesky(s).sum(), n=5)


@feature
def fourier():
    return digits(jnp.abs(jnp.fft.fft(jnp.arange(65536.)))[1:].sum(), n=5)


@feature
def convolution():
    x = jnp.ones((8, 32, 32, 16), dtype=jnp.float32)
    w = jnp.full((3, 3, 16, 32), .01, dtype=jnp.float32)

    @jax.jit
    def f(x, w):
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC")).sum()

    # which algorithm is found to be fastest changes the fourth digit
    return digits(f(x, w), jax.grad(f)(x, w).sum(), n=3)


@feature
def loop():
    return digits(jax.lax.scan(lambda c, x: (jnp.cos(c + x), c), 0.,
                               jnp.arange(1000.))[0])


@feature
def profiler():
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            a = jnp.ones((512, 512))
            (a @ a).block_until_ready()
        return f"files {sum(len(files) for _, _, files in os.walk(folder))}"


main()
