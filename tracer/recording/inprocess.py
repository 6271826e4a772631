"""Samples the program's threads from inside, where no other process may look.

It sees a thread only when it gets the interpreter's lock, so what holds the lock long
shows late. It never takes more than a hundredth of the time: with many threads or deep
stacks it samples less often, and says so.
"""

from __future__ import annotations

import struct
import sys
import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections import deque
from time import monotonic_ns, sleep
from types import CodeType, FrameType
from typing import Any

from tracer.recording.stacks import OWN, FrameTable
from tracer.recording.store import Sink

_PACKED = struct.Struct("qqqq")  # time, thread, frame, weight
_AT_ONCE = 500  # rows
_SHARE = 100  # one part in so many may go into sampling
_DEEPEST = 200  # frames of a stack


class InProcessSampler:
    """A bare thread that looks at all others."""

    def __init__(self, sink: Sink, rate: int) -> None:
        self._sink = sink
        self._waiting: deque[bytes] = deque()  # packed, so that the garbage collector has nothing to look at
        self._lock = allocate_lock()
        self._frames = FrameTable.of(sink)
        self._period = 1_000_000_000 // rate
        self._known: dict[tuple[int, ...], int] = {}
        self._kept: dict[int, CodeType] = {}  # so that no id of a code object is used again
        self._running = True
        self.saw = 0
        self.slowest_period = self._period
        start_new_thread(self._work, ())

    def stop(self) -> None:
        """Sample no more; what is left is written."""
        self._running = False
        self.write()

    def write(self) -> None:
        """Hand what came in to the file, a few rows at a time."""
        with self._lock:
            while self._waiting:
                for _ in range(min(len(self._waiting), _AT_ONCE)):
                    self._sink.add(["sample", *_PACKED.unpack(self._waiting.popleft())])
                self._sink.flush()

    def _work(self) -> None:
        own, last, period = get_ident(), monotonic_ns(), self._period
        natives: dict[int, int] = {}
        while self._running:
            sleep(period / 1e9)
            now = monotonic_ns()
            if not self._running:
                return
            for ident, frame in sys._current_frames().items():
                if ident == own:
                    continue
                if self._is_ours(frame):
                    continue
                native = natives.get(ident)
                if native is None:
                    natives = {t.ident: t.native_id or -1 for t in threading.enumerate() if t.ident is not None}
                    native = natives.setdefault(ident, -1)
                self._waiting.append(_PACKED.pack(now, native, self._stack(frame), now - last))
                self.saw += 1
            last = now
            spent = monotonic_ns() - now
            period = min(max(self._period, spent * _SHARE), 1_000_000_000)
            self.slowest_period = max(self.slowest_period, period)
            if len(self._waiting) >= _AT_ONCE:
                self.write()

    @staticmethod
    def _is_ours(frame: FrameType) -> bool:
        """Whether this is a bare thread of the recorder: its outermost frame is one of this package."""
        while frame.f_back is not None:
            frame = frame.f_back
        return frame.f_code.co_filename.startswith(OWN)

    def _stack(self, leaf: FrameType | None) -> int:
        key: list[int] = []
        frames: list[tuple[CodeType, int]] = []
        at = leaf
        while at is not None and len(frames) < _DEEPEST:
            code, line = at.f_code, at.f_lineno or -1
            frames.append((code, line))
            key += (id(code), line)
            at = at.f_back
        known = self._known.get(tuple(key))
        if known is None:
            named = []
            for code, line in frames:
                self._kept[id(code)] = code
                named.append((code.co_filename, line, code.co_qualname))
            known = self._known[tuple(key)] = self._frames.stack(named)
        return known

    def said(self) -> dict[str, Any]:
        """What was done, for the manifest."""
        found: dict[str, Any] = {"on": True, "saw": self.saw, "dropped": 0, "how": "in-process"}
        if self.slowest_period > 1.5 * self._period:
            hertz = 1e9 / self.slowest_period
            found["note"] = f"down to {hertz:.0f} samples a second, so that they cost no more than 1 %"
        return found
