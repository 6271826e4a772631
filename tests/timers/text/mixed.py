"""Timers of many programs: callbacks, tables of functions, classes, threads, throughput; only read, never run."""

import asyncio
import functools
import statistics
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import torch
import torch.nn.functional as F

DEV = "cuda" if torch.cuda.is_available() else "cpu"
BIG = DEV == "cuda"
N = 4096
x = torch.randn(N, N, device=DEV)
w = torch.randn(N, N, device=DEV)


def queue_work(h, n=10):
    for _ in range(n):
        h = h @ w
    return h


def sync():
    if BIG:
        torch.cuda.synchronize()


def on_a_stream_that_waits():
    s = torch.cuda.Stream()
    t0 = perf_counter()
    with torch.cuda.stream(s):
        queue_work(x)
    s.synchronize()
    return perf_counter() - t0


def under_autocast():
    with torch.no_grad(), torch.autocast("cuda"):
        t0 = perf_counter()
        queue_work(x)
        t1 = perf_counter()  # TIMER: bench.no_sync
    return t1 - t0


def in_a_table_of_lists():
    timings = defaultdict(list)
    for _i in range(10):
        begin = perf_counter()
        queue_work(x)
        timings["work"].append(perf_counter() - begin)  # TIMER: bench.no_sync
    return statistics.mean(timings["work"])


def of_a_table_of_functions():
    results = {}
    for name, fn in {"mm": torch.mm, "add": torch.add}.items():
        sync()
        start = perf_counter()
        for _ in range(100):
            fn(x, w)
        sync()
        results[name] = (perf_counter() - start) / 100
    return results


def of_a_table_of_functions_without_waiting():
    results = {}
    for name, fn in {"mm": torch.mm, "add": torch.add}.items():
        start = perf_counter()
        for _ in range(100):
            fn(x, w)
        results[name] = (perf_counter() - start) / 100  # TIMER: bench.no_sync
    return results


class Trainer:
    def __init__(self, model):
        self.model = model
        self.t0 = None
        self.history = []

    def on_batch_start(self):
        self.t0 = time.time()

    def on_batch_end(self):
        self.history.append(time.time() - self.t0)  # TIMER: bench.no_sync

    def fit(self, loader):
        for batch in loader:
            self.on_batch_start()
            loss = self.model(batch)
            loss.backward()
            self.on_batch_end()


class HonestTrainer:
    def __init__(self, model):
        self.model = model
        self.history = []

    def on_batch_start(self):
        self.t9 = time.time()

    def on_batch_end(self):
        sync()
        self.history.append(time.time() - self.t9)

    def fit(self, loader):
        for batch in loader:
            self.on_batch_start()
            loss = self.model(batch)
            loss.backward()
            self.on_batch_end()


def data_and_step(loader, model):
    data_time = step_time = 0.0
    it = iter(loader)
    for _ in range(10):
        t = time.time()
        batch = next(it)
        data_time += time.time() - t
        t = time.time()
        loss = model(batch.to(DEV)).sum()
        loss.backward()
        sync()
        step_time += time.time() - t
    return data_time, step_time


def events_reused(model):
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(100):
        start.record()
        model(x)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def events_asked_too_early(model):
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(100):
        start.record()
        model(x)
        end.record()
        times.append(start.elapsed_time(end))  # TIMER: bench.event_not_ready
    return statistics.median(times)


def bench(fn, iters=10, warmup=3):
    for _ in range(warmup):
        fn()
    torch.cuda.synchronize()
    t0 = time.perf_counter()
    for _ in range(iters):
        fn()
    torch.cuda.synchronize()
    return (time.perf_counter() - t0) / iters


def bad_bench(fn, iters=10, warmup=3):
    for _ in range(warmup):
        fn()
    torch.cuda.synchronize()
    t0 = time.perf_counter()
    for _ in range(iters):
        fn()
    return (time.perf_counter() - t0) / iters  # TIMER: bench.no_sync


print(bench(lambda: queue_work(x)), bad_bench(functools.partial(queue_work, x)))


def graph():
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        queue_work(x)
    torch.cuda.synchronize()
    t0 = time.perf_counter()
    for _ in range(10):
        g.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - t0) / 10


async def serve(model):
    t0 = time.perf_counter()
    await asyncio.to_thread(model, x)
    return time.perf_counter() - t0


def pool(model):
    with ThreadPoolExecutor() as ex:
        t0 = time.perf_counter()
        ex.submit(model, x).result()
        return time.perf_counter() - t0


def progress(loader, model, opt):
    t_start = time.time()
    for i, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        opt.step()
        if i % 10 == 0:
            print(f"step {i} loss {loss.item():.3f} {(time.time() - t_start):.1f}s")
    print(f"done in {time.time() - t_start}")


def ttft(model, ids):
    t0 = time.perf_counter()
    logits = model(ids)
    tok = logits[:, -1].argmax(-1)
    first = tok.item()
    ttft = time.perf_counter() - t0
    return first, ttft


def tokens_per_second(model, ids, n):
    t0 = time.perf_counter()
    for _ in range(n):
        logits = model(ids)
        nxt = logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, nxt], 1)
    dt = time.perf_counter() - t0  # TIMER: bench.no_sync
    return n / dt


def bandwidth(n):
    src = torch.empty(n, pin_memory=True)
    dst = torch.empty(n, device=DEV)
    t0 = time.perf_counter()
    dst.copy_(src, non_blocking=True)
    dt = time.perf_counter() - t0  # TIMER: bench.no_sync
    return n / dt


def bandwidth_ok(n):
    src = torch.empty(n, pin_memory=True)
    dst = torch.empty(n, device=DEV)
    torch.cuda.synchronize()
    t0 = time.perf_counter()
    dst.copy_(src, non_blocking=True)
    torch.cuda.synchronize()
    dt = time.perf_counter() - t0
    return n / dt


def cpu_vs_gpu(n):
    a = torch.rand(n, n)
    b = torch.rand(n, n)
    start = time.time()
    torch.matmul(a, b)
    cpu_time = time.time() - start
    a, b = a.cuda(), b.cuda()
    start = time.time()
    torch.matmul(a, b)
    gpu_time = time.time() - start  # TIMER: bench.no_sync
    return cpu_time, gpu_time


def cpu_vs_gpu_ok(n):
    a = torch.rand(n, n)
    start = time.time()
    F.softmax(a @ a, -1)
    cpu_time = time.time() - start
    a = a.to("cuda")
    torch.cuda.synchronize()
    start = time.time()
    F.softmax(a @ a, -1)
    torch.cuda.synchronize()
    gpu_time = time.time() - start
    return cpu_time, gpu_time


def nested(fn):
    @functools.wraps(fn)
    def inner(*a, **k):
        sync()
        t = perf_counter()
        out = fn(*a, **k)
        sync()
        inner.calls.append(perf_counter() - t)
        return out

    inner.calls = []
    return inner


def polled(ev):
    t0 = perf_counter()
    queue_work(x)
    ev.record()
    while not ev.query():
        time.sleep(0.001)
    return perf_counter() - t0


def hooks(model):
    times = {}

    def pre(m, inp):
        times[m] = perf_counter()

    def post(m, inp, out):
        times[m] = perf_counter() - times[m]

    model.register_forward_pre_hook(pre)
    model.register_forward_hook(post)
    model(x)


def loop_with_break(model):
    n = 0
    t0 = perf_counter()
    while perf_counter() - t0 < 5.0:
        model(x)
        n += 1
    torch.cuda.synchronize()
    return n / (perf_counter() - t0)


def isfinite(model):
    t0 = perf_counter()
    y = model(x)
    assert torch.isfinite(y).all()
    return perf_counter() - t0


def numpy_out(model):
    t0 = perf_counter()
    y = model(x)
    y.detach().cpu().numpy()
    return perf_counter() - t0


def del_cache(model):
    t0 = perf_counter()
    y = model(x)
    del y
    torch.cuda.empty_cache()
    return perf_counter() - t0


def argmax_index(model, table):
    t0 = perf_counter()
    y = model(x)
    name = table[int(y.argmax())]
    return name, perf_counter() - t0
