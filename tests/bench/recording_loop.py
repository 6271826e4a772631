"""The program that recording_cost.py measures: a launch-bound loop, then a GPU-bound one, each step timed.

    recording_loop.py VARIANT GATE OUT

Steps are timed by the program itself, the same ones in every variant. VARIANT says what
this program starts in the middle: `profiler`, `with_stack`, or nothing.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

variant, gate, out = sys.argv[1:4]
WARM, LAUNCH, GPU = 20, 120, 12


def train(net, optimizer, data):
    loss = net(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def make(size, layers, batch, dtype):
    with torch.device("cuda"):  # a billion weights take the CPU longer than all that is measured
        blocks = [block for _ in range(layers) for block in (torch.nn.Linear(size, size), torch.nn.GELU())]
    net = torch.nn.Sequential(*blocks).to(dtype)
    return net, torch.optim.SGD(net.parameters(), lr=1e-4), torch.randn(batch, size, device="cuda", dtype=dtype)


def run(loop, steps):
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        train(*loop)
        times.append(time.perf_counter() - start)
    return times


launch = make(256, 24, 64, torch.float32)
gpu = make(8192, 8, 4096, torch.bfloat16)
run(gpu, 4)
run(launch, WARM)
Path(f"{gate}.ready").touch()
while not Path(gate).exists():
    time.sleep(0.005)
# One after the other on the same cores, since two processes differ by a third otherwise; those that wind up leave.
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[:4])
run(launch, 5)
profiler = None
if variant in ("profiler", "with_stack"):
    both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    profiler = torch.profiler.profile(activities=both, with_stack=variant == "with_stack")
    profiler.prepare_trace()
run(launch, 2)
if profiler is not None:
    profiler.start_trace()
# The first steps of a window open it (and show every recorder code that is new to it).
run(launch, 4)
times = {"launch-bound": run(launch, LAUNCH), "gpu-bound": run(gpu, GPU)}
if profiler is not None:
    profiler.stop_trace()
run(launch, 6)
if len(cores) > 4:
    os.sched_setaffinity(0, cores[4:])
Path(out).write_text(json.dumps(times))
