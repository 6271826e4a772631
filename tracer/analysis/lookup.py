"""Finds the rows of a table by track and time, many at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracer.trace import NONE, Ids, Ints

_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64))


class Lookup:
    """Rows of a table by track and time."""

    def __init__(self, track: Ids, time_ns: Ints, rows: Ints | None = None) -> None:
        self._by_track: dict[int, tuple[Ints, Ints]] = {}
        order = np.lexsort((time_ns, track))
        rows = np.arange(len(track)) if rows is None else rows
        ordered = track[order]
        for group in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1) if len(ordered) else ():
            self._by_track[int(track[group[0]])] = (time_ns[group].astype(np.int64), rows[group].astype(np.int64))

    def __len__(self) -> int:
        return len(self._by_track)

    def last_until(self, track: Any, time_ns: Any) -> Ints:
        """For each track and time the last row at or before it, or NONE."""
        track, time_ns = np.asarray(track), np.asarray(time_ns)
        found = np.full(len(track), NONE, np.int64)
        for asked, times, rows in self._groups(track):
            at = np.searchsorted(times, time_ns[asked], side="right") - 1
            found[asked[at >= 0]] = rows[at[at >= 0]]
        return found

    def count_between(self, track: Any, low_ns: Any, high_ns: Any) -> Ints:
        """For each track and stretch the number of rows in it, both ends included."""
        track, low_ns, high_ns = np.asarray(track), np.asarray(low_ns), np.asarray(high_ns)
        found = np.zeros(len(track), np.int64)
        for asked, times, _ in self._groups(track):
            low = np.searchsorted(times, low_ns[asked])
            found[asked] = np.searchsorted(times, high_ns[asked], side="right") - low
        return found

    def between(self, track: int, start_ns: int, end_ns: int) -> Ints:
        """Rows of one track from one time to another, both included."""
        times, rows = self._by_track.get(track, _NOTHING)
        return rows[np.searchsorted(times, start_ns) : np.searchsorted(times, end_ns, side="right")]

    def _groups(self, track: Any) -> Iterator[tuple[Ints, Ints, Ints]]:
        for one in np.unique(track).tolist():
            if one in self._by_track:
                yield np.flatnonzero(track == one), *self._by_track[one]
