"""What all workloads share: `STALL` says which variant runs, `drive` runs steps and has the GPU to itself.

Each workload has two variants, VARIANT=stall (as people write it) and VARIANT=fixed (the
wait removed by hand, all other work the same). TURN names a file: whoever steps holds its
lock, so that many workloads may start at once and still be timed one by one; TURN_CORES
names the cores that are kept for whoever steps.
"""

import contextlib
import fcntl
import os
import time
from pathlib import Path

import torch

import tracer

STALL = os.environ.get("VARIANT", "stall") == "stall"
STEPS = int(os.environ.get("STEPS", "45"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BF16 = torch.bfloat16


@contextlib.contextmanager
def turn():
    """Hold the GPU's lock, if there is one."""
    path = os.environ.get("TURN")
    if not path:
        yield
        return
    with Path(path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        usual, quiet = os.sched_getaffinity(0), os.environ.get("TURN_CORES")
        os.sched_setaffinity(0, map(int, quiet.split(",")) if quiet else usual)
        try:
            yield
        finally:
            os.sched_setaffinity(0, usual)


def drive(step, steps=None):
    """Run the steps, each announced to tracer."""
    with turn():
        for i in range(steps or STEPS):
            tracer.step()
            step(i)
        tracer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()


def host_work(ms):
    """Something that only the host does: a tokeniser, a logger."""
    until = time.perf_counter() + ms / 1e3
    while time.perf_counter() < until:
        pass


def mlp(layers, width, dtype=BF16):
    """Linear layers with ReLU between them."""
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts).to(DEVICE).to(dtype)
