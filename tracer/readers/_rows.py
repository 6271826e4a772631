"""The rows of a recording's chunk files, typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tracer.chunks import read_chunks


class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """One row: its word, then its fields."""


class FrameRow(Row, tag="frame"):
    """A place in a stack, called by `parent`; ids count from 0 in each file."""

    id: int
    parent: int
    file: str
    line: int
    function: str
    column: int
    end_column: int


class StepRow(Row, tag="step"):
    """A boundary: step `number` begins; -1: no step does."""

    mono_ns: int
    number: int
    thread: int
    in_window: bool


class SyncRow(Row, tag="sync"):
    """A synchronisation that was caught; a start of -1 is not known."""

    start_ns: int
    end_ns: int
    thread: int
    frame: int
    what: str


class LineRow(Row, tag="line"):
    """A run of one line of the user's code."""

    start_ns: int
    dur_ns: int
    thread: int
    frame: int


class ReadRow(Row, tag="read"):
    """A clock that the program read."""

    mono_ns: int
    thread: int
    clock: str
    value_ns: int
    frame: int


class ElapsedRow(Row, tag="elapsed"):
    """A pair of CUDA events that the program asked."""

    mono_ns: int
    thread: int
    claimed_ns: int
    start_ns: int
    end_ns: int
    start_stream: int
    end_stream: int
    frame: int


class CounterRow(Row, tag="counter"):
    """A value at a moment."""

    mono_ns: int
    name: str
    device: int
    value: float


class SampleRow(Row, tag="sample"):
    """A stack of one thread at a moment."""

    mono_ns: int
    thread: int
    frame: int
    weight_ns: int


class BeaconRow(Row, tag="beacon"):
    """A call whose entry and exit py-spy's samples show, too."""

    name: str
    entry_ns: int
    exit_ns: int


AnyRow = FrameRow | StepRow | SyncRow | LineRow | ReadRow | ElapsedRow | CounterRow | SampleRow | BeaconRow
_T = TypeVar("_T", bound=Row)


class Rows:
    """What one file holds."""

    def __init__(self, path: Path) -> None:
        found, self.lost_bytes = read_chunks(path) if path.is_file() else ([], 0)
        self.wrong = 0  # rows that are not as they should be
        self._rows = self._typed(found)

    def of(self, kind: type[_T]) -> list[_T]:
        """The rows of one kind."""
        return [row for row in self._rows if type(row) is kind]

    def _typed(self, found: list[Any]) -> list[Row]:
        try:
            rows: list[Row] = msgspec.convert(found, list[AnyRow])
            return rows
        except msgspec.ValidationError:
            return [row for row in map(self._typed_one, found) if row is not None]

    def _typed_one(self, row: Any) -> Row | None:
        try:
            typed: Row = msgspec.convert(row, AnyRow)
            return typed
        except msgspec.ValidationError:
            self.wrong += 1
        return None
