"""Brings the recorders' monotonic clock to unix time, and says how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracer.trace import NONE, Ints


class Clock:
    """Pairs of reads of the monotonic and the wall clock, with a straight line between two of them."""

    def __init__(self, marks: Sequence[Sequence[int]]) -> None:
        ordered = sorted(tuple(mark) for mark in marks)
        self._mono = np.array([mark[0] for mark in ordered], np.int64)
        offset = np.array([mark[1] - mark[0] for mark in ordered], np.int64)
        self._base = int(offset[0])
        self._beyond = offset - self._base
        # The wall clock may have been stepped at any moment between two marks: off by at most their difference.
        steps = np.abs(np.diff(offset))
        self.error_ns = max(int(mark[2]) for mark in ordered) + (int(steps.max()) if len(steps) else 0)

    def unix_ns(self, mono_ns: Any) -> Ints:
        """Unix time of monotonic stamps; NONE stays NONE."""
        column = np.asarray(mono_ns, np.int64)
        elapsed = (column - self._mono[0]).astype(np.float64)
        beyond = np.interp(elapsed, (self._mono - self._mono[0]).astype(np.float64), self._beyond.astype(np.float64))
        unix = column + self._base + np.rint(beyond).astype(np.int64)
        return np.where(column == NONE, NONE, unix)
