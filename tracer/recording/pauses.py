"""When Python's garbage collector ran, and how full the GPU's allocator was.

- The collector's callbacks run on the thread that collects, which holds the GIL all the
  while; collections below 50 us are not worth a row.
- The allocator's counters are read at both ends of the window and once a second between,
  on the thread that writes: some tens of microseconds each time.
"""

from __future__ import annotations

import gc
import sys
from threading import get_native_id
from typing import Any

from tracer.recording.realtime import monotonic_ns
from tracer.recording.session import Session

_SHORT_NS = 50_000
_COUNTERS = {
    "num_alloc_retries": "allocator retries",
    "num_ooms": "allocator out of memory",
    "num_device_alloc": "allocator device allocations",
    "num_device_free": "allocator device frees",
    "reserved_bytes.all.current": "allocator reserved bytes",
    "allocated_bytes.all.current": "allocator allocated bytes",
}


class Recorder:
    """Notes collections and allocator counters while the window is open."""

    NAME = "pauses"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.saw = 0
        self._started: dict[int, int] = {}  # by thread
        self._open = False

    def arm(self) -> None:
        """Counters are read each second from now on, collections once the window is open."""
        if self.session.record.lines:
            self._sink = self.session.sink(self.NAME)
            self._counters = self.session.sink("memory")
            self.session.each_second(self._count)

    def open(self) -> None:
        """Listen."""
        if self.session.record.lines and not self._open:
            self._open = True
            self._count()
            gc.callbacks.append(self._heard)

    def close(self) -> dict[str, Any]:
        """Stop; how many collections there were."""
        if not self.session.record.lines:
            return {"on": False, "why": "record.lines is off"}
        self._count()
        self.disarm()
        return {"on": True, "saw": self.saw, "dropped": 0}

    def disarm(self) -> None:
        """Leave the collector alone."""
        self._open = False
        if self._heard in gc.callbacks:
            gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        thread = get_native_id()
        if phase == "start":
            self._started[thread] = monotonic_ns()
            return
        start = self._started.pop(thread, None)
        if start is not None and self._open and self.session.alive:
            took = monotonic_ns() - start
            if took >= _SHORT_NS:
                self.saw += 1
                self._sink.add(["pause", start, took, thread, "Python GC"])

    def _count(self) -> None:
        """Note the allocator's counters; never starts CUDA."""
        torch = sys.modules.get("torch")
        if not self._open or torch is None or not torch.cuda.is_initialized():
            return
        for device in range(torch.cuda.device_count()):
            stats = torch.cuda.memory_stats(device)
            now = monotonic_ns()
            for key, name in _COUNTERS.items():
                if key in stats:
                    self._counters.add(["counter", now, name, device, float(stats[key])])
