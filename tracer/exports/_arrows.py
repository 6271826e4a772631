"""Arrows between slices: Perfetto's flows.

An arrow leaves the slice that begins earlier: Perfetto drops one that arrives
before it left, so an arrow from a launch to work that started before it (two
clocks that disagree) is turned round rather than lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracer.trace import Ids, Ints

# Whose slice an end is; also the order in which their rows are written, which decides at equal times.
STALL, HOST_SPAN, GRAPH, GPU_SPAN, IDLE = range(5)


class Arrows:
    """Collects arrows, then tells each row of slices which leave and which arrive there."""

    def __init__(self) -> None:
        self.count = 0
        self.counts: dict[str, int] = {}
        self._leaving: dict[int, list[tuple[Any, Any]]] = {}
        self._arriving: dict[int, list[tuple[Any, Any]]] = {}
        self._sorted: dict[tuple[bool, int], tuple[Any, Any]] = {}

    def add(
        self, what: str, source: int, source_rows: Ids, source_ns: Ints, end: int, end_rows: Ids, end_ns: Ints
    ) -> None:
        """One arrow for each pair of rows; `source_ns` and `end_ns` are where their slices begin."""
        if not len(source_rows):
            return
        numbers = np.arange(self.count + 1, self.count + 1 + len(source_rows), dtype=np.int64)
        self.count += len(numbers)
        self.counts[what] = self.counts.get(what, 0) + len(numbers)
        turned = (end_ns < source_ns) | ((end_ns == source_ns) & (end < source))
        for mask, leaves, arrives in ((~turned, source, end), (turned, end, source)):
            if mask.any():
                pair = (source_rows[mask], end_rows[mask])
                first, last = pair if leaves == source and mask is not turned else pair[::-1]
                self._leaving.setdefault(leaves, []).append((first, numbers[mask]))
                self._arriving.setdefault(arrives, []).append((last, numbers[mask]))
        self._sorted.clear()

    def split(self, owner: int, rows: Any) -> Iterator[tuple[Any, tuple[Ints, ...], tuple[Ints, ...]]]:
        """Positions in `rows` of slices with equally many arrows, with the ids that leave and arrive."""
        leaving, leaving_at = self._of(False, owner, rows)
        arriving, arriving_at = self._of(True, owner, rows)
        most = int(arriving[1].max(initial=0)) + 1
        shape = leaving[1] * most + arriving[1]
        for value in np.flatnonzero(np.bincount(shape)).tolist():
            chosen = np.flatnonzero(shape == value)
            yield (
                chosen,
                tuple(leaving_at[leaving[0][chosen] + i] for i in range(value // most)),
                tuple(arriving_at[arriving[0][chosen] + i] for i in range(value % most)),
            )

    def _of(self, arriving: bool, owner: int, rows: Any) -> tuple[tuple[Ints, Ints], Ints]:
        """For each row, where its arrows start in the column of ids, and how many they are."""
        if (arriving, owner) not in self._sorted:
            parts = (self._arriving if arriving else self._leaving).get(owner, [])
            where = np.concatenate([part[0] for part in parts] or [np.empty(0, np.int64)])
            ids = np.concatenate([part[1] for part in parts] or [np.empty(0, np.int64)])
            if np.any(where[1:] < where[:-1]):
                order = np.argsort(where, kind="stable")
                where, ids = where[order], ids[order]
            self._sorted[(arriving, owner)] = (where, ids)
        where, ids = self._sorted[(arriving, owner)]
        low = np.searchsorted(where, rows, "left")
        return (low, np.searchsorted(where, rows, "right") - low), ids
