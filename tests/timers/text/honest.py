"""Small timers that look suspicious and are right, or about which the text says too little; only read, never run."""

import contextlib
import json
import os
import subprocess
import time
import timeit

import numpy as np
import torch
from somewhere import cuda_sync, maybe_synchronize, prepare_folders, unpack, unwrapped, wrapped
from torch.utils import benchmark

device = "cuda"
model = torch.nn.Linear(8, 8).to(device)
x = torch.randn(8, 8, device=device)


def baseline_on_the_cpu(n):
    a, b = torch.randn(n, n), torch.randn(n, n)
    t0 = time.perf_counter()
    c = a @ b
    d = torch.mm(a, c)
    return d, time.perf_counter() - t0


def baseline_in_numpy(n):
    a = np.random.rand(n, n)
    t0 = time.perf_counter()
    c = np.dot(a, a)
    return c, time.perf_counter() - t0


def to_the_cpu_by_name():
    t0 = time.perf_counter()
    y = model(x).to("cpu")
    return y, time.perf_counter() - t0


def to_the_cpu_by_device():
    t0 = time.perf_counter()
    y = model(x).to(torch.device("cpu"))
    return y, time.perf_counter() - t0


def printed():
    t0 = time.perf_counter()
    loss = model(x).sum()
    print("loss", loss)
    return time.perf_counter() - t0


def formatted():
    t0 = time.perf_counter()
    loss = model(x).sum()
    print(f"loss {loss:.3f}")
    return time.perf_counter() - t0


def compared(best):
    t0 = time.perf_counter()
    loss = model(x)
    if loss > best:
        best = loss
    return best, time.perf_counter() - t0


def checked(ref):
    t0 = time.perf_counter()
    y = model(x)
    same = torch.allclose(y, ref)
    return same, time.perf_counter() - t0


def helpers_from_elsewhere():
    t0 = time.perf_counter()
    y = model(x)
    cuda_sync()
    t1 = time.perf_counter()
    z = model(y)
    maybe_synchronize(device)
    t2 = time.perf_counter()
    return z, t1 - t0, t2 - t1


def epoch_with_a_read_in_each_step(loader, optimizer):
    total = 0.0
    t0 = time.time()
    for batch in loader:
        loss = model(batch).mean()
        total += loss.item()
        loss.backward()
        optimizer.step()
    return total, time.time() - t0


def rolling_meters(loader, optimizer, batch_time, data_time, losses):
    end = time.time()
    for images, target in loader:
        data_time.update(time.time() - end)
        loss = torch.nn.functional.cross_entropy(model(images), target)
        losses.update(loss.item(), images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()


def while_it_lasts(loader, timeout):
    start = time.time()
    for batch in loader:
        model(batch)
        if time.time() - start > timeout:
            break


def loading(path):
    t0 = time.time()
    weights = torch.load(path, map_location="cpu")
    net = torch.nn.Linear(8, 8)
    net.load_state_dict(weights)
    print("loaded in", time.time() - t0)
    t0 = time.time()
    net.to(device)
    print("moved in", time.time() - t0)
    return net


def from_elsewhere(path):
    from transformers import AutoModel, AutoTokenizer

    t0 = time.time()
    net = AutoModel.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    print("ready in", time.time() - t0)
    return net, tokenizer


def generated(net, tokenizer, inputs):
    t0 = time.time()
    out = net.generate(**inputs, max_new_tokens=100)
    took = time.time() - t0
    return tokenizer.decode(out[0]), took


def other_programs(command):
    t0 = time.time()
    subprocess.run(command, check=True)
    size = os.cpu_count()
    print(json.dumps({"size": size}), time.time() - t0)


def read_settings(path):
    return json.loads(path.read_text())


def with_a_helper_on_the_host(path):
    t0 = time.time()
    settings = read_settings(path)
    print(settings, time.time() - t0)


def timeit_that_waits():
    def step():
        model(x)
        torch.cuda.synchronize()

    timeit.timeit(lambda: model(x).cpu(), number=10)
    timeit.timeit("model(x); torch.cuda.synchronize()", globals=globals(), number=10)
    timeit.timeit("len('x' * 10)", number=10)
    return timeit.timeit(step, number=10)


def torch_timer():
    t0 = time.time()
    found = benchmark.Timer("model(x)", globals={"model": model, "x": x}).blocked_autorange()
    return found.median, time.time() - t0


def timed_callback(fn):
    t0 = time.perf_counter()
    fn()
    return time.perf_counter() - t0


timed_callback(lambda: (model(x), torch.cuda.synchronize()))


def decorator(function):
    def timed(*args):
        t0 = time.perf_counter()
        result = function(*args)
        print(function.__name__, time.perf_counter() - t0)
        return result

    return timed


@decorator
def step_that_waits():
    y = model(x)
    torch.cuda.synchronize()
    return y


class Stopwatch:
    def __enter__(self):
        torch.cuda.synchronize()
        self.start = time.perf_counter()
        return self

    def __exit__(self, *raised):
        torch.cuda.synchronize()
        self.took = time.perf_counter() - self.start


def in_a_with_block():
    with Stopwatch() as watch:
        y = model(x)
    return y, watch.took


@contextlib.contextmanager
def section(name):
    t0 = time.perf_counter()
    yield
    print(name, time.perf_counter() - t0)


def in_a_section_that_waits():
    with section("forward"):
        y = model(x)
        torch.cuda.synchronize()
    with section("read"):
        return y.tolist()


class Meter:
    def tic(self):
        self.begun = time.perf_counter()

    def toc(self):
        torch.cuda.synchronize()
        return time.perf_counter() - self.begun


def between_two_methods():
    meter = Meter()
    meter.tic()
    y = model(x)
    return y, meter.toc()


def stamps_of_a_log(loader):
    stamps = []
    for batch in loader:
        model(batch)
        stamps.append(time.time())
    return stamps


def asked_until_it_is_done():
    done = torch.cuda.Event()
    t0 = time.perf_counter()
    y = model(x)
    done.record()
    while not done.query():
        pass
    return y, time.perf_counter() - t0


def events_in_lists(n):
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(n)]
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(n)]
    for i in range(n):
        starts[i].record()
        model(x)
        ends[i].record()
    torch.cuda.synchronize()
    return [s.elapsed_time(e) for s, e in zip(starts, ends, strict=True)]


def by_sign():
    took = -time.perf_counter()
    y = model(x)
    torch.cuda.synchronize()
    took += time.perf_counter()
    return y, took


def a_thread(thread):
    t0 = time.perf_counter()
    thread.start()
    thread.join()
    return time.perf_counter() - t0


def blocking_asked_for():
    blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
    subprocess.run(["python"], env={**os.environ, "CUDA_LAUNCH_BLOCKING": "1"}, check=True)
    return blocking


def compiled():
    t0 = time.perf_counter()
    fast = torch.compile(model)
    return fast, time.perf_counter() - t0


def downloaded_into_pinned_memory():
    host = torch.empty(8, 8, pin_memory=True)
    t0 = time.perf_counter()
    y = model(x)
    host.copy_(y)
    return time.perf_counter() - t0


def statistics(times):
    t0 = time.perf_counter()
    times.sort()
    middle, least = sorted(times)[len(times) // 2], min(times)
    return middle, least, time.perf_counter() - t0


def before_a_timer_that_has_nothing_to_do_with_it(settings, batch):
    prepare_folders(settings)
    t0 = time.perf_counter()
    y = model(batch)
    torch.cuda.synchronize()
    return y, time.perf_counter() - t0


class Trainer:
    def begin(self):
        self.begun = time.time()

    def end(self):
        torch.cuda.synchronize()
        self.times.append(time.time() - self.begun)

    def fit(self, loader):
        for batch in loader:
            self.begin()
            model(batch).sum().backward()
            self.end()


def how_long_is_left(period):
    start = time.perf_counter()
    y = model(x)
    left = period - (time.perf_counter() - start)
    return y, left


def scaled_steps(loader, net, optimizer, scaler):
    net = net.to(device)
    net = wrapped(net)
    start = time.time()
    for batch in loader:
        scaler.scale(net(batch).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    print("hours", (time.time() - start) / 3600)


def first_turn_after_a_warm_up(loader, batch_time):
    model(x)
    end = time.time()
    for batch in loader:
        model(batch).sum().item()
        batch_time.update(time.time() - end)
        end = time.time()


def called_before_and_in_each_turn(loader, callbacks):
    callbacks.run("begin")
    start = time.time()
    for batch in loader:
        model(batch).sum().item()
        callbacks.run("turn")
    return time.time() - start


def called_before_and_again_in_the_end(net, batch):
    unwrapped(net)
    start = time.time()
    y = net(batch)
    unwrapped(net)
    torch.cuda.synchronize()
    return y, time.time() - start


def words_before_and_in_it(net, batch):
    print(unwrapped("begin"))
    start = time.time()
    print(unwrapped("go"))
    y = net(batch)
    torch.cuda.synchronize()
    return y, time.time() - start


def load_data(path):
    return unpack(path) * 2


def named_for_the_host(path):
    start = time.time()
    data = load_data(path)
    return data, time.time() - start


async def awaited(work):
    import asyncio

    start = time.perf_counter()
    await asyncio.to_thread(work)
    return time.perf_counter() - start


def until_a_loop_has_waited():
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < 5.0:
        model(x)
        n += 1
    torch.cuda.synchronize()
    return n / (time.perf_counter() - start)


cuda = device == "cuda" and torch.cuda.is_available()
count = 100 if cuda else 1
scale = count**0.5
dtype = torch.bfloat16 if cuda else torch.float32


def after_arithmetic_on_settings():
    size = count * 2 / scale
    t0 = time.perf_counter()
    y = model(x)
    if cuda:
        torch.cuda.synchronize()
    return y, size, time.perf_counter() - t0
