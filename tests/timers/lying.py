"""Timers that lie. A comment `TIMER:` names the verdict on the line that should get it."""

import time
from time import perf_counter

import torch

cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
size = 4096 if cuda else 64
w = torch.randn(size, size, device=device) / size**0.5
x = torch.randn(size, size, device=device)
tiny = torch.randn(64, device=device)
model = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, size)).to(device)


def wait():
    if cuda:
        torch.cuda.synchronize()


def work(h, n=20):
    for _ in range(n):
        h = h @ w
    return h


def event():
    return torch.cuda.Event(enable_timing=True)


work(x)
model(x).sum().backward()
wait()

for _ in range(4):
    t0 = time.perf_counter()
    y = work(x)
    t1 = time.perf_counter()  # TIMER: bench.no_sync
    took = t1 - t0
    wait()

for _ in range(4):
    start = time.time()
    out = model(x)
    loss = out.pow(2).mean()
    loss.backward()
    elapsed = time.time() - start  # TIMER: bench.no_sync
    wait()

for _ in range(4):
    begin = perf_counter()
    y = work(x, 40)
    took = perf_counter() - begin  # TIMER: bench.no_sync
    wait()

for _ in range(4):
    a = time.monotonic_ns()
    if cuda:
        torch.cuda.synchronize()  # waits, but before the work
    y = work(x)
    b = time.monotonic_ns()  # TIMER: bench.no_sync
    took = b - a
    wait()


class Meter:
    def start(self):
        self.begun = time.perf_counter()

    def stop(self):
        self.total = time.perf_counter() - self.begun  # TIMER: bench.no_sync


meter = Meter()
for _ in range(4):
    meter.start()
    y = work(x)
    meter.stop()
    wait()

for _ in range(4):
    y = work(x, 60)
    t0 = time.perf_counter()  # TIMER: bench.dirty_start
    z = work(x, 3)
    wait()
    t1 = time.perf_counter()
    took = t1 - t0

for _ in range(4):
    model(x)
    y = work(x, 40)
    t0 = time.time()  # TIMER: bench.dirty_start
    z = model(x[:64]).sum().item()
    took = time.time() - t0

for _ in range(4):
    t0 = time.perf_counter()
    features = work(x, 50)
    t1 = time.perf_counter()  # TIMER: bench.no_sync
    host = features[:, :8].cpu()
    t2 = time.perf_counter()  # TIMER: bench.misattributed
    sections = (t1 - t0, t2 - t1)

fresh = torch.randn(257, 129, 65, device=device)
times = []
for _ in range(6):
    t0 = time.perf_counter()
    y = torch.linalg.svdvals(fresh[:4]) if not cuda else torch.fft.fft2(fresh)
    wait()
    times.append(time.perf_counter() - t0)  # TIMER: bench.no_warmup

if cuda:
    for _ in range(3):
        e0, e1 = event(), event()
        e0.record()
        y = work(x, 60)
        e1.record()
        try:
            ms = e0.elapsed_time(e1)  # TIMER: bench.event_not_ready
        except RuntimeError:
            ms = None
        wait()

    side = torch.cuda.Stream()
    for _ in range(4):
        e0, e1 = event(), event()
        wait()
        e0.record()
        with torch.cuda.stream(side):
            y = work(x)
        e1.record()
        wait()
        ms = e0.elapsed_time(e1)  # TIMER: bench.other_stream

    for _ in range(40):
        e0, e1 = event(), event()
        wait()
        e0.record()
        z = tiny + 1
        e1.record()
        wait()
        ms = e0.elapsed_time(e1)  # TIMER: bench.launch_overhead
