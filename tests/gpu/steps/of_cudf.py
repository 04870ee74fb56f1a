# SPDX-License-Identifier: MIT
"""cuDF: what is done with data frames."""
import os
import tempfile

import cudf
import numpy as np

from common import main, near, step

N = 2000000
rng = np.random.RandomState(0)
frame = cudf.DataFrame({
    "k": rng.randint(0, 5000, N), "a": rng.rand(N),
    "b": rng.randint(0, 100, N).astype("int32"),
    "s": cudf.Series(rng.randint(0, 3000, N)).astype(str)})
other = cudf.DataFrame({"k": np.arange(5000), "v": rng.rand(5000)})


@step(20)
def groupby():
    return near(frame.groupby("k").agg({"a": "mean", "b": "sum"}).a.sum())


@step(20)
def merge():
    both = frame.merge(other, on="k")
    return near((both.a * both.v).sum())


@step(20)
def sort():
    return int(frame.sort_values(["b", "a"]).k.head(1000).sum())


@step(20)
def strings():
    return int(frame.s.str.replace("1", "xx").str.len().sum())


@step(20)
def group_strings():
    return int(frame.groupby("s").b.sum().max())


@step(20)
def rolling():
    return near(frame.a.rolling(50).mean().sum())


@step(50)
def select():
    return int(frame[(frame.a > .5) & (frame.b < 30)].k.sum())


@step(20)
def quantile():
    return near(frame.a.quantile(.3))


@step(50)
def expression():
    return near(((frame.a * 2 + frame.b) / (frame.k + 1)).sum())


@step(5)
def parquet():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "frame.parquet")
        frame.to_parquet(path)
        return int(cudf.read_parquet(path).b.sum())


main()
