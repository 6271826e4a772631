"""What noting a clock read costs: `python tests/bench/clocks.py`; microseconds a read, and the ratio to a bare one."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tracer.config import Record
from tracer.recording.clocks import Recorder
from tracer.recording.session import Session

READS = 20_000
ROUNDS = 9


def per_read_ns() -> float:
    start = time.monotonic_ns()
    for _ in range(READS):
        time.perf_counter()
    return (time.monotonic_ns() - start) / READS


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bare, other, noted = [], [], []
        for _ in range(ROUNDS):
            bare.append(per_read_ns())
            for user_code, into in (([], other), (["*bench/clocks.py"], noted)):
                session = Session(Path(folder), Record(user_code=user_code))
                session.is_user_file = lambda file, on=bool(user_code): on  # type: ignore[method-assign]
                recorder = Recorder(session)
                recorder.arm()
                recorder.open()
                into.append(per_read_ns())
                recorder.close()
                recorder.write()
                recorder.disarm()
    floor = statistics.median(bare)
    for name, times in (("bare", bare), ("from a library's file", other), ("noted, from the user's file", noted)):
        median = statistics.median(times)
        spread = f"{min(times) / 1e3:.3f}-{max(times) / 1e3:.3f}"
        print(f"{name:28} {median / 1e3:.3f} us a read ({spread}), {median / floor:.1f}x")


if __name__ == "__main__":
    main()
