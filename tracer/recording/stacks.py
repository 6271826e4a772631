"""Python stacks caught now for a microsecond, and turned into frames later.

torch keeps the code objects and positions; names and lines are looked up when the rows
are written.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
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
    with _without_compiler():
        stacks = sys.modules["torch"]._C._profiler.symbolize_tracebacks(caught)
    return [
        [(f["filename"], f["line"], f["name"]) for f in stack if not f["filename"].startswith(OWN)] for stack in stacks
    ]


class _NoCompiler(ModuleType):
    """Stands for torch._inductor to one thread: a compiler without generated code. All others get the real one."""

    def __init__(self) -> None:
        super().__init__("torch._inductor")
        self._thread = get_ident()

    def __getattr__(self, name: str) -> Any:
        if name == "codecache" and get_ident() == self._thread:
            raise AttributeError(name)
        return getattr(importlib.import_module("torch._inductor"), name)


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """Look names up without the compiler where the program has not loaded it.

    torch asks it for the lines of generated code, and would import all of it for that:
    a second of the program's time, and 800 modules that the program did not ask for.
    """
    torch: Any = sys.modules["torch"]
    if "torch._inductor" in sys.modules:
        yield
        return
    stub = _NoCompiler()
    torch.__dict__["_inductor"] = stub
    try:
        yield
    finally:
        if torch.__dict__.get("_inductor") is stub:
            del torch.__dict__["_inductor"]


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
