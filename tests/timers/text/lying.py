"""Small timers of GPU work that lie, in the many ways that they are written; only read, never run."""

import contextlib
import time
import timeit
from datetime import datetime

import torch

device = "cuda"
model = torch.nn.Linear(8, 8).to(device)
x = torch.randn(8, 8, device=device)
clock = time.perf_counter


def by_tuple():
    t0, n = time.time(), 10
    for _ in range(n):
        y = model(x)
    return y, time.time() - t0  # TIMER: bench.no_sync


def by_walrus():
    if (t0 := time.time()) and x is not None:
        y = model(x)
    return y, time.time() - t0  # TIMER: bench.no_sync


def in_milliseconds():
    t0 = time.time() * 1000
    y = model(x)
    t1 = round(time.time() * 1000)  # TIMER: bench.no_sync
    return y, t1 - t0


def by_sign():
    took = -time.perf_counter()
    y = model(x)
    took += time.perf_counter()  # TIMER: bench.no_sync
    return y, took


def by_sum_of_signs(steps):
    total = 0.0
    for _ in range(steps):
        total -= time.perf_counter()
        model(x)
        total += time.perf_counter()  # TIMER: bench.no_sync
    return total


def by_alias_of_the_clock():
    t0 = clock()
    y = model(x)
    return y, clock() - t0  # TIMER: bench.no_sync


def by_dates():
    begun = datetime.now()
    y = model(x)
    took = (datetime.now() - begun).total_seconds()  # TIMER: bench.no_sync
    return y, took


def in_a_dictionary():
    stats = {}
    stats["start"] = time.time()
    y = model(x)
    stats["end"] = time.time()  # TIMER: bench.no_sync
    return y, stats["end"] - stats["start"]


def rolling(loader):
    t0 = time.time()
    for batch in loader:
        loss = model(batch)
        loss.backward()
        t1 = time.time()  # TIMER: bench.no_sync
        print("step took", t1 - t0)
        t0 = t1


def synchronize_without_brackets():
    t0 = time.perf_counter()
    y = model(x)
    torch.cuda.synchronize  # noqa: B018
    return y, time.perf_counter() - t0  # TIMER: bench.no_sync


def waits_for_another_event(middle):
    middle = torch.cuda.Event()
    t0 = time.perf_counter()
    y = model(x)
    middle.record()
    z = model(y)
    middle.synchronize()
    return z, time.perf_counter() - t0  # TIMER: bench.no_sync


def waits_for_the_start_event():
    e0, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    e0.record()
    y = model(x)
    e1.record()
    e0.synchronize()
    return y, e0.elapsed_time(e1)  # TIMER: bench.event_not_ready


def makes_the_stream_wait():
    e0, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    e0.record()
    y = model(x)
    e1.record()
    e1.wait()
    return y, e0.elapsed_time(e1)  # TIMER: bench.event_not_ready


def upload_that_does_not_wait(host):
    t0 = time.perf_counter()
    y = host.to(device, non_blocking=True)
    return y, time.perf_counter() - t0  # TIMER: bench.no_sync


def by_timeit():
    return timeit.timeit(lambda: model(x), number=100)  # TIMER: bench.no_sync


def by_timeit_of_text():
    return timeit.timeit("model(x)", globals=globals(), number=100)  # TIMER: bench.no_sync


def by_repeat():
    return min(timeit.repeat(lambda: torch.mm(x, x), number=10))  # TIMER: bench.no_sync


def replay(graph):
    t0 = time.perf_counter()
    for _ in range(100):
        graph.replay()
    return (time.perf_counter() - t0) / 100  # TIMER: bench.no_sync


def of_a_callback(fn, *args):
    t0 = time.perf_counter()
    fn(*args)
    return time.perf_counter() - t0  # TIMER: bench.no_sync


def decorator(function):
    def timed(*args):
        t0 = time.perf_counter()
        result = function(*args)
        print(function.__name__, time.perf_counter() - t0)  # TIMER: bench.no_sync
        return result

    return timed


async def in_a_coroutine():
    t0 = time.perf_counter()
    y = model(x)
    return y, time.perf_counter() - t0  # TIMER: bench.no_sync


def in_a_generator(loader):
    for batch in loader:
        t0 = time.perf_counter()
        y = model(batch)
        yield y, time.perf_counter() - t0  # TIMER: bench.no_sync


def stamps_in_a_list():
    t = [time.perf_counter()]
    y = model(x)
    t.append(time.perf_counter())  # TIMER: bench.no_sync
    z = model(y)
    t.append(time.perf_counter())  # TIMER: bench.no_sync
    return z, [b - a for a, b in zip(t, t[1:], strict=False)]  # noqa: RUF007


class Stopwatch:
    def __enter__(self):
        self.start = time.perf_counter()
        return self

    def __exit__(self, *raised):
        self.took = time.perf_counter() - self.start  # TIMER: bench.no_sync


def in_a_with_block():
    with Stopwatch() as watch:
        y = model(x)
    return y, watch.took


@contextlib.contextmanager
def section(name):
    t0 = time.perf_counter()
    yield
    print(name, time.perf_counter() - t0)  # TIMER: bench.no_sync


def in_a_section():
    with section("forward"):
        return model(x)


class Meter:
    def tic(self):
        self.begun = time.perf_counter()

    def toc(self):
        return time.perf_counter() - self.begun  # TIMER: bench.no_sync


def between_two_methods():
    meter = Meter()
    meter.tic()
    y = model(x)
    return y, meter.toc()


def between_two_methods_of_any(meter):
    meter.tic()
    y = model(x)
    return y, meter.toc()


class Trainer:
    def begin(self):
        self.begun = time.time()

    def end(self):
        self.times.append(time.time() - self.begun)  # TIMER: bench.no_sync

    def fit(self, loader):
        for batch in loader:
            self.begin()
            model(batch).sum().backward()
            self.end()


def after_the_loop_that_waited(loader):
    for batch in loader:
        print(model(batch).sum().item())
    t0 = time.perf_counter()
    y = model(x)
    return y, time.perf_counter() - t0  # TIMER: bench.no_sync


def dirty():
    y = model(x)
    t0 = time.perf_counter()  # TIMER: bench.dirty_start
    z = model(y).sum().item()
    return z, time.perf_counter() - t0


def warmed_up_without_waiting():
    for _ in range(10):
        model(x)
    t0 = time.perf_counter()  # TIMER: bench.dirty_start
    for _ in range(100):
        model(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - t0) / 100


def warmed_up_by_the_same_call(net, batch):
    net(batch)
    t0 = time.perf_counter()  # TIMER: bench.dirty_start
    net(batch)
    torch.cuda.synchronize()
    return time.perf_counter() - t0


def operators_that_lists_have_too():
    t0 = time.perf_counter()
    torch.sort(x)
    t1 = time.perf_counter()  # TIMER: bench.no_sync
    x.sum()
    t2 = time.perf_counter()  # TIMER: bench.no_sync
    return t1 - t0, t2 - t1


def of_a_kernel(kernel, grid):
    t0 = time.perf_counter()
    kernel[grid](x, 8)
    return time.perf_counter() - t0  # TIMER: bench.no_sync


def by_name_of_the_operator(name):
    t0 = time.perf_counter()
    getattr(torch, name)(x)
    return time.perf_counter() - t0  # TIMER: bench.no_sync


def events_around_a_callback(fn):
    e0, e1 = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    e0.record()
    fn()
    e1.record()
    return e0.elapsed_time(e1)  # TIMER: bench.event_not_ready


def on_the_cpu_and_on_the_gpu(n):
    a = torch.rand(n, n)
    t0 = time.time()
    torch.matmul(a, a)
    t1 = time.time()
    a = a.cuda()
    t2 = time.time()
    torch.matmul(a, a)
    t3 = time.time()  # TIMER: bench.no_sync
    return t1 - t0, t3 - t2


def in_sections():
    t0 = time.time()
    y = model(x)
    t1 = time.time()  # TIMER: bench.no_sync
    host = y.cpu()
    t2 = time.time()  # TIMER: bench.misattributed
    return host, t1 - t0, t2 - t1


cuda = device == "cuda" and torch.cuda.is_available()
count = 100 if cuda else 1


def with_a_condition_on_the_machine():
    t0 = time.time()
    y = model(x)
    if cuda:
        print("launched", count)
    return y, time.time() - t0  # TIMER: bench.no_sync
