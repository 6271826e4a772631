"""Collects columns from a reader and makes them a Trace: sorted, numbered, nested."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from tracer.trace import NONE, Ids, Ints, Kind, Loss, Spans, Table, Trace, Track

_HOLDS = (Kind.OP, Kind.MARK, Kind.PYTHON)  # kinds of span that can be a parent
_TYPES: dict[str, Any] = {
    "start_ns": np.int64,
    "dur_ns": np.int64,
    "kind": np.int8,
    "name": np.int32,
    "track": np.int32,
    "corr": np.int64,
    "nbytes": np.int64,
    "nesting": np.int32,
}
_OUTER_FIRST = np.array([{Kind.PYTHON: 0, Kind.MARK: 1, Kind.OP: 2}.get(kind, 3 + kind) for kind in Kind])
_ONCE = (Kind.CALL, Kind.WAIT, Kind.KERNEL, Kind.COPY, Kind.FILL)  # each has its own time and correlation id
_CALLERS_CUT = 50  # callers of callers that are cut, one after the other
_OUTLIVES_NS = 10_000  # what ends later than its caller by less was stamped a little late
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

    def names(self) -> tuple[str, ...]:
        """All names so far, by id."""
        return tuple(self._names)

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
        self,
        start_ns: Any,
        dur_ns: Any,
        kind: Any,
        name: Any,
        track: Any,
        corr: Any = NONE,
        nbytes: Any = NONE,
        nesting: Any = 0,
    ) -> range:
        """Columns (or single values) of new spans; the row numbers to use in detail tables.

        `nesting` is lower for the outer of two spans that start and end together, where
        the recorder knows it.
        """
        size = len(np.atleast_1d(start_ns))
        columns = {"start_ns": start_ns, "dur_ns": dur_ns, "kind": kind, "name": name, "track": track}
        columns |= {"corr": corr, "nbytes": nbytes, "nesting": nesting}
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
        """Sort the spans, find each one's parent, renumber what points at them.

        The builder gives its columns away one by one, so that a large trace is never
        in memory twice.
        """
        order, columns = self._sorted_columns()
        order, columns = self._without_repeats(order, columns)
        columns["parent"] = find_parents(columns["start_ns"], columns["dur_ns"], columns["kind"], columns["track"])
        if cut := cut_outliving(columns):
            self.losses.append(Loss("Python functions that outlive their caller (no return was seen), cut", count=cut))
        moved = np.full(self._count, NONE, np.int32)
        moved[order] = np.arange(len(order), dtype=np.int32)
        del order
        tables = {name: _renumber(self._tables.pop(name), moved) for name in list(self._tables)}
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

    def _sorted_columns(self) -> tuple[Ids, dict[str, Any]]:
        raw = {key: self._column(key, kind) for key, kind in _TYPES.items()}
        order = self._order(raw)
        del raw["nesting"]
        return order, {key: raw.pop(key)[order] for key in list(raw)}

    def _without_repeats(self, order: Ids, columns: dict[str, Any]) -> tuple[Ids, dict[str, Any]]:
        """Calls and what they launched, each once; nodes of a graph are told apart by their number alone."""
        again = np.zeros(len(order), np.bool_)
        again[1:] = np.isin(columns["kind"][1:], _ONCE) & (columns["corr"][1:] > 0)
        for column in columns.values():
            if not again.any():
                return order, columns
            again[1:] &= column[1:] == column[:-1]
        node = np.full(self._count, NONE, np.int64)
        for table in self._tables.get("work", ()):
            node[table.span] = table.graph_node  # type: ignore[attr-defined]
        node = node[order]
        again[1:] &= node[1:] == node[:-1]
        if not again.any():
            return order, columns
        self.losses.append(Loss("records that stand twice or more, taken once", count=int(again.sum())))
        return order[~again], {key: column[~again] for key, column in columns.items()}

    def _order(self, raw: dict[str, Any]) -> Ids:
        """By start, the outer first; never by the order in which the rows came.

        Recorders write nearly in order of time, which a stable sort by one key uses;
        only spans with the same start are looked at again.
        """
        starts = raw["start_ns"]
        order = np.argsort(starts, kind="stable").astype(np.int32)
        same = np.zeros(len(order) + 1, np.bool_)
        same[1:-1] = starts[order[1:]] == starts[order[:-1]]
        rows = np.flatnonzero(same[1:] | same[:-1])
        if len(rows):
            tied = order[rows]
            names, tracks = _ranks(list(self._names)), _ranks(list(self._tracks))
            keys = (
                raw["nbytes"][tied],
                raw["corr"][tied],
                names[raw["name"][tied]],
                raw["nesting"][tied],
                _OUTER_FIRST[raw["kind"][tied]],
                -raw["dur_ns"][tied],
                tracks[raw["track"][tied]],
                starts[tied],
            )
            order[rows] = tied[np.lexsort(keys)]
        return order

    def _column(self, key: str, kind: Any) -> Any:
        parts = [part.pop(key) for part in self._spans] or [np.empty(0, kind)]
        return parts[0].astype(kind, copy=False) if len(parts) == 1 else np.concatenate(parts, dtype=kind)

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
    table = table.take(moved[table.span] != NONE)  # type: ignore[attr-defined]
    columns = {name: getattr(table, name) for name in table.columns()}
    rows = moved[columns["span"]]
    order = np.argsort(rows, kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    return type(table)(**(columns | {"span": rows[order].astype(np.int32)}))


def _ranks(keys: list[Any]) -> Ints:
    """For each key its place among all of them in order."""
    ranks = np.empty(len(keys), np.int64)
    ranks[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
    return ranks


def find_parents(start_ns: Ints, dur_ns: Ints, kind: Any, track: Ids) -> Ids:
    """For each span (sorted by start, the outer first) the innermost OP, MARK or PYTHON span around it, or NONE.

    Spans that overlap without nesting (annotations that live across an `await`,
    profiler wrappers) have as parent the nearest earlier span that is still open at
    their start.
    """
    parent = np.full(len(start_ns), NONE, np.int32)
    rows = np.flatnonzero(np.isin(kind, _HELD)).astype(np.int32)
    if not len(rows):
        return parent
    rows = rows[np.argsort(track[rows], kind="stable")]
    ends_of_tracks = [*(np.flatnonzero(np.diff(track[rows])) + 1).tolist(), len(rows)]
    low = 0
    for high in ends_of_tracks:
        own = rows[low:high]
        candidate = _nearest_open(start_ns[own], start_ns[own] + dur_ns[own], np.isin(kind[own], _HOLDS))
        known = candidate >= 0
        parent[own[known]] = own[candidate[known]]
        low = high
    return parent


def cut_outliving(columns: dict[str, Any]) -> int:
    """Cut Python functions where their caller ends, and find parents anew; how many were cut.

    A profiler that misses a return takes the function as open until its window ends. It
    would then be the innermost function of all that the thread does later.
    """
    kind, start, dur = columns["kind"], columns["start_ns"], columns["dur_ns"]
    cut = np.zeros(len(kind), np.bool_)
    for _ in range(_CALLERS_CUT):
        parent = columns["parent"]
        rows = np.flatnonzero((kind == Kind.PYTHON) & (parent != NONE))
        rows = rows[kind[parent[rows]] == Kind.PYTHON]
        late = rows[start[rows] + dur[rows] - start[parent[rows]] - dur[parent[rows]] > _OUTLIVES_NS]
        late = late[~np.isin(parent[late], late)]  # what such a one seems to call is looked at when it is cut
        if not len(late):
            break
        dur[late] = start[parent[late]] + dur[parent[late]] - start[late]
        cut[late] = True
        columns["parent"] = find_parents(start, dur, kind, columns["track"])
    return int(cut.sum())


def _nearest_open(starts: Ints, ends: Ints, holds: Any) -> Ids:
    """Nearest earlier holder on a track that ends after this span starts (and covers it if it is empty)."""
    last_holder = np.maximum.accumulate(np.where(holds, np.arange(len(starts), dtype=np.int32), np.int32(NONE)))
    candidate = np.concatenate((np.array([NONE], np.int32), last_holder[:-1]))
    del last_holder
    open_rows = np.flatnonzero(candidate >= 0).astype(np.int32)
    while len(open_rows):
        at = candidate[open_rows]
        end, start = ends[at], starts[open_rows]
        closed = end <= start
        touching = np.flatnonzero(end == start)
        # An empty span at the very end of a holder is still inside it, unless the holder is empty too.
        inside = (ends[open_rows[touching]] == start[touching]) & (starts[at[touching]] < end[touching])
        closed[touching[inside]] = False
        del end, start, at
        open_rows = open_rows[closed]
        # Every row jumps to its candidate's candidate: chains of closed siblings halve at each turn.
        candidate[open_rows] = candidate[candidate[open_rows]]
        open_rows = open_rows[candidate[open_rows] >= 0]
    return candidate
