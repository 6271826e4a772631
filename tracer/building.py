"""Collects columns from a reader and makes them a Trace: sorted, numbered, nested."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from tracer.trace import NONE, Ids, Ints, Kind, Loss, Spans, Table, Trace, Track

_HOLDS = (Kind.OP, Kind.MARK, Kind.PYTHON)  # kinds of span that can be a parent
_HELD = (Kind.OP, Kind.CALL, Kind.MARK, Kind.PYTHON)


class TraceBuilder:
    """Gives out ids for names, tracks and frames, takes columns of spans, and builds the Trace.

    A reader of a large file asks once for a name's or track's id and keeps it.
    """

    def __init__(self, origin_unix_ns: int = 0) -> None:
        self.origin_unix_ns = origin_unix_ns
        self.meta: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        self.losses: list[Loss] = []
        self.window_ns: tuple[int, int] | None = None
        self._names: dict[str, int] = {}
        self._tracks: dict[tuple[int, int, int, int], int] = {}
        self._track_rows: list[Track] = []
        self._frames: dict[tuple[int, int, int, int, int, int], int] = {}
        self._spans: list[dict[str, Any]] = []
        self._count = 0
        self._tables: dict[str, list[Table]] = {}

    def name(self, text: str) -> int:
        """The id of a name."""
        return self._names.setdefault(text, len(self._names))

    def track(self, rank: int, pid: int, lane: int, device: int = NONE, name: str = "") -> int:
        """The id of a track; a name given later fills in for one that was missing."""
        key = (rank, pid, lane, device)
        found = self._tracks.get(key)
        if found is None:
            found = self._tracks[key] = len(self._track_rows)
            self._track_rows.append(Track(rank, pid, lane, device, name))
        elif name and not self._track_rows[found].name:
            self._track_rows[found] = Track(rank, pid, lane, device, name)
        return found

    def frame(
        self, file: str, line: int, function: str, parent: int = NONE, column: int = NONE, end_column: int = NONE
    ) -> int:
        """The id of a frame called by `parent`."""
        key = (self.name(function), self.name(file), line, column, end_column, parent)
        return self._frames.setdefault(key, len(self._frames))

    def add_spans(
        self, start_ns: Any, dur_ns: Any, kind: Any, name: Any, track: Any, corr: Any = NONE, nbytes: Any = NONE
    ) -> range:
        """Columns (or single values) of new spans; the row numbers to use in detail tables."""
        size = len(np.atleast_1d(start_ns))
        columns = {"start_ns": start_ns, "dur_ns": dur_ns, "kind": kind, "name": name, "track": track}
        columns |= {"corr": corr, "nbytes": nbytes}
        self._spans.append({key: np.broadcast_to(np.asarray(value), size) for key, value in columns.items()})
        rows = range(self._count, self._count + size)
        self._count += size
        return rows

    def add_table(self, attribute: str, table: Table) -> None:
        """Rows for one of the other tables of Trace, by the attribute's name; `span` columns hold rows of add_spans."""
        self._tables.setdefault(attribute, []).append(table)

    def start_at_first(self) -> None:
        """For times given as unix nanoseconds: count them all from the earliest."""
        if self.origin_unix_ns:
            return
        starts = [int(part["start_ns"].min()) for part in self._spans if len(part["start_ns"])]
        starts += [time for tables in self._tables.values() for table in tables for time in _first_times(table)]
        starts += self.window_ns or ()
        if not starts:
            return
        origin = self.origin_unix_ns = min(starts)
        for part in self._spans:
            part["start_ns"] = part["start_ns"] - origin
        self._tables = {name: [_shift(table, -origin) for table in tables] for name, tables in self._tables.items()}
        if self.window_ns:
            self.window_ns = (self.window_ns[0] - origin, self.window_ns[1] - origin)

    def build(self) -> Trace:
        """Sort the spans, find each one's parent, renumber what points at them."""
        raw = {key: self._column(key) for key in ("start_ns", "dur_ns", "kind", "name", "track", "corr", "nbytes")}
        order = np.lexsort((raw["kind"], -raw["dur_ns"], raw["start_ns"]))
        raw = {key: column[order] for key, column in raw.items()}
        types = {"kind": np.int8, "name": np.int32, "track": np.int32}
        columns: dict[str, Any] = {key: column.astype(types.get(key, np.int64)) for key, column in raw.items()}
        columns["parent"] = find_parents(columns["start_ns"], columns["dur_ns"], columns["kind"], columns["track"])
        moved = np.empty(self._count, np.int32)
        moved[order] = np.arange(self._count, dtype=np.int32)
        tables = {name: _renumber(parts, moved) for name, parts in self._tables.items()}
        return Trace(
            origin_unix_ns=self.origin_unix_ns,
            names=tuple(self._names),
            tracks=tuple(self._track_rows),
            spans=Spans(**columns),
            frames=self._frame_table(),
            window_ns=self.window_ns,
            sources=MappingProxyType(dict(self.sources)),
            losses=tuple(self.losses),
            meta=MappingProxyType(dict(self.meta)),
            **tables,  # type: ignore[arg-type]
        )

    def _column(self, key: str) -> Any:
        return np.concatenate([part[key] for part in self._spans]) if self._spans else np.empty(0, np.int64)

    def _frame_table(self) -> Any:
        from tracer.trace import Frames

        rows = np.array(list(self._frames) or np.empty((0, 6)), dtype=np.int32).reshape(-1, 6)
        function, file, line, column, end_column, parent = rows.T.copy()
        return Frames(function, file, line, column, end_column, parent)


_TIMES = ("time_ns", "start_ns", "end_ns")


def _first_times(table: Table) -> list[int]:
    columns = [getattr(table, name) for name in _TIMES if name in table.columns()]
    return [int(known.min()) for column in columns if len(known := column[column != NONE])]


def _shift(table: Table, by_ns: int) -> Table:
    """The table with its points in time moved; NONE stays NONE."""
    columns = {name: getattr(table, name) for name in table.columns()}
    for name in _TIMES:
        if name in columns:
            columns[name] = np.where(columns[name] == NONE, NONE, columns[name] + by_ns)
    return type(table)(**columns)


def _renumber(parts: list[Table], moved: Ids) -> Table:
    table = type(parts[0]).join(parts)
    if "span" not in table.columns():
        return table
    columns = {name: getattr(table, name) for name in table.columns()}
    rows = moved[columns["span"]]
    order = np.argsort(rows, kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    return type(table)(**(columns | {"span": rows[order].astype(np.int32)}))


def find_parents(start_ns: Ints, dur_ns: Ints, kind: Any, track: Ids) -> Ids:
    """For each span (sorted by start, the outer first) the innermost OP, MARK or PYTHON span around it, or NONE.

    Spans that overlap without nesting (annotations that live across an `await`,
    profiler wrappers) have as parent the nearest earlier span that is still open at
    their start. Works level by level on whole columns: a span's level is how many
    holders are open at its start.
    """
    parent = np.full(len(start_ns), NONE, np.int32)
    held = np.flatnonzero(np.isin(kind, _HELD))
    if not len(held):
        return parent
    holder = np.isin(kind[held], _HOLDS)
    order = np.lexsort((held, track[held]))
    rows = held[order]
    holds = holder[order]
    starts, ends, lanes = start_ns[rows], start_ns[rows] + dur_ns[rows], track[rows]
    candidate = _nearest_open(starts, ends, lanes, holds)
    known = candidate >= 0
    parent[rows[known]] = rows[candidate[known]]
    return parent


def _nearest_open(starts: Ints, ends: Ints, lanes: Ids, holds: Any) -> Ints:
    """Nearest earlier holder on the same lane that ends after this span starts (and covers it if it is empty)."""
    size = len(starts)
    positions = np.arange(size)
    last_holder = np.maximum.accumulate(np.where(holds, positions, -1))
    candidate = np.concatenate(([-1], last_holder[:-1]))
    candidate[(candidate >= 0) & (lanes[np.maximum(candidate, 0)] != lanes)] = -1
    open_rows = np.flatnonzero(candidate >= 0)
    while len(open_rows):
        at = candidate[open_rows]
        closed = ends[at] <= starts[open_rows]
        closed &= ~((ends[at] == starts[open_rows]) & (ends[open_rows] == starts[open_rows]) & (starts[at] < ends[at]))
        open_rows = open_rows[closed]
        # Every row jumps to its candidate's candidate: chains of closed siblings halve at each turn.
        candidate[open_rows] = candidate[candidate[open_rows]]
        open_rows = open_rows[candidate[open_rows] >= 0]
    return candidate
