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
- Other tools keep working: an id of our own, no `restart_events`.
"""

from __future__ import annotations

import struct
import sys
import threading
from _thread import allocate_lock, get_ident, get_native_id
from collections import deque
from time import monotonic_ns
from types import CodeType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from tracer.recording.stacks import FrameTable

if TYPE_CHECKING:
    from tracer.recording.session import Session

AVAILABLE = sys.version_info >= (3, 12)
_monitoring: Any = getattr(sys, "monitoring", None)
_CHECK_AFTER = 2048  # events of a function after which its rate is looked at
_HOTTEST = 100_000  # events a second
_LIMIT = 3_000_000  # runs of a window
_NO_LINE = -1
_PACKED = struct.Struct("qqqq")  # start, duration, thread, frame
_pack = _PACKED.pack
_AT_ONCE = 500  # rows; fewer than make the garbage collector look


class _Watched:
    """A code object of the user's, with its rate and columns."""

    __slots__ = ("code", "columns", "events", "left", "since")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.columns: list[tuple[int | None, ...]] | None = None
        self.events = 0
        self.since = 0
        self.left = 2  # 2: lines, calls and entries are watched; 1: entries; 0: nothing


class _Entry:
    """A running function of the user's on a thread's stack."""

    __slots__ = ("current", "ids", "line", "parent", "watched")

    def __init__(self, watched: _Watched, parent: int, ids: dict[Any, int]) -> None:
        self.watched = watched
        self.parent = parent  # the frame that called
        self.ids = ids  # line, or (line, column, end column) -> frame
        self.line = -1  # the frame of its line
        self.current = -1  # the frame of its line, or of the call in it


class _Thread:
    """What a thread is doing: a run of a frame since some time."""

    __slots__ = ("frame", "native", "since", "stack")

    def __init__(self, native: int) -> None:
        self.native = native
        self.stack: list[_Entry] = []
        self.frame = -1
        self.since = 0


class Recorder:
    """Writes runs of lines while the window is open."""

    NAME = "lines"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._on = session.record.lines and AVAILABLE
        self._why = ""
        if not session.record.lines:
            self._why = "switched off"
        elif not AVAILABLE:
            self._why = "needs Python 3.12 or newer"
        self._tool = -1
        self._watched: dict[int, _Watched | None] = {}  # by id of the code; None: not the user's
        self._kept: list[CodeType] = []  # so that no id is used again
        self._tables: dict[tuple[int, int], dict[Any, int]] = {}
        self._threads: dict[int, _Thread] = {}
        self._waiting: deque[bytes] = deque()
        self._keep = self._waiting.append
        self._lock = allocate_lock()
        self.saw = self.dropped = 0

    def arm(self) -> None:
        """Nothing is watched before the window."""

    def open(self) -> None:
        """Watch from now on, what runs already included."""
        if not self._on:
            return
        monitoring = _monitoring
        self._tool = next((tool for tool in (4, 3, 5, 0) if monitoring.get_tool(tool) is None), -1)
        if self._tool < 0:
            self._on, self._why = False, "all ids of sys.monitoring are taken by other tools"
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
            monitoring.register_callback(self._tool, event, call)
        self._inside = events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        self._fully = self._inside | events.LINE | events.CALL
        now = monotonic_ns()
        known = {thread.ident: thread.native_id or -1 for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            thread = self._threads[ident] = _Thread(known.get(ident, -1))
            self._rebuild(thread, frame, now)
        monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME | events.PY_THROW | events.PY_UNWIND)

    def close(self) -> dict[str, Any]:
        """Watch no more; what was seen, and which functions were too busy to be watched."""
        if self._tool >= 0:
            monitoring = _monitoring
            monitoring.set_events(self._tool, 0)
            for watched in self._watched.values():
                if watched is not None:
                    monitoring.set_local_events(self._tool, watched.code, 0)
            monitoring.free_tool_id(self._tool)
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
        waiting, unpack = self._waiting, _PACKED.unpack
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
            _monitoring.set_events(self._tool, 0)
            _monitoring.free_tool_id(self._tool)
            self._tool = -1
        self._on = False

    # --- what is watched --------------------------------------------------------------------------------------

    def _watch(self, code: CodeType) -> _Watched | None:
        """The record of a user's code object, None for any other."""
        known = self._watched.get(id(code), False)
        if known is not False:
            return known  # type: ignore[return-value]
        self._kept.append(code)
        watched = None
        if self._session.is_user_file(code.co_filename) and not _of_torch_compile(code):
            watched = _Watched(code)
            watched.since = monotonic_ns()
            _monitoring.set_local_events(self._tool, code, self._fully)
        self._watched[id(code)] = watched
        return watched

    def _cool(self, watched: _Watched, now: int) -> bool:
        """Whether a function is too busy; it is then watched less."""
        took = now - watched.since
        watched.since, events, watched.events = now, watched.events, 0
        if events * 1_000_000_000 < _HOTTEST * took:
            return False
        # At first lines and calls are given up, then its entries too.
        watched.left -= 1
        _monitoring.set_local_events(self._tool, watched.code, self._inside if watched.left else 0)
        return True

    # --- a thread's run ---------------------------------------------------------------------------------------

    def _thread(self) -> _Thread:
        ident = get_ident()
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads[ident] = _Thread(get_native_id())
            self._name(ident, thread.native)
        return thread

    def _name(self, ident: int, native: int) -> None:
        """Note a thread's name while it lives: it may be gone when the window closes."""
        found = threading._active.get(ident)  # type: ignore[attr-defined]  # current_thread() would make one up
        threads = self._session.manifest.setdefault("threads", [])
        if found is not None and not any(one.get("native_id") == native for one in threads):
            threads.append({"ident": ident, "native_id": native, "name": found.name})

    def _run(self, thread: _Thread, frame: int, now: int) -> None:
        """The thread is in this frame from now on; what ran before is written."""
        if thread.frame == frame:
            return
        if thread.frame >= 0 and now > thread.since:
            if self.saw < _LIMIT:
                self.saw += 1
                self._keep(_pack(thread.since, now - thread.since, thread.native, thread.frame))
            else:
                self.dropped += 1
        thread.frame, thread.since = frame, now

    def _rebuild(self, thread: _Thread, frame: FrameType | None, now: int) -> None:
        """Set a thread's stack from its frames."""
        running: list[tuple[_Watched, int]] = []
        while frame is not None:
            watched = self._watch(frame.f_code)
            if watched is not None and watched.left:
                running.append((watched, frame.f_lineno or _NO_LINE))
            frame = frame.f_back
        thread.stack.clear()
        for watched, line in reversed(running):
            self._push(thread, watched, line)
        self._run(thread, thread.stack[-1].current if thread.stack else -1, now)

    def _push(self, thread: _Thread, watched: _Watched, line: int) -> None:
        parent = -1
        if thread.stack:
            parent = thread.stack[-1].current
        else:
            # Thread numbers are given out again; this is where a thread begins.
            thread.native = thread.native if thread.native > 0 and thread.frame >= 0 else self._native(thread)
        key = (parent, id(watched.code))
        ids = self._tables.get(key)
        if ids is None:
            ids = self._tables[key] = {}
        entry = _Entry(watched, parent, ids)
        entry.line = entry.current = self._frame(entry, line if watched.left == 2 else _NO_LINE)
        thread.stack.append(entry)

    def _native(self, thread: _Thread) -> int:
        return get_native_id() if self._threads.get(get_ident()) is thread else thread.native

    def _frame(self, entry: _Entry, line: int, column: int = -1, end_column: int = -1) -> int:
        key = line if column < 0 else (line, column, end_column)
        known = entry.ids.get(key)
        if known is None:
            code = entry.watched.code
            known = entry.ids[key] = self._frames.frame(
                entry.parent, code.co_filename, line, code.co_qualname, column, end_column
            )
        return known

    # --- events -----------------------------------------------------------------------------------------------

    def _entered(self, code: CodeType, offset: int) -> Any:
        watched = self._watch(code)
        if watched is None or not watched.left:
            return _monitoring.DISABLE
        now = monotonic_ns()
        watched.events += 1
        if watched.events >= _CHECK_AFTER and self._cool(watched, now) and not watched.left:
            return _monitoring.DISABLE  # its return will not be told either
        thread = self._thread()
        self._push(thread, watched, sys._getframe(1).f_lineno or _NO_LINE)
        self._run(thread, thread.stack[-1].current, now)
        return None

    def _thrown(self, code: CodeType, offset: int, error: BaseException) -> None:
        if self._watched.get(id(code)) is not None:
            self._entered(code, offset)

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
            self._rebuild(thread, sys._getframe(1).f_back, now)

    def _line(self, code: CodeType, line: int) -> None:
        # The one that runs most: written out, without calls of our own.
        now = monotonic_ns()
        thread = self._threads.get(get_ident()) or self._thread()
        stack = thread.stack
        if not stack or stack[-1].watched.code is not code:
            self._rebuild(thread, sys._getframe(1), now)
            if not stack:
                return
        entry = stack[-1]
        watched = entry.watched
        watched.events += 1
        if watched.events >= _CHECK_AFTER and self._cool(watched, now):
            line = _NO_LINE
        frame = entry.ids.get(line)
        if frame is None:
            frame = self._frame(entry, line)
        entry.line = entry.current = frame
        last = thread.frame
        if last == frame:
            return
        if last >= 0:
            if self.saw >= _LIMIT:
                self.dropped += 1
                return
            self.saw += 1
            self._keep(_pack(thread.since, now - thread.since, thread.native, last))
        thread.frame = frame
        thread.since = now

    def _call(self, code: CodeType, offset: int, called: object, first: object) -> Any:
        kind = type(called)
        if kind is FunctionType or (kind is MethodType and type(called.__func__) is FunctionType):  # type: ignore[attr-defined]
            return None
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

    def _returned(self, code: CodeType, offset: int, called: object, first: object) -> None:
        thread = self._thread()
        stack = thread.stack
        if stack and stack[-1].watched.code is code and stack[-1].current != stack[-1].line:
            stack[-1].current = stack[-1].line
            self._run(thread, stack[-1].line, monotonic_ns())


def _of_torch_compile(code: CodeType) -> bool:
    """Whether torch.compile made this code object; it carries the user's file name."""
    if code.co_name.startswith("torch_dynamo_resume_in"):
        return True
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    made = getattr(dynamo, "output_codes", None)
    return made is not None and code in made
