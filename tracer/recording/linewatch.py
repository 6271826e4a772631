"""Tells of every line of the user's own code just before it runs (Python 3.12 and newer).

- Library code is looked at once a function and never again, so it costs nothing.
- A line that cannot launch anything (`return x`, `a = b`, `for i in range(n)`) is
  told once at most: the caller answers with DISABLE for a line that is not among
  the `launching` ones of its code.
- A line that calls into user code goes on after the callee returned; without a
  word then, the rest of the line would count for the callee's last line. So a
  return to user code is told too, with the line that goes on, and a return to code
  that is nobody's, such as autograd's threads.
- Frames that are already running when the watch starts are found and watched.
- What torch.compile makes of a function still bears the function's name and file; its
  lines are none of the user's, so the line that calls it stands for it.
- `<string>` is also what dataclasses and named tuples are made of: it is the user's
  own only in the main module (`python -c`), and not in a child of multiprocessing.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

AVAILABLE = sys.version_info >= (3, 12)
_monitoring: Any = getattr(sys, "monitoring", None)
DISABLE: Any = _monitoring.DISABLE if AVAILABLE else None

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
_LOOP = _QUIET | {"PRECALL", "CALL", "GET_ITER", "FOR_ITER"}
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")


def launching_lines(code: CodeType) -> set[int]:
    """The lines of a piece of code that may launch work."""
    by_line: dict[int, list[dis.Instruction]] = {}
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line = instruction.positions.lineno
        by_line.setdefault(line, []).append(instruction)
    return {line for line, instructions in by_line.items() if not _is_quiet(instructions)}


def _is_quiet(instructions: list[dis.Instruction]) -> bool:
    names = {instruction.opname for instruction in instructions}
    if names <= _QUIET:
        return True
    called = [instruction.argval for instruction in instructions if instruction.opname in _GLOBALS]
    return names <= _LOOP and called[:1] == ["range"]  # a loop over numbers


class LineWatch:
    """Calls `on_line(code, line)` and `on_return(code or None, line)` until stopped."""

    def __init__(
        self,
        is_user_file: Callable[[str], bool],
        on_line: Callable[[CodeType, int], object],
        on_return: Callable[[CodeType | None, int], object],
        on_raise: Callable[[BaseException], object] | None = None,
    ) -> None:
        self.launching: dict[int, set[int]] = {}  # id of a watched code -> its lines that may launch
        self._is_user_file = is_user_file
        self._on_line = on_line
        self._on_return = on_return
        self._on_raise = on_raise
        self._watched: dict[int, CodeType] = {}
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
        register(self._tool, events.LINE, self._on_line)
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
                self._watch(at)
                at = at.f_back
        return True

    def hear(self, on_line: Callable[[CodeType, int], object]) -> None:
        """Call another function for lines from now on."""
        self._on_line = on_line
        if self._tool >= 0:
            _monitoring.register_callback(self._tool, _monitoring.events.LINE, on_line)

    def stop(self) -> None:
        """End, and give the tool id back."""
        if self._tool < 0:
            return
        monitoring = _monitoring
        monitoring.set_events(self._tool, 0)
        for code in self._watched.values():
            monitoring.set_local_events(self._tool, code, 0)
        for event in ("LINE", "PY_START", "PY_RESUME", "PY_RETURN", "PY_YIELD", "RAISE"):
            monitoring.register_callback(self._tool, getattr(monitoring.events, event), None)
        monitoring.free_tool_id(self._tool)
        self._tool = -1

    def _watch(self, frame: FrameType) -> None:
        code = frame.f_code
        if id(code) in self._watched or not is_user_frame(self._is_user_file, frame):
            return
        self.launching[id(code)] = launching_lines(code)
        self._watched[id(code)] = code  # kept, so that its id stays its own
        events = _monitoring.events
        _monitoring.set_local_events(self._tool, code, events.LINE | events.PY_RETURN | events.PY_YIELD)

    def _entered(self, code: CodeType, offset: int) -> Any:
        self._watch(sys._getframe(1))
        return DISABLE  # asked once for each function

    def _left(self, code: CodeType, offset: int, value: object) -> None:
        frame: FrameType | None = sys._getframe(1).f_back
        while frame is not None:
            if id(frame.f_code) in self._watched:
                self._on_return(frame.f_code, frame.f_lineno)
                return
            frame = frame.f_back
        self._on_return(None, 0)

    def _raised(self, code: CodeType, offset: int, error: BaseException) -> None:
        self._on_raise(error)  # type: ignore[misc]


def is_user_frame(is_user_file: Callable[[str], bool], frame: FrameType) -> bool:
    """Whether a frame runs the user's own code."""
    code = frame.f_code
    if not is_user_file(code.co_filename) or (code.co_names and is_compiled(code)):
        return False
    if code.co_filename != "<string>":
        return True
    return frame.f_globals.get("__name__") == "__main__" and "spawn_main" not in code.co_names


def is_compiled(code: CodeType) -> bool:
    """Whether torch.compile made this code: it calls a compiled graph by its name."""
    return any(name.startswith("__compiled_fn") for name in code.co_names)


def user_stack(is_user_file: Callable[[str], bool], frame: FrameType | None, limit: int = 16) -> list[FrameType]:
    """The user's own frames, innermost first."""
    found: list[FrameType] = []
    while frame is not None and len(found) < limit:
        if is_user_frame(is_user_file, frame):
            found.append(frame)
        frame = frame.f_back
    return found
