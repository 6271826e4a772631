"""How long a trace takes to load, audit and export, and how much memory: a table, with ratios to the floor.

The floor is what nobody who reads JSON can beat by much: streaming inflate and typed
decoding of the same file, in the same run, with nothing kept. If Holistic Trace Analysis
is installed, it is measured, too (`--hta`).

    python tests/bench/load.py --make traces/samples/x/rank0.../kineto.json.gz --sizes 100MB 500MB 1GB
    python tests/bench/load.py trace.json.gz
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.scale import parse_size, scale

STAGES = ("floor", "load", "audit", "export")


class Watch:
    """Time by the wall and of the processor: they differ where others use the machine, too."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def times(self) -> dict[str, Any]:
        """Since it was made."""
        return {"seconds": time.perf_counter() - self._wall, "cpu": time.process_time() - self._cpu}


def measure_floor(path: Path) -> dict[str, Any]:
    """Inflate and decode, keep nothing."""
    import gc

    from tracer.readers._bytes import Source
    from tracer.readers._events import EventDecoder
    from tracer.readers._framing import Framer
    from tracer.readers._salvage import Damage

    gc.disable()
    watch = Watch()
    decoder = EventDecoder()
    events = sum(len(batch) for batch in Framer(str(path), Source(path).blocks(), decoder.decode, Damage()).batches())
    return watch.times() | {"events": events}


def measure_load(path: Path) -> dict[str, Any]:
    """File to columns."""
    from tracer.readers import load

    events = [0]
    watch = Watch()
    trace = load(path, progress=lambda read, total, count: events.__setitem__(0, count))
    return watch.times() | {"events": events[0], "spans": len(trace.spans)}


def measure_audit(path: Path) -> dict[str, Any]:
    """Columns to findings."""
    from tracer.auditor import audit
    from tracer.readers import load

    trace = load(path)
    watch = Watch()
    found = audit(trace, source=str(path))
    return watch.times() | {"spans": len(trace.spans), "findings": len(found.findings)}


def measure_export(path: Path) -> dict[str, Any]:
    """Columns to a Perfetto file, the bare trace."""
    from tracer.exports.perfetto import write
    from tracer.readers import load

    trace = load(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        watch = Watch()
        written = write(trace, None, Path(folder) / "trace.pftrace", most_slices=10**12)
        return watch.times() | {"spans": len(trace.spans), "slices": written.slices}


def measure_hta(path: Path) -> dict[str, Any]:
    """The same file in Holistic Trace Analysis."""
    from hta.common.trace import parse_trace_file

    watch = Watch()
    parse_trace_file(str(path))
    return watch.times()


def run_stage(stage: str, path: Path) -> dict[str, Any]:
    """One stage in a process of its own, so that its memory is its own."""
    command = [sys.executable, __file__, "--stage", stage, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def in_stage(stage: str, path: Path) -> None:
    """What the process of a stage does."""
    measure = {
        "floor": measure_floor,
        "load": measure_load,
        "audit": measure_audit,
        "export": measure_export,
        "hta": measure_hta,
    }
    found = measure[stage](path)
    print(json.dumps(found | {"peak_mb": peak_mb()}))


def peak_mb() -> float:
    """The most memory of this process; what the system keeps for it begins with that of the process that started it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


def best(stage: str, path: Path, repeats: int) -> dict[str, Any]:
    """The fastest of some runs: other work on the machine only ever adds."""
    runs = [run_stage(stage, path) for _ in range(repeats)]
    return min(runs, key=lambda found: found.get("cpu", float("inf")))


def line(size: int, stage: str, found: dict[str, Any], floor: dict[str, Any]) -> str:
    """One row of the table."""
    if "failed" in found:
        return f"| {size / 1e6:,.0f} MB | {stage} | failed: {found['failed']} | | | | | | |"
    seconds, cpu = found["seconds"], found["cpu"]
    count = found.get("slices") or found.get("events") or floor.get("events") or 0
    cells = (
        f"{size / 1e6:,.0f} MB",
        stage,
        f"{cpu:.2f} s",
        f"{seconds:.2f} s",
        f"{size / 1e6 / cpu:,.0f} MB/s",
        f"{count / cpu / 1e6:.2f} M/s",
        f"{found['peak_mb']:,.0f} MB",
        f"{cpu / floor['cpu']:.1f}",
        f"{found['peak_mb'] / floor['peak_mb']:.1f}",
    )
    return "| " + " | ".join(cells) + " |"


def versions() -> str:
    """The machine and what runs on it."""
    known = []
    for name in ("numpy", "msgspec", "isal"):
        try:
            known.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            known.append(f"no {name}")
    cores = os.cpu_count()
    today = datetime.date.today().isoformat()
    return f"{today}, {platform.machine()}, {cores} cores, Python {platform.python_version()}, {', '.join(known)}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--make", type=Path, help="a small trace to make large ones of")
    parser.add_argument("--sizes", nargs="*", type=parse_size, default=[])
    parser.add_argument("--layout", choices=("kineto", "compact"), default="kineto")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--hta", action="store_true", help="measure Holistic Trace Analysis, too")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        in_stage(arguments.stage, arguments.paths[0])
        return 0
    stages = (*STAGES, "hta") if arguments.hta else STAGES
    print(versions())
    print("| JSON | stage | CPU | wall | JSON/s | events or slices/s | peak memory | CPU / floor | memory / floor |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        paths = list(arguments.paths)
        for size in arguments.sizes:
            path = Path(folder) / f"{size}.json"
            scale(arguments.make, path, size, arguments.layout)
            measure_path(path, stages, arguments.repeats)
            path.unlink()
        for path in paths:
            measure_path(path, stages, arguments.repeats)
    return 0


def measure_path(path: Path, stages: tuple[str, ...], repeats: int) -> None:
    """Print the rows of one file."""
    floor = best("floor", path, repeats)
    for stage in stages:
        found = floor if stage == "floor" else best(stage, path, repeats)
        print(line(path.stat().st_size, stage, found, floor), flush=True)


if __name__ == "__main__":
    sys.exit(main())
