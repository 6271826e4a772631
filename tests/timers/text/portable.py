"""Benchmarks in one program that also runs without a GPU; only read, never run."""

import time

import torch

DEV = "cuda" if torch.cuda.is_available() else "cpu"
BIG = DEV == "cuda"
N, REP, STEPS = (4096, 20, 20) if BIG else (64, 2, 20)
DT = torch.bfloat16 if BIG else torch.float32
w = torch.randn(N, N, device=DEV, dtype=DT) / N**0.5
x = torch.randn(N, N, device=DEV, dtype=DT)


def queue_work(h, n=REP):
    for _ in range(n):
        h = h @ w
    return h


# compile in the timed region
fast = torch.compile(queue_work)
times = []
for _r in range(5):
    t0 = time.perf_counter()
    h = fast(x)
    if BIG:
        torch.cuda.synchronize()
    times.append(time.perf_counter() - t0)
print(sum(times) / len(times))

# a timer that waits at the wrong place
for _r in range(5):
    if BIG:
        torch.cuda.synchronize()
    t0 = time.perf_counter()
    h = queue_work(x, 100)
    dt = time.perf_counter() - t0  # TIMER: bench.no_sync
    if BIG:
        torch.cuda.synchronize()
    print(dt)

# side stream
if BIG:
    side = torch.cuda.Stream()
    e0, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _r in range(5):
        e0.record()
        with torch.cuda.stream(side):
            h = queue_work(x, 100)
        e1.record()
        torch.cuda.synchronize()
        print(e0.elapsed_time(e1))

# loop throughput, last wait only
t0 = time.perf_counter()
for _r in range(STEPS):
    h = queue_work(x, 3)
print("last", h[0, 0].item())
t1 = time.perf_counter()
print("it/s", STEPS / (t1 - t0))

# throughput without
if BIG:
    torch.cuda.synchronize()
t0 = time.perf_counter()
for _r in range(STEPS):
    h = queue_work(x, 3)
t1 = time.perf_counter()  # TIMER: bench.no_sync
print("it/s", STEPS / (t1 - t0))
if BIG:
    torch.cuda.synchronize()

# nested timers: outer honest, inner lies
outer = time.perf_counter()
for _r in range(3):
    inner = time.perf_counter()
    h = queue_work(x, 3)
    print("inner", time.perf_counter() - inner)  # TIMER: bench.no_sync
if BIG:
    torch.cuda.synchronize()
print("outer", time.perf_counter() - outer)

# per-step sync of a tiny op: honest number, costly
a = torch.randn(256, 256, device=DEV)
lat = []
for _r in range(50):
    t0 = time.perf_counter()
    a = a * 1.01
    if BIG:
        torch.cuda.synchronize()
    lat.append(time.perf_counter() - t0)
print(sorted(lat)[25])

# pinned upload
host = torch.randn(N, N)
if BIG:
    pinned = host.pin_memory()
    t0 = time.perf_counter()
    dev = pinned.to(DEV, non_blocking=True)
    t1 = time.perf_counter()  # TIMER: bench.no_sync
    torch.cuda.synchronize()
    print(pinned.nbytes / (t1 - t0))

# model class
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).to(DEV)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(32, 64, device=DEV)
fwd = bwd = step = 0.0
for _i in range(STEPS):
    t0 = time.time()
    loss = model(data).square().mean()
    t1 = time.time()  # TIMER: bench.no_sync
    loss.backward()
    t2 = time.time()  # TIMER: bench.no_sync
    opt.step()
    opt.zero_grad()
    last = loss.item()
    t3 = time.time()  # TIMER: bench.misattributed
    fwd += t1 - t0
    bwd += t2 - t1
    step += t3 - t2
print(fwd, bwd, step)
