"""Every fault program under the marks: was the guilty line found in one run, and how wide was the bracket?

    python tests/bench/locate_table.py [--cases FOLDER] [--jobs 6] [--only NAME ...] [--out table.json]

Needs CUDA. Prints a Markdown table; `--out` keeps every run's details.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tracer.recording.bracket import find_brackets
from tracer.recording.ring import read_ring

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "faults"
START = "import sys, runpy; from tracer.recording import locate_child; locate_child.install(); sys.argv = sys.argv[1:]; import os; sys.path[0] = os.path.dirname(sys.argv[0]); runpy.run_path(sys.argv[0], run_name='__main__')"


def guilty_lines(script: Path) -> list[int]:
    lines = script.read_text().splitlines()
    return [
        number
        for number, line in enumerate(lines, 1)
        if "# FAULT" in line or "role=cause" in line or "role=true_cause" in line
    ]


def probe(script: Path, mode: str) -> dict:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        settings = {
            "folder": folder,
            "lines": mode != "ops",
            "ops": "ops" in mode,
            "every_ns": 100_000 if mode == "sparse" else 0,
        }
        env = {
            **os.environ,
            "TRACER_LOCATE": json.dumps(settings),
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        }
        if mode == "plain":
            del env["TRACER_LOCATE"]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, "-c", START, str(script)], env=env, capture_output=True, text=True, timeout=120
            )
            status, err = done.returncode, done.stderr
        except subprocess.TimeoutExpired as error:
            status, err = "timeout", str(error.stderr)
        row = {
            "script": script.stem,
            "mode": mode,
            "status": status,
            "seconds": round(time.monotonic() - began, 1),
            "guilty": guilty_lines(script),
        }
        row["stderr"] = err[-1500:]
        row["rings"] = []
        for path in Path(folder).glob("*.ring"):
            image = read_ring(path)
            ring = {
                "records": len(image.records),
                "events": [list(map(str, event))[:6] for event in image.events],
                "brackets": [],
            }
            for bracket in find_brackets(image):
                ring["brackets"].append(
                    {
                        "stream": [bracket.device, bracket.stream],
                        "pending": bracket.pending,
                        "lines": [f"{Path(file).name}:{line}" for file, line in bracket.lines],
                        "op": bracket.landed.op if bracket.landed else None,
                        "times": bracket.times,
                        "forward": bracket.forward.line if bracket.forward else None,
                        "flying": [f"{launch.line} {launch.op}" for launch in bracket.in_flight[:4]],
                    }
                )
            row["rings"].append(ring)
        found = [line for ring in row["rings"] for bracket in ring["brackets"][:1] for line in bracket["lines"]]
        row["found"] = found
        row["exact"] = found == [f"{script.name}:{line}" for line in row["guilty"]]
        return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--modes", nargs="*", default=["lines", "lines+ops"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    scripts = sorted(path for path in FAULTS.glob("*.py") if guilty_lines(path))
    if options.cases:
        scripts += sorted((options.cases / "inputs").glob("AE*.py"))
    if options.only:
        scripts = [script for script in scripts if script.stem in options.only]
    jobs = [(script, mode) for script in scripts for mode in options.modes]
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(lambda job: probe(*job), jobs))
    for row in rows:
        print(
            row["script"],
            row["mode"],
            "status",
            row["status"],
            row["seconds"],
            "s; guilty",
            row["guilty"],
            "found",
            row["found"],
            "EXACT" if row["exact"] else "---",
        )
        if not row["exact"]:
            for ring in row["rings"]:
                print("   ", ring["brackets"], [event for event in ring["events"] if event[0] != "process"][:6])
            print("   ", row["stderr"][-500:].replace("\n", "\n    "))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
