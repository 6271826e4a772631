"""Brings the recorders' monotonic clock to unix time, and says how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracer.trace import NONE, Ints

_SLEW = 500e-6  # the fastest that NTP lets a clock run away
_SET_NS = 1_000_000


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

    @property
    def contradiction(self) -> str:
        """Why the marks cannot be joined: the wall clock was set, not slewed, between two of them. "" if they can."""
        offset, elapsed = self._beyond, np.diff(self._mono)
        steps = np.abs(np.diff(offset)) - elapsed * _SLEW
        if not len(steps) or steps.max() <= _SET_NS:
            return ""
        worst = int(np.abs(np.diff(offset))[int(steps.argmax())])
        return f"the clock marks contradict each other: the wall clock was set by {worst / 1e6:.1f} ms meanwhile"

    def unix_ns(self, mono_ns: Any) -> Ints:
        """Unix time of monotonic stamps; NONE stays NONE."""
        column = np.asarray(mono_ns, np.int64)
        elapsed = (column - self._mono[0]).astype(np.float64)
        beyond = np.interp(elapsed, (self._mono - self._mono[0]).astype(np.float64), self._beyond.astype(np.float64))
        unix = column + self._base + np.rint(beyond).astype(np.int64)
        return np.where(column == NONE, NONE, unix)
