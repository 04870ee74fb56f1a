# SPDX-License-Identifier: MIT
"""CuPy: its libraries, kernels, streams, graphs, textures. CUPY_ALLOCATOR says
how it allocates: none, pool, async or managed."""
import os

import cupy as cp
import cupyx
import cupyx.scipy.ndimage
import cupyx.scipy.signal
import cupyx.scipy.sparse
from cupy.cuda import runtime, texture

from common import digits, feature, main

CHOICE = os.environ.get("CUPY_ALLOCATOR", "none")
if CHOICE == "none":
    cp.cuda.set_allocator(None)
elif CHOICE == "async":
    cp.cuda.set_allocator(cp.cuda.MemoryAsyncPool().malloc)
elif CHOICE == "managed":
    cp.cuda.set_allocator(cp.cuda.MemoryPool(cp.cuda.malloc_managed).malloc)

LINEAR = r"""extern "C" __global__ void fetch(float *y, cudaTextureObject_t t)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	y[i] = tex1Dfetch<float>(t, i) * 2;
}"""
PITCHED = r"""extern "C" __global__ void fetch(float *y, cudaTextureObject_t t)
{
	y[blockIdx.x * 64 + threadIdx.x] =
		tex2D<float>(t, threadIdx.x + .5f, blockIdx.x + .5f);
}"""
TWICE = r"""extern "C" __global__ void twice(double *x, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		x[i] = x[i] * 2 + 1;
}"""


@feature
def linear_algebra():
    a = cp.random.RandomState(1).rand(300, 300)
    s = a @ a.T + 300 * cp.eye(300)
    return digits(cp.linalg.eigvalsh(s).sum(), cp.linalg.solve(s, a).sum(),
                  cp.linalg.svd(a, compute_uv=False).sum(),
                  cp.linalg.cholesky(s).sum())


@feature
def fourier():
    a = cp.arange(100000, dtype=cp.float64)
    return digits(cp.abs(cp.fft.fft(a)).sum(),
                  cp.abs(cp.fft.rfftn(a.reshape(10, 100, 100))).sum())


@feature
def sparse():
    a = cupyx.scipy.sparse.random(2000, 2000, density=.01, random_state=3,
                                  format="csr", dtype=cp.float64)
    ones = cupyx.scipy.sparse.csr_matrix(
        (cp.ones(a.nnz), a.indices, a.indptr), shape=a.shape)
    return digits(ones.nnz, (ones @ cp.ones(2000)).sum())


@feature
def raw_kernel():
    x = cp.arange(100000, dtype=cp.float64)
    cp.RawKernel(TWICE, "twice")((391,), (256,), (x, x.size))
    return digits(x.sum(), n=9)


@feature
def sorts():
    a = cp.sin(cp.arange(500000, dtype=cp.float64))
    return digits(cp.sort(a)[1000], cp.cumsum(a)[-1],
                  cp.unique((a * 100).astype(cp.int32)).size)


@feature
def streams():
    total = 0.
    lanes = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]
    for i in range(60):
        with lanes[i % 4]:
            x = cp.full(1 + i * 7919 % 200000, i, dtype=cp.float64)
            total += float((x * 2).sum())
    return digits(total, n=9)


@feature
def graph():
    x = cp.zeros(1000)
    cp.cuda.Device().synchronize()
    with cp.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        x += 1
        captured = stream.end_capture()
        for _ in range(5):
            captured.launch()
        stream.synchronize()
    return digits(x.sum())


def fetched(descriptor, code, blocks, threads):
    how = texture.TextureDescriptor((runtime.cudaAddressModeClamp,),
                                    runtime.cudaFilterModePoint,
                                    runtime.cudaReadModeElementType)
    result = cp.zeros(4096, dtype=cp.float32)
    cp.RawKernel(code, "fetch")((blocks,), (threads,), (
        result, texture.TextureObject(descriptor, how)))
    return result.sum()


@feature
def textures():
    floats = texture.ChannelFormatDescriptor(
        32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)
    x = cp.arange(4096, dtype=cp.float32)
    linear = texture.ResourceDescriptor(
        runtime.cudaResourceTypeLinear, arr=x, chDesc=floats,
        sizeInBytes=x.nbytes)
    pitched = texture.ResourceDescriptor(
        runtime.cudaResourceTypePitch2D, arr=x, chDesc=floats, width=64,
        height=64, pitchInBytes=256)
    return digits(fetched(linear, LINEAR, 16, 256),
                  fetched(pitched, PITCHED, 64, 64), n=9)


@feature
def attributes():
    a = runtime.pointerGetAttributes(cp.ones(1000).data.ptr)
    return f"type {a.type} device {a.device}"


@feature
def pinned_memory():
    host = cupyx.zeros_pinned(100000)
    host[:] = 3
    x = cp.empty(100000)
    x.set(host)
    return digits(x.sum())


@feature
def filters():
    a = cp.sin(cp.arange(250000, dtype=cp.float64)).reshape(500, 500)
    return digits(cp.abs(cupyx.scipy.ndimage.gaussian_filter(a, 3)).sum(),
                  cp.abs(cupyx.scipy.signal.fftconvolve(a, a[:20, :20])).sum())


@feature
def out_of_memory():
    try:
        cp.empty(1 << 42, dtype=cp.uint8)
        said = "nothing"
    except cp.cuda.memory.OutOfMemoryError as error:
        said = type(error).__name__
    return f"{said}, then {digits(cp.ones(10).sum())}"


@feature
def changing_sizes():
    total = 0.
    for i in range(200):
        a = cp.arange(1 + i * 3571 % 90000, dtype=cp.float64)
        total += float(a[::2].sum() + a.max() + cp.dot(a, a) / 1e6)
    return digits(total, n=9)


main()
