# SPDX-License-Identifier: MIT
"""PyTorch: its libraries, autotuning, compiler, graphs, profiler, processes."""
import os
import subprocess
import sys
import tempfile
import threading

import torch
import torch.nn.functional as F
from torch import nn

from common import digits, feature, main

GPU = {"device": "cuda"}
DOUBLE = {"device": "cuda", "dtype": torch.float64}
CACHED = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1"
SEGMENTS = "expandable" in os.environ.get("PYTORCH_ALLOC_CONF", "")
CHILD = """
import os, torch
x = torch.arange(100000, device="cuda", dtype=torch.float64)
print(x.sum().item(), flush=True)
os._exit(3)
"""


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256),
                         nn.Linear(256, 10)).cuda()


@feature
def linear_algebra():
    torch.manual_seed(0)
    a = torch.randn(400, 400, **DOUBLE)
    s = a @ a.T + 400 * torch.eye(400, **DOUBLE)
    return digits(torch.linalg.eigvalsh(s).sum(),
                  torch.linalg.solve(s, a).abs().sum(),
                  torch.linalg.svdvals(a).sum(),
                  torch.linalg.cholesky(s).sum(),
                  torch.linalg.qr(a)[1].abs().sum(),
                  torch.linalg.inv(s).sum())


@feature
def fourier():
    torch.manual_seed(0)
    sums = [torch.fft.fft(torch.randn(8, n, **DOUBLE)).abs().sum()
            for n in (4096, 3001, 1 << 16)]
    x = torch.randn(64, 4096, **DOUBLE)
    return digits(*sums, torch.fft.irfft2(torch.fft.rfft2(x)).abs().sum())


@feature
def sparse():
    torch.manual_seed(0)
    s = torch.sparse_coo_tensor(
        torch.randint(0, 3000, (2, 40000), **GPU), torch.ones(40000, **DOUBLE),
        (3000, 3000)).coalesce()
    d = torch.ones(3000, 64, **DOUBLE)
    return digits((s @ d).sum(), (s.to_sparse_csr() @ d).sum(),
                  torch.sparse.mm(s, s).coalesce()._nnz())


@feature
def autotuned_convolutions():
    """cuDNN tries algorithms with workspaces of all sizes."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10)).cuda()
    net = net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cuda")
    is_finite = True
    for i in range(12):
        x = torch.randn(4 + i * 3, 3, 64 + 4 * i, 64, **GPU)
        target = torch.zeros(x.shape[0], dtype=torch.long, **GPU)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(net(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        is_finite = is_finite and bool(torch.isfinite(loss))
    torch.backends.cudnn.benchmark = False
    return f"finite {is_finite}"


@feature
def recurrent():
    torch.manual_seed(0)
    y, _ = nn.LSTM(64, 128, 2, batch_first=True).cuda()(
        torch.randn(16, 50, 64, **GPU, requires_grad=True))
    y.sum().backward()
    return digits(y.abs().sum(), n=3)


@feature
def attention():
    torch.manual_seed(0)
    kind = torch.nn.attention.SDPBackend
    q = torch.randn(4, 8, 512, 64, **GPU, dtype=torch.float16,
                    requires_grad=True)
    said = []
    for backend in (kind.FLASH_ATTENTION, kind.EFFICIENT_ATTENTION, kind.MATH,
                    kind.CUDNN_ATTENTION):
        with torch.nn.attention.sdpa_kernel(backend):
            y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
            y.sum().backward()
            said.append(digits(y.float().abs().mean(), n=2))
    return " ".join(said)


@feature
def profiler():
    """By CUPTI, which stands at the driver, too."""
    kinds = torch.profiler.ProfilerActivity
    a = torch.ones(500, 500, **GPU)
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA],
                                profile_memory=True) as profile:
        for _ in range(10):
            (a @ a).relu()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(os.path.join(folder, "trace.json"))
    keys = {event.key for event in profile.key_averages()}
    kernels = [key for key in keys if "relu" in key.lower() and "::" in key]
    calls = [key for key in ("cudaLaunchKernel", "cudaMalloc", "cudaFree")
             if key in keys]
    return f"kernels {len(kernels) > 0} calls {calls}"


@feature
def out_of_memory():
    if SEGMENTS and "HAS_THE_DEVICE" not in os.environ:
        return "not beside others"
    try:
        torch.empty(1 << 42, dtype=torch.uint8, **GPU)
        said = "nothing"
    except RuntimeError as error:  # with the cache off it is the runtime's
        said = "out of memory" if "out of memory" in str(error) else error
    return f"{said}, then {digits(torch.ones(1000, **GPU).sum())}"


@feature
def streams():
    total = 0.
    main_stream = torch.cuda.current_stream()
    lanes = [torch.cuda.Stream() for _ in range(4)]
    for i in range(80):
        host = torch.full((1 + i * 7919 % 300000,), float(i),
                          dtype=torch.float64).pin_memory()
        with torch.cuda.stream(lanes[i % 4]):
            x = host.to("cuda", non_blocking=True) * 2
        main_stream.wait_stream(lanes[i % 4])
        x.record_stream(main_stream)
        total += x.sum().item()
    return digits(total, n=9)


@feature
def threads():
    sums = [0.] * 8

    def work(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            a = torch.full((300, 300), 1. + k, **DOUBLE)
            for _ in range(50):
                b = (a @ a) / 300
                a = torch.cat([b, b])[:300] * 0 + a
            sums[k] = b.sum().item()

    all_threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    return digits(*sums)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, i):
        return torch.full((1000,), float(i))


@feature
def forked_loaders():
    loader = torch.utils.data.DataLoader(Rows(), batch_size=16, num_workers=3,
                                         pin_memory=True)
    return digits(sum(batch.to("cuda", non_blocking=True).double().sum()
                      .item() for batch in loader), n=9)


@feature
def exchange_with_cupy():
    import cupy
    x = torch.arange(100000, **DOUBLE)
    y = cupy.from_dlpack(x)
    y *= 2
    theirs = cupy.arange(5000, dtype=cupy.float64)
    torch.from_dlpack(theirs).add_(1)
    return digits(x.sum(), theirs.sum(),
                  torch.as_tensor(cupy.ones(777), **GPU).sum(), n=9)


@feature
def graphed_callables():
    if not CACHED:
        return "not with the cache off"
    net, x = mlp(), torch.ones(16, 128, **GPU)
    y = torch.cuda.make_graphed_callables(net, (x,))(x)
    y.sum().backward()
    return digits(y.sum(), n=3)


@feature
def triton_kernel():
    import kernels_triton
    x = torch.arange(98432, dtype=torch.float32, **GPU)
    y = torch.empty_like(x)
    kernels_triton.add[(97,)](x, x, y, x.numel(), BLOCK=1024)
    return digits(y.double().sum(), n=9)


@feature
def compiled():
    net = torch.compile(mlp())
    x = torch.ones(32, 128, **GPU)
    for _ in range(3):
        loss = net(x).pow(2).sum()
        loss.backward()
    return digits(loss, n=3)


@feature
def compiled_with_graphs():
    if not CACHED:
        return "not with the cache off"
    net = torch.compile(mlp(), mode="reduce-overhead")
    x = torch.ones(32, 128, **GPU)
    with torch.no_grad():
        for _ in range(5):
            loss = net(x).pow(2).sum()
    return digits(loss, n=3)


@feature
def compiled_with_autotuning():
    f = torch.compile(lambda a, b: torch.relu(a @ b),
                      mode="max-autotune-no-cudagraphs")
    a = torch.ones(512, 512, dtype=torch.float16, **GPU)
    return digits(f(a, a).float().mean(), n=2)


@feature
def processes():
    children = [subprocess.Popen([sys.executable, "-c", CHILD], text=True,
                                 stdout=subprocess.PIPE) for _ in range(2)]
    return " ".join(f"{child.communicate()[0].strip()} {child.returncode}"
                    for child in children)


@feature
def fork():
    child = os.fork()
    if child == 0:
        os._exit(5)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return f"{status} {digits(torch.ones(10, **GPU).sum())}"


@feature
def generation():
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4,
                                       vocab_size=1000)).cuda().eval().double()
    prompt = torch.arange(32, **GPU).reshape(4, 8)
    return int(model.generate(prompt, max_new_tokens=60, do_sample=False,
                              pad_token_id=0).sum())


@feature
def pool_of_its_own():
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        x = torch.ones(1 << 20, **GPU)
    return digits(x.sum())


@feature
def work_at_exit():
    x = torch.ones(1 << 28, **GPU)
    for _ in range(20):
        x = x * 1.0001
    return "left running"


main()
