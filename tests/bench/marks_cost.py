"""What marks cost on a launch-bound and a GPU-bound loop, beside a plain and a blocking run.

    python tests/bench/marks_cost.py [--rounds 3] [--out cost.json]

Needs CUDA. Each measurement is a fresh process; rounds are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = "import sys, runpy; from tracer.recording import locate_child; locate_child.install(); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
LOOP = """
import sys, time, torch
kind = sys.argv[1]
def step(x, w):
    x = x @ w
    x = x + 1
    x = x * 0.5
    x = x.relu()
    x = x - 0.1
    x = x @ w
    x = x + 1
    x = x * 0.5
    x = x.relu()
    x = x - 0.1
    return x
size = 64 if kind == "launch" else 8192
x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
w = torch.randn(size, size, device="cuda", dtype=torch.bfloat16) / size**0.5
repeats = 9 if kind == "launch" else 5
times = []
for number in range(repeats + 2):
    torch.cuda.synchronize()
    began = time.perf_counter()
    y = x
    for _ in range(40):
        y = step(y, w)
    queued = time.perf_counter()
    torch.cuda.synchronize()
    times.append((time.perf_counter() - began, queued - began))
times = times[2:]
# How many launches until one waits: behind a long kernel, with tiny ops.
big = torch.randn(8192, 8192, device="cuda")
torch.cuda.synchronize()
small = torch.zeros(1, device="cuda")
def fill_queue():
    taken = []
    for _ in range(20):
        big @ big
    for number in range(2500):
        before = time.perf_counter()
        small.add_(1)
        if time.perf_counter() - before > 2e-3:
            return number
    return -1
waited = fill_queue()
torch.cuda.synchronize()
import json
print("RESULT", json.dumps({"wall": times, "waited": waited}))
"""


def measure(kind: str, mode: str) -> dict:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        script = Path(folder) / "loop.py"
        script.write_text(LOOP)
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        if mode == "blocking":
            env["CUDA_LAUNCH_BLOCKING"] = "1"
        elif mode != "plain":
            settings = {
                "folder": folder,
                "lines": "lines" in mode or mode == "sparse",
                "ops": "ops" in mode,
                "every_ns": 100_000 if mode == "sparse" else 0,
            }
            env["TRACER_LOCATE"] = json.dumps(settings)
        done = subprocess.run(
            [sys.executable, "-c", START, str(script), kind], env=env, capture_output=True, text=True, timeout=200
        )
        for line in done.stdout.splitlines():
            if line.startswith("RESULT"):
                return json.loads(line.removeprefix("RESULT"))
        raise RuntimeError(done.stderr[-2000:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", nargs="*", default=["plain", "lines", "sparse", "lines+ops", "blocking"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, list] = {}
    for _ in range(options.rounds):
        for kind in ("launch", "gpu"):
            for mode in options.modes:
                results.setdefault(f"{kind} {mode}", []).append(measure(kind, mode))
    for kind in ("launch", "gpu"):
        base = None
        for mode in options.modes:
            runs = results[f"{kind} {mode}"]
            wall = statistics.median(value[0] for run in runs for value in run["wall"])
            base = base or wall
            print(
                f"{kind:7} {mode:10} {wall * 1e3:8.3f} ms  x{wall / base:.3f}  waited after {[run['waited'] for run in runs]} launches; runs {[round(statistics.median(v[0] for v in run['wall']) * 1e3, 2) for run in runs]}"
            )
    if options.out:
        options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
