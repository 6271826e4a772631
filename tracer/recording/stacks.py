"""Python stacks caught now for a microsecond, and turned into frames later.

torch keeps the code objects and positions; names and lines are looked up when the rows
are written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracer.recording.store import Sink

OWN = str(Path(__file__).resolve().parent)


def catch() -> Any:
    """The stack of this thread, without a look at names."""
    return _gather()(True, False, False)  # Python, no TorchScript, no C++


@cache
def _gather() -> Callable[[bool, bool, bool], Any]:
    gather: Callable[[bool, bool, bool], Any] = sys.modules["torch"]._C._profiler.gather_traceback
    return gather


def symbolize(caught: list[Any]) -> list[list[tuple[str, int, str]]]:
    """(file, line, function) of each frame, innermost first, without frames of this package."""
    stacks = sys.modules["torch"]._C._profiler.symbolize_tracebacks(caught)
    return [
        [(f["filename"], f["line"], f["name"]) for f in stack if not f["filename"].startswith(OWN)] for stack in stacks
    ]


class FrameTable:
    """Gives frames their numbers, and writes each once: callers before callees."""

    def __init__(self, add: Callable[[list[Any]], None]) -> None:
        self._add = add
        self._ids: dict[tuple[Any, ...], int] = {}

    @classmethod
    def of(cls, sink: Sink) -> FrameTable:
        """A table whose rows go to a chunk file."""
        return cls(lambda row: sink.add(row))

    def frame(self, parent: int, file: str, line: int, function: str, column: int = -1, end_column: int = -1) -> int:
        """The number of a frame below its caller."""
        key = (parent, file, line, function, column, end_column)
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = len(self._ids)
            self._add(["frame", known, parent, file, line, function, column, end_column])
        return known

    def stack(self, frames: list[tuple[str, int, str]]) -> int:
        """The number of a stack's innermost frame, -1 for an empty stack."""
        leaf = -1
        for file, line, function in reversed(frames):
            leaf = self.frame(leaf, file, line, function)
        return leaf
