"""Lanes: rows of one heading on which no two slices overlap without nesting.

Perfetto's END closes the innermost slice, so two slices that overlap without one
holding the other would swap their ends. Such slices go to the next lane.
"""

from __future__ import annotations

import heapq
from itertools import pairwise

import numpy as np

from tracer.trace import Ids, Ints

DEEPEST = 500  # the trace processor puts slices deeper than 512 back at the top


def nested_lanes(start_ns: Ints, dur_ns: Ints) -> Ids:
    """A lane for each slice (sorted by start, the longer first) so that each lane nests, at most 500 deep."""
    lanes = np.zeros(len(start_ns), np.int32)
    ends = start_ns + dur_ns
    if _nests(start_ns, ends):
        return lanes
    # Only stretches where something is wrong are walked; between stretches nothing is open.
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]))
    firsts = np.flatnonzero(start_ns >= reach)
    bounds = np.concatenate((firsts, [len(start_ns)]))
    for low, high in pairwise(bounds.tolist()):
        if high - low > 1 and not _nests(start_ns[low:high], ends[low:high]):
            lanes[low:high] = _walk(start_ns[low:high].tolist(), ends[low:high].tolist())
    return lanes


def free_lanes(start_ns: Ints, end_ns: Ints) -> Ids:
    """A lane for each slice (sorted by start) so that no two of a lane overlap."""
    lanes = np.zeros(len(start_ns), np.int32)
    if len(start_ns) < 2 or np.all(np.maximum.accumulate(end_ns)[:-1] <= start_ns[1:]):
        return lanes
    if np.all(end_ns[1:] >= end_ns[:-1]) and np.all(end_ns > start_ns):
        return _queue_lanes(start_ns, end_ns)
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    used = 0
    for at, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist())):
        while taken and taken[0][0] <= start:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        lanes[at] = lane
        heapq.heappush(taken, (end, lane))
    return lanes


def open_at_start(start_ns: Ints, end_ns: Ints) -> Ints:
    """How many earlier slices (sorted by start) are still open when each one starts."""
    return np.maximum(np.arange(len(start_ns)) - np.searchsorted(np.sort(end_ns), start_ns, "right"), 0)


def _queue_lanes(start_ns: Ints, end_ns: Ints) -> Ids:
    """First in, first out: between two moments without any open slice, lanes are dealt in turn."""
    depth = open_at_start(start_ns, end_ns)
    first = np.flatnonzero(depth <= 0)
    cluster = np.cumsum(depth <= 0) - 1
    deepest = np.maximum.reduceat(depth, first) + 1
    turn: Ints = (np.arange(len(start_ns)) - first[cluster]) % deepest[cluster]
    return turn.astype(np.int32)


def _nests(start_ns: Ints, ends: Ints) -> bool:
    """Whether every slice lies inside the innermost one open at its start, and none too deep."""
    if len(start_ns) < 2:
        return True
    depth = open_at_start(start_ns, ends)
    if int(depth.max()) >= DEEPEST:
        return False
    candidate = np.arange(-1, len(start_ns) - 1)
    waiting = np.flatnonzero(candidate >= 0)
    while len(waiting):
        at = candidate[waiting]
        closed = ends[at] <= start_ns[waiting]
        if np.any(ends[waiting[~closed]] > ends[at[~closed]]):
            return False
        waiting = waiting[closed]
        candidate[waiting] = candidate[candidate[waiting]]
        waiting = waiting[candidate[waiting] >= 0]
    return True


def _walk(starts: list[int], ends: list[int]) -> list[int]:
    open_ends: list[list[int]] = []  # of each lane, the outermost first
    found = []
    for start, end in zip(starts, ends):
        lane = 0
        while lane < len(open_ends) and not _fits(open_ends[lane], start, end):
            lane += 1
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(end)
        found.append(lane)
    return found


def _fits(stack: list[int], start: int, end: int) -> bool:
    """Closes what is over, then says whether a slice nests in what is still open."""
    while stack and stack[-1] <= start:
        stack.pop()
    return not stack or (end <= stack[-1] and len(stack) < DEEPEST)
