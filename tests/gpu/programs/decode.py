# SPDX-License-Identifier: MIT
"""Decoding by a transformer: keys and values of earlier words grow by
concatenation; batch, prompt and length differ every step (PyTorch)."""
import random

from common import measure, torch_digest, torch_setup

torch = torch_setup()
import torch.nn.functional as F

D, HEADS, LAYERS = 1024, 16, 8
SHAPES = {"q": (D, D), "k": (D, D), "v": (D, D), "o": (D, D),
          "u": (D, 4 * D), "d": (4 * D, D)}
gen = torch.Generator("cuda").manual_seed(5)
rnd = random.Random(3)
last = None


def random_tensor(*shape):
    return torch.randn(*shape, device="cuda", generator=gen,
                       dtype=torch.bfloat16)


layers = [{name: random_tensor(a, b) * a ** -.5
           for name, (a, b) in SHAPES.items()} for _ in range(LAYERS)]


def attention(x, w, cache):
    b, t, _ = x.shape
    q, k, v = ((x @ w[n]).view(b, t, HEADS, D // HEADS).transpose(1, 2)
               for n in "qkv")
    if cache is not None:
        k = torch.cat([cache[0], k], 2)
        v = torch.cat([cache[1], v], 2)
    a = q @ k.transpose(-1, -2) * (D // HEADS) ** -.5
    if cache is None:
        later = torch.ones(t, t, dtype=torch.bool, device="cuda").triu(1)
        a = a.masked_fill(later, float("-inf"))
    y = (a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D)
    return y @ w["o"], (k, v)


@torch.no_grad()
def step(i):
    global last
    batch, words = rnd.randint(1, 48), rnd.randint(64, 500)
    x = random_tensor(batch, words, D)
    caches = [None] * LAYERS
    for _ in range(rnd.randint(8, 48)):
        for n, w in enumerate(layers):
            y, caches[n] = attention(x, w, caches[n])
            x = x + y
            x = F.layer_norm(x + F.gelu(x @ w["u"]) @ w["d"], (D,))
        x = x[:, -1:]
    last = x


measure("decode", step, 12, 3, torch.cuda.synchronize,
        torch_digest(torch, lambda: [last]))
