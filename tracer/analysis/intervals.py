"""Union, overlap and gaps of time intervals, on whole columns.

A *union* here is a pair of columns (starts, ends): sorted, disjoint, none empty,
neighbours that touch joined. Times are integers, so results are exact.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tracer.trace import Bools, Ints

Union: TypeAlias = tuple[Ints, Ints]


def union(start_ns: Any, end_ns: Any) -> Union:
    """The time that at least one interval covers; empty and reversed intervals count for nothing."""
    starts, ends = np.asarray(start_ns, np.int64), np.asarray(end_ns, np.int64)
    real = ends > starts
    starts, ends = starts[real], ends[real]
    if not len(starts):
        return starts, ends
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(first)[1:] - 1, [len(starts) - 1]))
    return starts[first], reach[last]


def distinct(values: Ints) -> Ints:
    """The different values, sorted. Faster than numpy's unique on columns of a million."""
    values = np.sort(values)
    found: Ints = values[np.concatenate((np.ones(min(len(values), 1), np.bool_), values[1:] != values[:-1]))]
    return found


def total(start_ns: Any, end_ns: Any) -> int:
    """How long at least one interval lasts."""
    starts, ends = union(start_ns, end_ns)
    return int(np.sum(ends - starts))


def length(of: Union) -> int:
    """How long a union lasts."""
    return int(np.sum(of[1] - of[0]))


def intersect(a: Union, b: Union) -> Union:
    """The time that both unions cover."""
    times = np.concatenate((a[0], b[0], a[1], b[1]))
    opening = np.arange(len(times)) < len(a[0]) + len(b[0])
    order = np.lexsort((opening, times))  # an end before a start at the same time
    times = times[order]
    depth = np.cumsum(np.where(opening[order], 1, -1))
    at = np.flatnonzero(depth == 2)
    starts, ends = times[at], times[at + 1]
    real = ends > starts
    return union(starts[real], ends[real])


def subtract(a: Union, b: Union) -> Union:
    """The time that `a` covers and `b` does not."""
    if not len(a[0]):
        return a
    return intersect(a, gaps(*b, int(a[0][0]), int(a[1][-1])))


def gaps(start_ns: Any, end_ns: Any, low: int, high: int) -> Union:
    """The time between `low` and `high` that no interval covers."""
    starts, ends = union(start_ns, end_ns)
    opens = np.concatenate(([low], np.maximum(ends, low)))
    closes = np.concatenate((np.minimum(starts, high), [high]))
    real = closes > opens
    return opens[real], closes[real]


def clip(of: Union, low: int, high: int) -> Union:
    """The part of a union between `low` and `high`."""
    starts, ends = np.maximum(of[0], low), np.minimum(of[1], high)
    real = ends > starts
    return starts[real], ends[real]


def covered(unions: Union, start_ns: Any, end_ns: Any) -> Ints:
    """For each interval asked for, how much of it the union covers."""
    return _before(unions, np.asarray(end_ns, np.int64)) - _before(unions, np.asarray(start_ns, np.int64))


def inside(unions: Union, time_ns: Any) -> Bools:
    """For each moment, whether the union covers it (its start included, its end not)."""
    times = np.asarray(time_ns, np.int64)
    if not len(unions[0]):
        return np.zeros(len(times), np.bool_)
    at = np.searchsorted(unions[0], times, "right") - 1
    return (at >= 0) & (times < unions[1][np.maximum(at, 0)])


def _before(unions: Union, time_ns: Ints) -> Ints:
    """How much of the union lies before each moment."""
    starts, ends = unions
    if not len(starts):
        return np.zeros(len(time_ns), np.int64)
    sums = np.concatenate(([0], np.cumsum(ends - starts)))
    at = np.searchsorted(starts, time_ns, "right") - 1
    known = np.maximum(at, 0)
    part = np.clip(time_ns - starts[known], 0, ends[known] - starts[known])
    return np.where(at < 0, 0, sums[known] + part)
