"""The program's own clock reads, with time and place, so that its timers can be checked.

- The functions of `time` are replaced by a bound method, which behaves like the
  builtin as a class attribute too (a plain function would become a method there)
  and pickles as `time.perf_counter`.
- A read notes code objects and instruction offsets; lines and columns are looked up
  later, on the thread that writes. A read from a library's file costs a look-up.
- Names that the program imported before we came are replaced in its modules.
- `datetime.now` belongs to a C class and cannot be replaced: the recorder of lines tells
  of its calls, where there is one (Python 3.12 and newer).
- CUDA events: when and on which stream each was recorded is kept as long as the event
  lives; `elapsed_time` then knows both ends.
"""

from __future__ import annotations

import sys
import threading
import time
import timeit
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from struct import Struct
from types import BuiltinFunctionType, CodeType, FrameType, MethodType
from typing import Any

from tracer.recording.realtime import monotonic_ns, time_ns
from tracer.recording.session import Session

_NAMES = ("time", "perf_counter", "monotonic", "process_time", "thread_time")
_LIMIT = 200_000  # reads kept in a window; a program that polls a clock must not fill the disk

_POLLED = 10_000  # reads kept of one place: beyond that it is a loop that waits for the time to pass
# clock, value, stamp, thread, then id of the code and instruction offset of the read and of two callers
_WHOLE = Struct("<Bqqqqiqiqi")
_REAL = Struct("<Bdqqqiqiqi")


class _Clock:
    """One clock function of the program. `read` takes its place."""

    def __init__(self, recorder: Recorder, name: str, number: int) -> None:
        self.name = name
        self.number = number  # in the recorder's list
        self.original: Callable[[], float] = getattr(time, name)
        self.label = f"time.{name}"
        self.scale = 1 if name.endswith("_ns") else 1_000_000_000
        self.read = MethodType(_make_read(recorder, self), self)

    def __reduce__(self) -> Any:
        # getattr(<this>, "perf_counter") is how a bound method is pickled: let it find the module.
        return import_module, ("time",)

    def __deepcopy__(self, memo: Any) -> _Clock:
        return self


def _make_read(recorder: Recorder, clock: _Clock) -> Callable[[_Clock], float]:
    """The function in a clock's place. Everything it needs is local, since it runs in the user's timed loops."""
    original, get_frame, now, local = clock.original, sys._getframe, monotonic_ns, recorder.local
    is_user, ask, raw, keep = recorder.user.get, recorder.is_user, recorder.raw.append, recorder.kept.setdefault
    times, pack, number = recorder.times, (_WHOLE if clock.scale == 1 else _REAL).pack, clock.number

    def read(_: _Clock) -> float:
        value = original()
        if recorder.listening:
            frame = get_frame(1)
            code = frame.f_code
            place = id(code)
            known = is_user(place)
            if known or (known is None and ask(code)):
                at = frame.f_lasti
                # Two places may share a sum; then they share the limit, which is far off for either.
                times[place + at] = seen = times.get(place + at, 0) + 1
                if seen <= _POLLED:
                    one = one_at = two = two_at = 0
                    caller = frame.f_back
                    if caller is not None:
                        code, one_at = caller.f_code, caller.f_lasti
                        one = id(code)
                        keep(one, code)
                        caller = caller.f_back
                        if caller is not None:
                            code, two_at = caller.f_code, caller.f_lasti
                            two = id(code)
                            keep(two, code)
                    try:
                        thread = local.native_id
                    except AttributeError:
                        thread = local.native_id = threading.get_native_id()
                    raw(pack(number, value, now(), thread, place, at, one, one_at, two, two_at))
        return value

    read.__name__ = read.__qualname__ = clock.name
    read.__module__ = "time"
    read.__doc__ = original.__doc__
    return read


class Recorder:
    """Notes clock reads and CUDA event timings while the window is open."""

    NAME = "clocks"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.listening = False
        self.saw = self.dropped = 0
        # As noted, made into rows by the writing thread. Packed: objects that the garbage collector
        # must look at would, by their number, wake its full collection inside the user's loop.
        self.raw: deque[bytes] = deque()
        self.times: dict[int, int] = {}  # reads by place
        self._lock = allocate_lock()
        # Keyed by id(code), since hashing a code object reads all of it; kept keeps those ids from being reused.
        self.user: dict[int, bool] = {}
        self.local = threading.local()  # asking the system for the thread's id costs 0.2 us
        self.kept: dict[int, CodeType] = {}
        self._frames: dict[tuple[int, int, int], int] = {}
        self._clocks: list[_Clock] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, ours, original
        self._recorded: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()

    def arm(self) -> None:
        """Replace the clocks. Called before the program starts, so that `from time import ...` finds ours."""
        if not self.session.record.clocks or self._clocks:
            return
        self._sink = self.session.sink(self.NAME)
        self.session.each_second(self.write)
        names = [name + suffix for name in _NAMES for suffix in ("", "_ns")]
        # One that the program has replaced by a clock of its own tells no time of ours, and may return anything.
        real = [name for name in names if isinstance(getattr(time, name), BuiltinFunctionType)]
        self._clocks = [_Clock(self, name, number) for number, name in enumerate(real)]
        taken = {clock.original: clock.read for clock in self._clocks}
        self._replace_in(time, taken)
        self._replace_in(timeit, taken)
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if file and self.session.is_user_file(file):
                self._replace_in(module, taken)

    def open(self) -> None:
        """Start to listen; CUDA events are wrapped once torch is there."""
        if not self._clocks:
            return
        if "torch" in sys.modules and not any(name == "elapsed_time" for _, name, _, _ in self._replaced):
            self._wrap_events(sys.modules["torch"].cuda.Event)
        self.session.on_date = self.asked_for_date
        self.listening = True

    def close(self) -> dict[str, Any]:
        """Stop to listen; what was seen and dropped."""
        self.listening = False
        self.session.on_date = None
        self.write()
        polled = sum(max(0, count - _POLLED) for count in self.times.values())
        return {"on": bool(self._clocks), "saw": self.saw, "dropped": self.dropped + polled}

    def disarm(self) -> None:
        """Give every name its own function back."""
        self.listening = False
        self.write()
        for owner, name, ours, original in reversed(self._replaced):
            if vars(owner).get(name) is ours:  # else the program has put a clock of its own there
                setattr(owner, name, original)
        self._replaced.clear()
        self._clocks.clear()

    def is_user(self, code: CodeType) -> bool:
        """Whether code is the user's own, asked once for each code object."""
        self.kept[id(code)] = code
        known = self.user[id(code)] = self.session.is_user_file(code.co_filename)
        return known

    def write(self) -> None:
        """Make rows of what came in, on the writing thread."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        while self.raw:
            data = self.raw.popleft()
            clock = self._clocks[data[0]]
            _, value, stamp, thread, *stack = (_WHOLE if clock.scale == 1 else _REAL).unpack(data)
            self._row(["read", stamp, thread, clock.label, round(value * clock.scale)], stack)

    def _row(self, row: list[Any], stack: Sequence[int]) -> None:
        """One row with its stack; beyond the limit count only."""
        if self.saw >= _LIMIT:
            self.dropped += 1
            return
        self.saw += 1
        self._sink.add([*row, self._frame(stack)])

    def _frame(self, stack: Sequence[int]) -> int:
        """The id of a frame with its callers; frames are written when first met, callers before callees.

        `stack` holds id of the code and instruction offset by turns, innermost first, 0 for none.
        """
        parent = -1
        for place, at in reversed(list(zip(stack[::2], stack[1::2], strict=True))):
            if not place:
                continue
            known = self._frames.get((place, at, parent))
            if known is None:
                code = self.kept[place]
                known = self._frames[place, at, parent] = len(self._frames)
                self._sink.add(["frame", known, parent, code.co_filename, *_position(code, at)])
            parent = known
        return parent

    def _replace_in(self, module: Any, taken: dict[Any, Any]) -> None:
        for name, value in list(vars(module).items()):
            try:
                ours = taken.get(value)
            except TypeError:  # not hashable, so not a function
                continue
            if ours is not None:
                self._replaced.append((module, name, ours, value))
                setattr(module, name, ours)

    def _wrap_events(self, event: Any) -> None:
        record, elapsed_time = event.record, event.elapsed_time
        recorder = self

        def tracing_record(self: Any, stream: Any = None) -> Any:
            result = record(self, stream)
            if recorder.listening:
                recorder.recorded(self, stream)
            return result

        def tracing_elapsed_time(self: Any, end_event: Any) -> float:
            if not recorder.listening:
                return float(elapsed_time(self, end_event))
            claimed = -1.0
            try:
                claimed = elapsed_time(self, end_event)
                return float(claimed)
            finally:
                recorder.elapsed(self, end_event, claimed, sys._getframe(1))

        for name, ours in (("record", tracing_record), ("elapsed_time", tracing_elapsed_time)):
            original = getattr(event, name)
            ours.__name__, ours.__qualname__ = original.__name__, original.__qualname__
            ours.__module__, ours.__doc__ = original.__module__, original.__doc__
            self._replaced.append((event, name, ours, original))
            setattr(event, name, ours)

    def recorded(self, event: Any, stream: Any) -> None:
        """Note when, and on which stream (its address; 0 is the default stream), an event was recorded."""
        cuda = sys.modules["torch"].cuda
        address = (stream if stream is not None else cuda.current_stream()).cuda_stream
        self._recorded[event] = (monotonic_ns(), address)

    def elapsed(self, start: Any, end: Any, claimed_ms: float, frame: FrameType) -> None:
        """Note what `start.elapsed_time(end)` said; -1 if it raised."""
        begun, done = self._recorded.get(start), self._recorded.get(end)
        if begun is None or done is None or not self.is_user(frame.f_code):
            return
        claimed = -1 if claimed_ms < 0 else round(claimed_ms * 1e6)
        row = ["elapsed", monotonic_ns(), threading.get_native_id(), claimed, begun[0], done[0], begun[1], done[1]]
        self._note(row, frame)

    def asked_for_date(self, frame: FrameType) -> None:
        """The program calls `datetime.now()`; the time that it is about to get is now."""
        self._note(["read", monotonic_ns(), threading.get_native_id(), "datetime.now", time_ns()], frame)

    def _note(self, row: list[Any], frame: FrameType) -> None:
        self.kept[id(frame.f_code)] = frame.f_code
        with self._lock:
            self._row(row, (id(frame.f_code), frame.f_lasti))


def _position(code: CodeType, at: int) -> tuple[int, str, int, int]:
    """(line, function, first column from 1, one past the last) of the instruction at a byte offset; -1 if unknown."""
    positions = list(code.co_positions())
    line, _, column, end = positions[at // 2] if 0 <= at // 2 < len(positions) else (None, None, None, None)
    shown = (-1 if column is None else column + 1, -1 if end is None else end + 1)
    return line or -1, code.co_name, *shown
