"""Tells of every line of the user's own code just before it runs (Python 3.12 and newer).

- Library code is looked at once a function and never again, so it costs nothing.
- A line that cannot launch anything (`return x`, `else`, `a = b`) is told once at most.
- A line that calls into user code goes on after the callee returned; without a
  word then, the rest of the line would count for the callee's last line. So a
  return to user code is told too, with the line that goes on.
- Frames that are already running when the watch starts are found and watched.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

AVAILABLE = sys.version_info >= (3, 12)
_monitoring: Any = getattr(sys, "monitoring", None)

# Instructions that call nothing of the user's and nothing of a library: no work can come of them.
_NAMES = """
RESUME NOP CACHE COPY SWAP POP_TOP PUSH_NULL EXTENDED_ARG COPY_FREE_VARS MAKE_CELL MAKE_FUNCTION RETURN_GENERATOR
LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_BORROW_LOAD_FAST_BORROW
STORE_FAST STORE_FAST_STORE_FAST STORE_FAST_LOAD_FAST LOAD_CONST LOAD_CONST_IMMORTAL LOAD_CONST_MORTAL LOAD_SMALL_INT
LOAD_GLOBAL LOAD_NAME LOAD_DEREF LOAD_CLOSURE STORE_NAME STORE_GLOBAL STORE_DEREF BUILD_TUPLE BUILD_LIST BUILD_MAP
JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE IS_OP NOT_TAKEN
RETURN_VALUE RETURN_CONST END_FOR POP_ITER POP_EXCEPT SET_FUNCTION_ATTRIBUTE
"""
_QUIET = frozenset(_NAMES.split())


def launching_lines(code: CodeType) -> set[int]:
    """The lines of a piece of code that may launch work."""
    found = set()
    line: int | None = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line = instruction.positions.lineno
        if line is not None and instruction.opname not in _QUIET:
            found.add(line)
    return found


class LineWatch:
    """Calls `on_line(code, line)` and `on_return(code, line)` until stopped."""

    def __init__(
        self,
        is_user_file: Callable[[str], bool],
        on_line: Callable[[CodeType, int], object],
        on_return: Callable[[CodeType, int], object],
        on_raise: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._is_user_file = is_user_file
        self._on_line = on_line
        self._on_return = on_return
        self._on_raise = on_raise
        self._watched: dict[int, CodeType] = {}
        self._loud: dict[int, set[int]] = {}
        self._tool = -1

    def start(self) -> bool:
        """Begin; False if the interpreter is too old or every tool id is taken."""
        if not AVAILABLE:
            return False
        monitoring, events = _monitoring, _monitoring.events
        self._tool = next((tool for tool in (4, 3, 0) if monitoring.get_tool(tool) is None), -1)
        if self._tool < 0:
            return False
        monitoring.use_tool_id(self._tool, "tracer marks")
        register = monitoring.register_callback
        register(self._tool, events.LINE, self._line)
        register(self._tool, events.PY_START, self._entered)
        register(self._tool, events.PY_RESUME, self._entered)
        register(self._tool, events.PY_RETURN, self._left)
        register(self._tool, events.PY_YIELD, self._left)
        wanted = events.PY_START | events.PY_RESUME
        if self._on_raise is not None:
            register(self._tool, events.RAISE, self._raised)
            wanted |= events.RAISE
        monitoring.set_events(self._tool, wanted)
        for frame in sys._current_frames().values():
            at: FrameType | None = frame
            while at is not None:
                self._watch(at.f_code)
                at = at.f_back
        return True

    def stop(self) -> None:
        """End, and give the tool id back."""
        if self._tool < 0:
            return
        monitoring = _monitoring
        monitoring.set_events(self._tool, 0)
        for code in self._watched.values():
            monitoring.set_local_events(self._tool, code, 0)
        monitoring.free_tool_id(self._tool)
        self._tool = -1

    def _line(self, code: CodeType, line: int) -> Any:
        if line in self._loud[id(code)]:
            self._on_line(code, line)
            return None
        return _monitoring.DISABLE

    def _watch(self, code: CodeType) -> bool:
        if id(code) in self._watched:
            return True
        if not self._is_user_file(code.co_filename):
            return False
        events = _monitoring.events
        self._watched[id(code)] = code  # kept, so that its id stays its own
        self._loud[id(code)] = launching_lines(code)
        _monitoring.set_local_events(self._tool, code, events.LINE | events.PY_RETURN | events.PY_YIELD)
        return True

    def _entered(self, code: CodeType, offset: int) -> Any:
        self._watch(code)
        return _monitoring.DISABLE  # asked once for each function

    def _left(self, code: CodeType, offset: int, value: object) -> None:
        frame: FrameType | None = sys._getframe(1).f_back
        while frame is not None:
            if id(frame.f_code) in self._watched:
                self._on_return(frame.f_code, frame.f_lineno)
                return
            frame = frame.f_back

    def _raised(self, code: CodeType, offset: int, error: BaseException) -> None:
        self._on_raise(error)  # type: ignore[misc]
