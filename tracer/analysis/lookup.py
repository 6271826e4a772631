"""Finds the rows of a table by track and time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.trace import NONE, Ids, Ints


class Lookup:
    """Rows of a table by track and time."""

    def __init__(self, track: Ids, time_ns: Ints, rows: Ints | None = None) -> None:
        self._by_track: dict[int, tuple[Ints, Ints]] = {}
        order = np.lexsort((time_ns, track))
        rows = np.arange(len(track)) if rows is None else rows
        ids, first = np.unique(track[order], return_index=True)
        for one, group in zip(ids.tolist(), np.split(order, first[1:]), strict=False):
            self._by_track[one] = (time_ns[group].astype(np.int64), rows[group].astype(np.int64))
        self._nothing = (np.empty(0, np.int64), np.empty(0, np.int64))

    def from_time(self, track: int, time_ns: int) -> Iterator[int]:
        """Rows of a track from a time on, in order."""
        times, rows = self._by_track.get(track, self._nothing)
        for i in range(int(np.searchsorted(times, time_ns)), len(times)):
            yield int(rows[i])

    def last_until(self, track: int, time_ns: int) -> int:
        """The last row of a track at or before a time, or NONE."""
        times, rows = self._by_track.get(track, self._nothing)
        at = int(np.searchsorted(times, time_ns, side="right")) - 1
        return int(rows[at]) if at >= 0 else NONE

    def between(self, track: int, start_ns: int, end_ns: int) -> Ints:
        """Rows of a track from one time to another, both included."""
        times, rows = self._by_track.get(track, self._nothing)
        return rows[np.searchsorted(times, start_ns) : np.searchsorted(times, end_ns, side="right")]
