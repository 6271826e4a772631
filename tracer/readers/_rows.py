"""The rows of a recording's chunk files, typed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from tracer.chunks import read_chunks

Ns = Annotated[int, msgspec.Meta(ge=-(2**61), le=2**61)]  # sums of two fit into 64 bits
Id = Annotated[int, msgspec.Meta(ge=-1, lt=2**31)]
Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """One row: its word, then its fields."""


class FrameRow(Row, tag="frame"):
    """A place in a stack, called by `parent`; ids count from 0 in each file."""

    id: Id
    parent: Id
    file: str
    line: Id
    function: str
    column: Id
    end_column: Id


class StepRow(Row, tag="step"):
    """A boundary: step `number` begins; -1: no step does."""

    mono_ns: Ns
    number: Number
    thread: Number
    in_window: bool


class SyncRow(Row, tag="sync"):
    """A synchronisation that was caught; a start of -1 is not known."""

    start_ns: Ns
    end_ns: Ns
    thread: Number
    frame: Id
    what: str


class LineRow(Row, tag="line"):
    """A run of one line of the user's code."""

    start_ns: Ns
    dur_ns: Ns
    thread: Number
    frame: Id


class ReadRow(Row, tag="read"):
    """A clock that the program read."""

    mono_ns: Ns
    thread: Number
    clock: str
    value_ns: Ns
    frame: Id


class ElapsedRow(Row, tag="elapsed"):
    """A pair of CUDA events that the program asked."""

    mono_ns: Ns
    thread: Number
    claimed_ns: Ns
    start_ns: Ns
    end_ns: Ns
    start_stream: Number
    end_stream: Number
    frame: Id


class CounterRow(Row, tag="counter"):
    """A value at a moment."""

    mono_ns: Ns
    name: str
    device: Id
    value: float


class SampleRow(Row, tag="sample"):
    """A stack of one thread at a moment."""

    mono_ns: Ns
    thread: Number
    frame: Id
    weight_ns: Ns


class PauseRow(Row, tag="pause"):
    """A stretch in which a thread did something for Python itself: a garbage collection."""

    start_ns: Ns
    dur_ns: Ns
    thread: Number
    what: str


class BeaconRow(Row, tag="beacon"):
    """A call whose entry and exit py-spy's samples show, too."""

    name: str
    entry_ns: Ns
    exit_ns: Ns


AnyRow = FrameRow | StepRow | SyncRow | LineRow | ReadRow | ElapsedRow | CounterRow | SampleRow | BeaconRow | PauseRow
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
