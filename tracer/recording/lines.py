"""Which line of the user's own code ran when, on each thread: exact, from the interpreter (Python 3.12 and newer).

- Only code of the user's files is watched. Any other function is looked at once, when
  it first runs, and left alone from then on; so is what torch.compile generates.
- After a call the interpreter says nothing when the caller goes on in the same line.
  So returns (and yields, and exceptions that leave a function) of watched code count
  too: the time goes back to the caller's line.
- LINE events have no column; CALL events say where in the bytecode, and that has
  columns. They end with the call, which is known for what is written in C. A Python
  function of a library ends without a word: its call gets no columns.
- A function that fires too often (a plain Python loop) is no longer watched line by
  line, and the manifest names it; its time counts as a line that is not known.
- A run waits as bytes until it is written, a few at a time: a million lists would have
  the garbage collector stop the program again and again.
- Other tools keep working: one of the two ids that no tool has by name, no `restart_events`.
"""

from __future__ import annotations

import sys
import threading
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from datetime import datetime
from types import BuiltinMethodType, CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from tracer.recording.linestacks import CHECK_AFTER, LIMIT, MONITORING, NO_LINE, PACKED, LineStacks, Thread, pack
from tracer.recording.realtime import monotonic_ns
from tracer.recording.stacks import FrameTable

if TYPE_CHECKING:
    from tracer.recording.session import Session

AVAILABLE = sys.version_info >= (3, 12)
_DATES = frozenset({"now", "utcnow"})
_AT_ONCE = 500  # rows; fewer than make the garbage collector look


class Recorder(LineStacks):
    """Writes runs of lines while the window is open."""

    NAME = "lines"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._on = session.record.lines and AVAILABLE
        self._why = ""
        if not session.record.lines:
            self._why = "switched off"
        elif not AVAILABLE:
            self._why = "needs Python 3.12 or newer"
        self._lock = allocate_lock()

    def arm(self) -> None:
        """Nothing is watched before the window."""

    def open(self) -> None:
        """Watch from now on, what runs already included."""
        if not self._on:
            return
        monitoring = MONITORING
        self._tool = next((tool for tool in (4, 3) if monitoring.get_tool(tool) is None), -1)
        if self._tool < 0:
            self._on, self._why = False, "both free ids of sys.monitoring are taken by other tools"
            return
        sink = self._session.sink(self.NAME)
        self._sink = sink
        self._session.each_second(self.write)
        self._frames = FrameTable.of(sink)
        monitoring.use_tool_id(self._tool, "tracer")
        events = monitoring.events
        for event, call in (
            (events.PY_START, self._entered),
            (events.PY_RESUME, self._entered),
            (events.PY_THROW, self._thrown),
            (events.PY_RETURN, self._left),
            (events.PY_YIELD, self._left),
            (events.PY_UNWIND, self._left),
            (events.LINE, self._line),
            (events.CALL, self._call),
            (events.C_RETURN, self._returned),
            (events.C_RAISE, self._returned),
        ):
            monitoring.register_callback(self._tool, event, self._guarded(call))
        self._inside = events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        self._fully = self._inside | events.LINE | events.CALL
        now = monotonic_ns()
        known = {thread.ident: thread.native_id or -1 for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            thread = self._threads[ident] = Thread(known.get(ident, -1))
            self._rebuild(thread, frame, now)
        monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME | events.PY_THROW | events.PY_UNWIND)

    def close(self) -> dict[str, Any]:
        """Watch no more; what was seen, and which functions were too busy to be watched."""
        if self._tool >= 0:
            self._end_events()
            MONITORING.free_tool_id(self._tool)
            self._tool = -1
            now = monotonic_ns()
            for thread in list(self._threads.values()):
                self._run(thread, -1, now)
            self._threads.clear()
            self.write()
        found: dict[str, Any] = {"on": self._on, "saw": self.saw, "dropped": self.dropped}
        hot = [w.code for w in self._watched.values() if w is not None and w.left < 2]
        if hot:
            found["switched_off"] = [f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}" for code in hot]
        return found | ({"why": self._why} if self._why else {})

    def write(self) -> None:
        """Hand what came in to the file."""
        waiting, unpack = self._waiting, PACKED.unpack
        with self._lock:
            while waiting:
                for _ in range(min(len(waiting), _AT_ONCE)):
                    self._sink.add(["line", *unpack(waiting.popleft())])
                self._sink.flush()

    def disarm(self) -> None:
        """Nothing is left to take away."""
        self.close()

    def forked(self) -> None:
        """This is a child: its parent's window is not its own."""
        if self._tool >= 0:
            self._end_events()
            MONITORING.free_tool_id(self._tool)
            self._tool = -1
        self._on = False
        self._waiting.clear()
        self._lock = allocate_lock()  # the writing thread of the parent may have held it

    def _end_events(self) -> None:
        MONITORING.set_events(self._tool, 0)
        for watched in self._watched.values():
            if watched is not None:
                MONITORING.set_local_events(self._tool, watched.code, 0)

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """What goes wrong in a callback would be raised in the program: it ends the recording of lines instead."""

        def guarded(*event: Any) -> Any:
            try:
                return call(*event)
            except Exception as error:
                self._why = f"stopped by an error: {error!r}"
                self._end_events()
                return None

        return guarded

    def _entered(self, code: CodeType, offset: int, depth: int = 2) -> Any:
        watched = self._watch(code)
        if watched is None or not watched.left:
            return MONITORING.DISABLE
        now = monotonic_ns()
        watched.events += 1
        if watched.events >= CHECK_AFTER and self._cool(watched, now) and not watched.left:
            return MONITORING.DISABLE  # its return will not be told either
        thread = self._thread()
        self._push(thread, watched, sys._getframe(depth).f_lineno or NO_LINE)
        self._run(thread, thread.stack[-1].current, now)
        return None

    def _thrown(self, code: CodeType, offset: int, error: BaseException) -> None:
        if self._watched.get(id(code)) is not None:
            self._entered(code, offset, 3)

    def _left(self, code: CodeType, offset: int, value: object) -> None:
        if self._watched.get(id(code)) is None:
            return
        now = monotonic_ns()
        thread = self._thread()
        stack = thread.stack
        if stack and stack[-1].watched.code is code:
            stack.pop()
            self._run(thread, stack[-1].current if stack else -1, now)
        else:
            self._rebuild(thread, sys._getframe(2).f_back, now)

    def _line(self, code: CodeType, line: int) -> None:
        # The one that runs most: written out, without calls of our own.
        now = monotonic_ns()
        thread = self._threads.get(get_ident()) or self._thread()
        stack = thread.stack
        if not stack or stack[-1].watched.code is not code:
            self._rebuild(thread, sys._getframe(2), now)
            if not stack:
                return
        entry = stack[-1]
        watched = entry.watched
        watched.events += 1
        if watched.events >= CHECK_AFTER and self._cool(watched, now):
            line = NO_LINE
        frame = entry.ids.get(line)
        if frame is None:
            frame = self._frame(entry, line)
        entry.line = entry.current = frame
        last = thread.frame
        if last == frame:
            return
        if last >= 0:
            if self.saw >= LIMIT:
                self.dropped += 1
                return
            self.saw += 1
            self._keep(pack(thread.since, now - thread.since, thread.native, last))
        thread.frame = frame
        thread.since = now

    def _call(self, code: CodeType, offset: int, called: object, first: object) -> Any:
        kind = type(called)
        if kind is FunctionType or (kind is MethodType and type(called.__func__) is FunctionType):  # type: ignore[attr-defined]
            return None
        if kind is BuiltinMethodType and called.__name__ in _DATES:  # type: ignore[attr-defined]
            self._date(called)
        now = monotonic_ns()
        thread = self._thread()
        stack = thread.stack
        if not stack or stack[-1].watched.code is not code:
            return None
        entry = stack[-1]
        watched = entry.watched
        watched.events += 1
        if watched.left < 2:
            return None
        if watched.columns is None:
            watched.columns = list(code.co_positions())
        line, last, start, end = watched.columns[offset // 2]
        if line is None or line != last or start is None or end is None:
            return None
        entry.current = self._frame(entry, line, start + 1, end + 1)
        self._run(thread, entry.current, now)
        return None

    def _date(self, called: Any) -> None:
        """`datetime.now()` is a clock, too, and belongs to a C class: nothing of it can be replaced."""
        tell = getattr(self._session, "on_date", None)
        if tell is not None and isinstance(called.__self__, type) and issubclass(called.__self__, datetime):
            tell(sys._getframe(3))

    def _returned(self, code: CodeType, offset: int, called: object, first: object) -> None:
        thread = self._thread()
        stack = thread.stack
        if stack and stack[-1].watched.code is code and stack[-1].current != stack[-1].line:
            stack[-1].current = stack[-1].line
            self._run(thread, stack[-1].line, monotonic_ns())
