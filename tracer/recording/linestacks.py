"""What each thread runs of the user's code: stacks of functions, kept up by the events of the interpreter."""

from __future__ import annotations

import struct
import sys
import threading
from _thread import get_ident, get_native_id
from collections import deque
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from tracer.recording.realtime import monotonic_ns
from tracer.recording.stacks import FrameTable

if TYPE_CHECKING:
    from tracer.recording.session import Session

MONITORING: Any = getattr(sys, "monitoring", None)  # Python 3.12 and newer
CHECK_AFTER = 2048  # events of a function after which its rate is looked at
_HOTTEST = 100_000  # events a second
LIMIT = 3_000_000  # runs of a window
NO_LINE = -1
PACKED = struct.Struct("qqqq")  # start, duration, thread, frame
pack = PACKED.pack


class Watched:
    """A code object of the user's, with its rate and columns."""

    __slots__ = ("code", "columns", "events", "left", "since")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.columns: list[tuple[int | None, ...]] | None = None
        self.events = 0
        self.since = 0
        self.left = 2  # 2: lines, calls and entries are watched; 1: entries; 0: nothing


class Entry:
    """A running function of the user's on a thread's stack."""

    __slots__ = ("current", "ids", "line", "parent", "watched")

    def __init__(self, watched: Watched, parent: int, ids: dict[Any, int]) -> None:
        self.watched = watched
        self.parent = parent  # the frame that called
        self.ids = ids  # line, or (line, column, end column) -> frame
        self.line = -1  # the frame of its line
        self.current = -1  # the frame of its line, or of the call in it


class Thread:
    """What a thread is doing: a run of a frame since some time."""

    __slots__ = ("frame", "native", "since", "stack")

    def __init__(self, native: int) -> None:
        self.native = native
        self.stack: list[Entry] = []
        self.frame = -1
        self.since = 0


class LineStacks:
    """The threads, and which code is watched. A run of a line is kept until it is written."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tool = -1
        self._watched: dict[int, Watched | None] = {}  # by id of the code; None: not the user's
        self._kept: list[CodeType] = []  # so that no id is used again
        self._tables: dict[tuple[int, int], dict[Any, int]] = {}
        self._threads: dict[int, Thread] = {}
        self._waiting: deque[bytes] = deque()
        self._keep = self._waiting.append
        self._frames: FrameTable
        self._inside = self._fully = 0  # events of a function that is watched for entries only, and wholly
        self.saw = self.dropped = 0

    def _watch(self, code: CodeType) -> Watched | None:
        """The record of a user's code object, None for any other."""
        known = self._watched.get(id(code), False)
        if known is not False:
            return known  # type: ignore[return-value]
        self._kept.append(code)
        watched = None
        if self._session.is_user_file(code.co_filename) and not _of_torch_compile(code):
            watched = Watched(code)
            watched.since = monotonic_ns()
            MONITORING.set_local_events(self._tool, code, self._fully)
        self._watched[id(code)] = watched
        return watched

    def _cool(self, watched: Watched, now: int) -> bool:
        """Whether a function is too busy; it is then watched less."""
        took = now - watched.since
        watched.since, events, watched.events = now, watched.events, 0
        if events * 1_000_000_000 < _HOTTEST * took:
            return False
        # At first lines and calls are given up, then its entries too.
        watched.left -= 1
        MONITORING.set_local_events(self._tool, watched.code, self._inside if watched.left else 0)
        return True

    def _thread(self) -> Thread:
        ident = get_ident()
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads[ident] = Thread(get_native_id())
            self._name(ident, thread.native)
        return thread

    def _name(self, ident: int, native: int) -> None:
        """Note a thread's name while it lives: it may be gone when the window closes."""
        found = threading._active.get(ident)  # type: ignore[attr-defined]  # current_thread() would make one up
        threads = self._session.manifest.setdefault("threads", [])
        if found is not None and not any(one.get("native_id") == native for one in threads):
            threads.append({"ident": ident, "native_id": native, "name": found.name})

    def _run(self, thread: Thread, frame: int, now: int) -> None:
        """The thread is in this frame from now on; what ran before is written."""
        if thread.frame == frame:
            return
        if thread.frame >= 0 and now > thread.since:
            if self.saw < LIMIT:
                self.saw += 1
                self._keep(pack(thread.since, now - thread.since, thread.native, thread.frame))
            else:
                self.dropped += 1
        thread.frame, thread.since = frame, now

    def _rebuild(self, thread: Thread, frame: FrameType | None, now: int) -> None:
        """Set a thread's stack from its frames."""
        running: list[tuple[Watched, int]] = []
        while frame is not None:
            watched = self._watch(frame.f_code)
            if watched is not None and watched.left:
                running.append((watched, frame.f_lineno or NO_LINE))
            frame = frame.f_back
        thread.stack.clear()
        for watched, line in reversed(running):
            self._push(thread, watched, line)
        self._run(thread, thread.stack[-1].current if thread.stack else -1, now)

    def _push(self, thread: Thread, watched: Watched, line: int) -> None:
        parent = -1
        if thread.stack:
            parent = thread.stack[-1].current
        else:
            self._begin(thread)
        key = (parent, id(watched.code))
        ids = self._tables.get(key)
        if ids is None:
            ids = self._tables[key] = {}
        entry = Entry(watched, parent, ids)
        entry.line = entry.current = self._frame(entry, line if watched.left == 2 else NO_LINE)
        thread.stack.append(entry)

    def _begin(self, thread: Thread) -> None:
        """Python gives the numbers of its threads out again: where one begins, ask who it is."""
        ident, native = get_ident(), get_native_id()
        if self._threads.get(ident) is thread and thread.native != native:
            thread.native = native
            self._name(ident, native)

    def _frame(self, entry: Entry, line: int, column: int = -1, end_column: int = -1) -> int:
        key = line if column < 0 else (line, column, end_column)
        known = entry.ids.get(key)
        if known is None:
            code = entry.watched.code
            known = entry.ids[key] = self._frames.frame(
                entry.parent, code.co_filename, line, code.co_qualname, column, end_column
            )
        return known


def _of_torch_compile(code: CodeType) -> bool:
    """Whether torch.compile made this code object; it carries the user's file name."""
    if code.co_name.startswith("torch_dynamo_resume_in"):
        return True
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    made = getattr(dynamo, "output_codes", None)
    return made is not None and code in made
