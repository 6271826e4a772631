"""Every fault program through `tracer locate`: was the guilty line found in one run, and how wide was the bracket?

    python tests/bench/locate_table.py [--cases FOLDER] [--jobs 8] [--only NAME ...] [--out FOLDER]

Needs CUDA. Prints a Markdown table for the README; `--out` keeps the answers in full.
A program's guilty line carries `# FAULT` (or `role=cause`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "faults"
WAYS = {
    "full": [],
    "lines": ["--no-ops", "--no-rerun"],
    "sparse": ["--no-ops", "--no-rerun", "--marks", "sparse"],
}


def guilty_line(script: Path) -> int:
    """The line that the marker stands on, 0 if there is none."""
    for number, line in enumerate(script.read_text().splitlines(), 1):
        if line.rstrip().endswith("# FAULT") or "role=cause" in line or "role=true_cause" in line:
            return number
    return 0


def locate(script: Path, way: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "tracer", "locate", *WAYS[way], "--limit", "100", "--format", "json"]
        command += ["-o", str(answer), "--", sys.executable, str(script)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
        )
        found = json.loads(answer.read_text()) if answer.exists() else {}
        return {
            "found": found,
            "seconds": time.monotonic() - began,
            "status": done.returncode,
            "err": done.stderr[-3000:],
        }


def _lines(places: list[dict[str, Any]]) -> list[int]:
    return [place["line"] for place in places]


def row_of(script: Path, answers: dict[str, dict[str, Any]]) -> tuple[list[str], bool]:
    guilty = guilty_line(script)
    cells = [script.stem]
    for way in ("lines", "full", "sparse"):
        found = answers[way]["found"]
        bracket = _lines(found.get("first", {}).get("bracket", [])) if found else []
        exact = bracket == [guilty]
        cells.append("exact" if exact else f"{len(bracket)} lines" if guilty in bracket else f"missed: {bracket[:3]}")
    found = answers["full"]["found"]
    second = found.get("second") or {}
    blocked = (second.get("reported") or {}).get("line")
    cells.append(
        "yes" if blocked == guilty else "not reproduced" if not second.get("reproduced") else f"line {blocked}"
    )
    cause = (found.get("cause") or {}).get("line")
    cells.append("yes" if cause == guilty else f"line {cause}")
    cells.append(found.get("confidence", "crashed"))
    cells.append("; ".join(found.get("offending", [])[:1]))
    return cells, cause == guilty


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    scripts = sorted(path for path in FAULTS.glob("*.py") if guilty_line(path))
    if options.cases:
        scripts += sorted((options.cases / "inputs").resolve().glob("AE*.py"))
    if options.only:
        scripts = [script for script in scripts if script.stem in options.only]
    jobs = [(script, way) for script in scripts for way in WAYS]
    with ThreadPoolExecutor(options.jobs) as pool:
        answers = dict(zip(jobs, pool.map(lambda job: locate(*job), jobs), strict=True))
    header = [
        "fault",
        "lines only",
        "lines and ops",
        "one mark each 100 us",
        "blocking run",
        "cause",
        "confidence",
        "values",
    ]
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    good = 0
    for script in scripts:
        cells, found = row_of(script, {way: answers[script, way] for way in WAYS})
        good += found
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    print(f"\n{good} of {len(scripts)} causes named; {_machine()}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        kept = {f"{script.stem} {way}": answers[script, way] for script, way in jobs}
        (options.out / "locate.json").write_text(json.dumps(kept, indent=1))


def _machine() -> str:
    import torch

    return (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}"
    )


if __name__ == "__main__":
    main()
