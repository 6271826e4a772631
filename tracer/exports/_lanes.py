"""Lanes: rows of one heading on which no two slices overlap without nesting.

Perfetto's END closes the innermost slice, so two slices that overlap without one
holding the other would swap their ends. Such slices go to the next lane.
"""

from __future__ import annotations

import heapq

import numpy as np

from tracer.trace import Bools, Ids, Ints

DEEPEST = 500  # the trace processor puts slices deeper than 512 back at the top


def nested_lanes(start_ns: Ints, dur_ns: Ints) -> Ids:
    """A lane for each slice (sorted by start, the longer first) so that each lane nests, at most 500 deep."""
    lanes = np.zeros(len(start_ns), np.int32)
    ends = start_ns + dur_ns
    wrong = _wrong(start_ns, ends)
    if not wrong.any():
        return lanes
    # Only stretches where something is wrong are walked; between stretches nothing is open.
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]))
    first = start_ns >= reach
    bounds = np.append(np.flatnonzero(first), len(start_ns))
    for stretch in np.unique(np.cumsum(first)[wrong] - 1).tolist():
        low, high = bounds[stretch], bounds[stretch + 1]
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
    ends = end_ns if np.all(end_ns[1:] >= end_ns[:-1]) else np.sort(end_ns)
    over = np.searchsorted(ends, start_ns, "right")
    found: Ints = np.maximum(np.arange(len(start_ns)) - over, 0)
    return found


def _queue_lanes(start_ns: Ints, end_ns: Ints) -> Ids:
    """First in, first out: between two moments without any open slice, lanes are dealt in turn."""
    depth = open_at_start(start_ns, end_ns)
    first = np.flatnonzero(depth <= 0)
    cluster = np.cumsum(depth <= 0) - 1
    deepest = np.maximum.reduceat(depth, first) + 1
    turn: Ints = (np.arange(len(start_ns)) - first[cluster]) % deepest[cluster]
    return turn.astype(np.int32)


def _wrong(start_ns: Ints, ends: Ints) -> Bools:
    """Slices that cross the innermost one open at their start, or lie too deep."""
    wrong = np.zeros(len(start_ns), np.bool_)
    if np.any(ends[:-DEEPEST] > start_ns[DEEPEST:]):  # else none is still open when the 500th after it starts
        wrong = open_at_start(start_ns, ends) >= DEEPEST
    # The slice just before is the innermost open one, unless it is closed.
    closed = ends[:-1] <= start_ns[1:]
    wrong[1:] |= ~closed & (ends[1:] > ends[:-1])
    # Where nothing is open any more there is nothing to cross.
    waiting = np.flatnonzero(closed & (np.maximum.accumulate(ends)[:-1] > start_ns[1:])) + 1
    candidate = np.arange(-1, len(start_ns) - 1)
    candidate[waiting] = candidate[waiting - 1]
    waiting = waiting[candidate[waiting] >= 0]
    while len(waiting):
        at = candidate[waiting]
        closed = ends[at] <= start_ns[waiting]
        crossing = ~closed & (ends[waiting] > ends[at])
        wrong[waiting[crossing]] = True
        waiting = waiting[closed]
        # Every slice jumps to its candidate's candidate: chains of closed siblings halve at each turn.
        candidate[waiting] = candidate[candidate[waiting]]
        waiting = waiting[candidate[waiting] >= 0]
    return wrong


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
