"""What marks cost on a launch-bound and a GPU-bound loop, beside a plain and a blocking run.

    python tests/bench/marks_cost.py [--rounds 3] [--limit SECONDS] [--out cost.json]

Needs CUDA. Each measurement is a fresh process, rounds are interleaved, the median of
all steps counts. The last column says how many launches go behind a busy GPU before
one has to wait: marks take places in the launch queue, too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOOP = ROOT / "tests" / "bench" / "marks_loop.py"
WAYS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "a mark each 100 us": {"ops": False, "every_ns": 100_000},
    "a mark for each line": {"ops": False},
    "lines and operators": {"ops": True},
    "launches blocking": None,
}


def measure(way: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        inject = ROOT / "tracer" / "recording" / "inject"
        path = os.pathsep.join(filter(None, [str(inject), str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path}
        settings = WAYS[way]
        if settings is not None:
            env["TRACER_LOCATE"] = json.dumps({"folder": folder, **settings})
        if way == "launches blocking":
            env["CUDA_LAUNCH_BLOCKING"] = "1"
        done = subprocess.run(
            [sys.executable, str(LOOP)], env=env, capture_output=True, text=True, timeout=200, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return dict(json.loads(done.stdout.splitlines()[-1]), rings=len(list(Path(folder).glob("*.ring"))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1e6, help="seconds after which no new round begins")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    end = time.monotonic() + options.limit
    for _ in range(options.rounds):
        for way in WAYS:
            results[way].append(measure(way))
        if time.monotonic() > end:
            break
    names = {
        "launch": "launch-bound, one small op a line",
        "layers": "launch-bound, training step of 24 layers",
        "gpu": "GPU-bound",
    }
    print("| loop | run | ms a step | x plain | spread of rounds | first wait at launch |")
    print("|---|---|---|---|---|---|")
    for kind, name in names.items():
        plain = statistics.median(time_s for run in results["plain"] for time_s in run["steps"][kind])
        for way, settings in WAYS.items():
            runs = results[way]
            assert all(run["rings"] == (settings is not None) for run in runs), "the marks were not on"
            median = statistics.median(time_s for run in runs for time_s in run["steps"][kind])
            rounds = [statistics.median(run["steps"][kind]) / plain for run in runs]
            waits = sorted({run["waited"] for run in runs})
            print(
                f"| {name} | {way} | {median * 1e3:.2f} | {median / plain:.3f} | {min(rounds):.3f}-{max(rounds):.3f} "
                f"| {', '.join(map(str, waits))} |"
            )
    import torch

    print(
        f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}; {len(results['plain'])} rounds"
    )
    if options.out:
        options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
