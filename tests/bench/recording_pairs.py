"""What recording costs on a launch-bound loop, window after window in one process.

    python tests/bench/recording_pairs.py [--cycles 9] [--processes 3] [--out pairs.json]

Processes that profile differ among themselves by a third, whatever profiles (see
recording_cost.py); windows of one process do not. So each process opens one window of
each variant, in an order that changes from cycle to cycle, and a ratio is taken within
its cycle. With CUDA the loop is the one of recording_cost.py, without it a smaller one.
`tracer.record` samples from inside the program, `tracer run` by py-spy: both are here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLAIN = "torch.profiler"
STEPS = 60


class Loop:
    """A training step of 24 small layers that reads its loss."""

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda.is_available()
        device, size, batch = ("cuda", 256, 64) if self.cuda else ("cpu", 16, 4)
        torch.set_num_threads(1)
        layers = [layer for _ in range(24) for layer in (torch.nn.Linear(size, size), torch.nn.GELU())]
        self._net = torch.nn.Sequential(*layers).to(device)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=1e-4)
        self._data = torch.randn(batch, size, device=device)

    def run(self, steps: int) -> float:
        """Median seconds of a step."""
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            loss = self._net(self._data).square().mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            loss.item()
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def nothing(loop: Loop) -> float:
    return loop.run(STEPS)


def profiler(loop: Loop, with_stack: bool = False) -> float:
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA][: 1 + loop.cuda]
    window = torch.profiler.profile(activities=activities, with_stack=with_stack)
    window.prepare_trace()
    loop.run(2)
    window.start_trace()
    loop.run(4)
    took = loop.run(STEPS)
    window.stop_trace()
    return took


def ours(loop: Loop, **record: Any) -> float:
    import tracer

    with tempfile.TemporaryDirectory() as folder:
        with tracer.record(warmup=2, steps=STEPS + 20, folder=folder, formats=(), **record):
            loop.run(2 + 4)
            took = loop.run(STEPS)
        (manifest,) = Path(folder).glob("*/rank*/manifest.json")
        said = json.loads(manifest.read_text())
        assert said["kineto"], "nothing was recorded"
        OURS.update(said["recorders"])
    return took


def sampled(loop: Loop) -> float:
    """torch.profiler, and py-spy beside it as `tracer run` starts it."""
    from tracer.config import Record
    from tracer.recording.sampler import Sampler

    with tempfile.TemporaryDirectory() as folder:
        sampler = Sampler(os.getpid(), Path(folder), Record())
        assert not sampler.why, sampler.why
        took = profiler(loop)
        sampler.stop()
    return took


OURS: dict[str, Any] = {}  # what our recorders saw in the last window
OFF = dict.fromkeys(("ledger", "lines", "clocks", "samples", "sync_events"), False)
VARIANTS: dict[str, Callable[[Loop], float]] = {
    "nothing": nothing,
    PLAIN: profiler,
    "torch.profiler with_stack": lambda loop: profiler(loop, with_stack=True),
    "torch.profiler, py-spy beside it": sampled,
    "tracer.record, everything on": ours,
    "tracer.record without samples": lambda loop: ours(loop, samples=False),
    "tracer.record, profiler only": lambda loop: ours(loop, **OFF),
}


def measure(cycles: int, seed: int) -> list[dict[str, float]]:
    """For each cycle, variant -> ms."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    loop = Loop()
    loop.run(50)
    order = random.Random(seed)
    for variant in VARIANTS.values():
        variant(loop)  # the first window of each is its own warm-up
    return [
        {name: 1e3 * VARIANTS[name](loop) for name in order.sample(list(VARIANTS), len(VARIANTS))}
        for _ in range(cycles)
    ]


def table(cycles: list[dict[str, float]]) -> str:
    lines = ["| variant | ms a step | over nothing | over torch.profiler |", "|---|---|---|---|"]

    def ratio(name: str, base: str) -> str:
        pairs = [cycle[name] / cycle[base] for cycle in cycles]
        low, middle, high = statistics.quantiles(pairs, n=4)
        return f"{middle:.3f} ({low:.3f}-{high:.3f})"

    for name in VARIANTS:
        median = statistics.median(cycle[name] for cycle in cycles)
        lines.append(f"| {name} | {median:.2f} | {ratio(name, 'nothing')} | {ratio(name, PLAIN)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=9)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--seed", type=int, help="measure in this process, and print JSON")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.seed is not None:
        print(json.dumps({"cycles": measure(options.cycles, options.seed), "recorders": OURS}))
        return
    import torch

    cycles: list[dict[str, float]] = []
    said: dict[str, Any] = {}
    for seed in range(options.processes):
        command = [sys.executable, __file__, "--seed", str(seed), "--cycles", str(options.cycles)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        one = json.loads(done.stdout.splitlines()[-1])
        cycles += one["cycles"]
        said = one["recorders"]
        if options.out:
            options.out.write_text(json.dumps({"cycles": cycles, "recorders": said}))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()}, no GPU"
    print(f"{device}, torch {torch.__version__}, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}")
    print(f"{options.processes} processes of {options.cycles} cycles; ratios: median (first to third quarter)\n")
    print(f"{table(cycles)}\n\nour recorders: {json.dumps(said)}")


if __name__ == "__main__":
    main()
