"""What a mark costs the host apart from the driver's call: Python's line event, the log, the slot. No GPU needed.

    python3.12 tests/bench/marks_host.py [--repeats 60]

Needs Python 3.12. Prints nanoseconds of CPU time a line; the least of all repeats counts.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

from tests.fake_gpu import FakeGpu
from tracer.recording.linewatch import AVAILABLE
from tracer.recording.marks import SPARSE_NS, Marks

LINES = 10_000


class NoDriver(FakeGpu):
    """Takes a mark and does nothing with it."""

    def write(self, stream: int, address: int, value: int, flags: int) -> int:
        return 0


def lines(x: int) -> int:
    for _ in range(LINES // 5):
        x = x.__add__(1)
        x = x.__add__(1)
        x = x.__add__(1)
        x = x.__add__(1)
        x = x.__add__(1)
    return x


def least_ns(repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        began = time.thread_time_ns()
        lines(1)
        taken.append(time.thread_time_ns() - began)
    return min(taken) / LINES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    if not AVAILABLE:
        raise SystemExit("line events need Python 3.12 or newer")
    print(f"plain: {least_ns(repeats):.0f} ns a line")
    for name, every_ns in (("a mark for each line", 0), ("a mark each 100 us", SPARSE_NS)):
        with tempfile.TemporaryDirectory() as folder:
            marks = Marks(Path(folder) / "1.ring", lambda file: file == __file__, every_ns=every_ns, gpu=NoDriver())
            marks.start()
            print(f"{name}: {least_ns(repeats):.0f} ns a line")
            marks.stop()
    print(f"Python {platform.python_version()}, {platform.machine()}, {time.strftime('%Y-%m-%d')}")


if __name__ == "__main__":
    main()
