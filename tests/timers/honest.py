"""Timers that are right, each in its own way. A comment `TIMER: honest` marks their ends."""

import datetime
import time
import timeit

import torch

cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
size = 4096 if cuda else 64
w = torch.randn(size, size, device=device) / size**0.5
x = torch.randn(size, size, device=device)
model = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, size)).to(device)


def wait():
    if cuda:
        torch.cuda.synchronize()


def work(h, n=20):
    for _ in range(n):
        h = h @ w
    return h


def now():
    wait()
    return time.perf_counter()


work(x)
model(x).sum().backward()
wait()

for _ in range(4):
    wait()
    t0 = time.perf_counter()
    y = work(x)
    wait()
    t1 = time.perf_counter()  # TIMER: honest
    took = t1 - t0

for _ in range(4):
    wait()
    start = time.time()
    value = work(x).sum().item()
    took = time.time() - start  # TIMER: honest

for _ in range(4):
    wait()
    start = time.perf_counter()
    host = work(x)[:8].cpu()
    took = time.perf_counter() - start  # TIMER: honest

for _ in range(4):
    wait()
    start = timeit.default_timer()
    values = work(x)[0, :4].tolist()
    took = timeit.default_timer() - start  # TIMER: honest

for _ in range(4):
    first = now()
    y = work(x, 3)
    second = now()  # TIMER: honest
    took = second - first

for _ in range(4):
    wait()
    start = time.perf_counter()
    if work(x).max() > 1e9:
        raise SystemExit
    took = time.perf_counter() - start  # TIMER: honest

for _ in range(4):
    wait()
    start = time.process_time_ns()
    y = work(x)
    wait()
    took = time.process_time_ns() - start  # TIMER: honest

for _ in range(4):
    start = time.perf_counter()
    text = " ".join(str(i) for i in range(20_000))
    took = time.perf_counter() - start  # TIMER: honest

for _ in range(4):
    print("step at", time.time(), flush=True)
    y = work(x)
    print("done at", datetime.datetime.now(), flush=True)
wait()

if cuda:
    for _ in range(4):
        e0, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        wait()
        e0.record()
        y = work(x)
        e1.record()
        e1.synchronize()
        ms = e0.elapsed_time(e1)  # TIMER: honest

    side = torch.cuda.Stream()
    for _ in range(4):
        e0, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        wait()
        e0.record(side)
        with torch.cuda.stream(side):
            y = work(x)
        e1.record(side)
        wait()
        ms = e0.elapsed_time(e1)  # TIMER: honest

    done = torch.cuda.Event()
    for _ in range(4):
        wait()
        start = time.perf_counter()
        y = work(x)
        done.record()
        done.synchronize()
        took = time.perf_counter() - start  # TIMER: honest

    from torch.utils.benchmark import Timer

    for _ in range(2):
        start = time.perf_counter()
        Timer("work(x)", globals={"work": work, "x": x}).timeit(5)
        took = time.perf_counter() - start  # TIMER: honest
