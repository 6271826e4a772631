"""Samples the program's threads from inside, where no other process may look.

It sees a thread only when it gets the interpreter's lock, so what holds the lock long
shows late. Its own work takes no more than a hundredth of the time: with many threads or deep
stacks it samples less often, and says so. What the program loses beside is more (tests/bench/recording_pairs.py).
While it looks, the program stands still: it
notes code objects and instructions, and what lines those are is asked when they are written.
"""

from __future__ import annotations

import struct
import sys
import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections import deque
from types import CodeType, FrameType
from typing import Any

from tracer.recording.realtime import monotonic_ns, sleep
from tracer.recording.stacks import OWN, FrameTable
from tracer.recording.store import Sink

_PACKED = struct.Struct("qqqq")  # time, thread, stack, weight
_AT_ONCE = 500  # rows
_SHARE = 100  # one part in so many may go into sampling
_DEEPEST = 200  # frames of a stack
_HANDOVER_NS = 50_000  # what the program loses beside: the lock changes hands twice, and its caches are cold


class InProcessSampler:
    """A bare thread that looks at all others."""

    def __init__(self, sink: Sink, rate: int) -> None:
        self._sink = sink
        self._waiting: deque[bytes] = deque()  # packed, so that the garbage collector has nothing to look at
        self._lock = allocate_lock()
        self._frames = FrameTable.of(sink)
        self._period = 1_000_000_000 // rate
        self._known: dict[tuple[int, ...], int] = {}  # codes and offsets, innermost first -> number of the stack
        self._new: deque[tuple[int, ...]] = deque()  # stacks in order of their numbers, not yet written
        self._leaves: list[int] = []  # number of a stack -> its innermost frame in the file
        self._places: dict[tuple[int, int], tuple[str, int, str]] = {}
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
                    when, thread, stack, weight = _PACKED.unpack(self._waiting.popleft())
                    while stack >= len(self._leaves):
                        self._leaves.append(self._name(self._new.popleft()))
                    self._sink.add(["sample", when, thread, self._leaves[stack] if stack >= 0 else -1, weight])
                self._sink.flush()

    def _name(self, key: tuple[int, ...]) -> int:
        """Write a stack; the number of its innermost frame."""
        return self._frames.stack([self._place(*pair) for pair in zip(key[::2], key[1::2], strict=True)])

    def _place(self, place: int, offset: int) -> tuple[str, int, str]:
        """File, line (-1 if unknown) and function of an instruction."""
        found = self._places.get((place, offset))
        if found is None:
            code = self._kept[place]
            line = next((line for start, end, line in code.co_lines() if start <= offset < end), None)
            found = self._places[place, offset] = (code.co_filename, line or -1, code.co_qualname)
        return found

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
            spent = monotonic_ns() - now + _HANDOVER_NS
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
        """The number of a thread's stack, -1 for an empty one."""
        key: list[int] = []
        at, kept = leaf, self._kept
        while at is not None and len(key) < 2 * _DEEPEST:
            code = at.f_code
            place = id(code)
            if place not in kept:
                kept[place] = code
            key += (place, at.f_lasti)
            at = at.f_back
        if not key:
            return -1
        stack = tuple(key)
        known = self._known.get(stack)
        if known is None:
            known = self._known[stack] = len(self._known)
            self._new.append(stack)
        return known

    def said(self) -> dict[str, Any]:
        """What was done, for the manifest."""
        found: dict[str, Any] = {"on": True, "saw": self.saw, "dropped": 0, "how": "in-process"}
        if self.slowest_period > 1.5 * self._period:
            hertz = 1e9 / self.slowest_period
            found["note"] = f"down to {hertz:.0f} samples a second, so that they cost no more than 1 %"
        return found
