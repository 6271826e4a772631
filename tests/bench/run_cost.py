"""What `tracer run` costs outside its window: the same loop alone and under the tracer, in turns.

    python tests/bench/run_cost.py [--rounds 7]

Each round runs the loop in fresh processes: alone, and recorded with a window that
never opens. Prints milliseconds a step (median of the loop's own steps) and the ratio;
before that, what one step boundary costs by itself.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOOP = """
import time, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
width, layers, batch = {shape}
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))).to(device)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
x = torch.randn(batch, width, device=device)
times = []
for step in range({steps}):
    start = time.perf_counter()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
times = sorted(times[len(times) // 4:])
print(1e3 * times[len(times) // 2])
"""
SHAPES = {"launch-bound": "256, 24, 64", "compute-bound": "4096, 8, 2048"}
CPU_SHAPES = {"launch-bound": "16, 24, 4", "compute-bound": "1024, 2, 256"}


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=400)
    rounds, steps = (arguments := parser.parse_args()).rounds, arguments.steps
    cuda = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine()
    print(f"{where}, torch {torch.__version__}, Python {platform.python_version()}, {rounds} rounds of {steps} steps")
    print(f"one step boundary outside the window: {boundary_us():.2f} us")
    for name, shape in (SHAPES if cuda else CPU_SHAPES).items():
        with tempfile.TemporaryDirectory() as folder:
            alone, recorded = measure(Path(folder), shape, rounds, steps)
        ratios = [b / a for a, b in zip(alone, recorded, strict=True)]
        print(
            f"{name}: alone {statistics.median(alone):.3f} ms, under the tracer {statistics.median(recorded):.3f} ms, "
            f"ratio {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})"
        )


def boundary_us() -> float:
    """Microseconds of one boundary while the window is far away: the least of many rounds."""
    from tracer import config
    from tracer.recording import runs
    from tracer.recording.child import Child

    record = config.Record(samples=False)
    with tempfile.TemporaryDirectory() as folder:
        run = runs.RunFile("r", "n", [], "script", config.Window(skip=10**9, steps=1), record, 0, time.time_ns())
        child = Child(Path(folder), run)
        child.watch(at_once=True)
        best = float("inf")
        for _ in range(200):
            start = time.perf_counter()
            for _ in range(100):
                child.boundary("tracer")
            best = min(best, time.perf_counter() - start)
        child.finish()
    return best / 100 * 1e6


def measure(folder: Path, shape: str, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    script = folder / "loop.py"
    script.write_text(LOOP.format(shape=shape, steps=steps))
    tracer = [
        sys.executable,
        "-m",
        "tracer",
        "run",
        f"output.folder={folder}",
        "output.formats=[]",
        "window.skip=1000000",
    ]
    ways = ([sys.executable, str(script)], [*tracer, "--", "python", str(script)])
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for way in (0, 1) if turn % 2 == 0 else (1, 0):
            done = subprocess.run(ways[way], capture_output=True, text=True, check=True)
            found[way].append(float(done.stdout))
    return found


if __name__ == "__main__":
    main()
