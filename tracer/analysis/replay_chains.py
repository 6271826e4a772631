"""Which host threads take turns, and which run beside each other.

Autograd's thread works while the main thread stands still in `backward()`: for a
replay the two are one line of work. A thread that launches at the same time as the
main one is a line of its own.
"""

from __future__ import annotations

import numpy as np

from tracer.analysis.intervals import Union, intersect, length, union
from tracer.trace import NONE, Ids, Ints, Trace

_PAUSE_NS = 300_000  # a thread that calls nothing for longer may have been standing still
_SHARE = 0.2  # threads that are active together for less than this share take turns


def find_chains(trace: Trace, calls: Ints, step_track: int) -> Ids:
    """For each track the number of its chain, 0 for the one that steps; NONE for tracks that make none of `calls`."""
    spans = trace.spans
    calls = np.unique(calls[calls >= 0])
    calls = calls[~trace.on_gpu[calls]]
    tracks, counts = np.unique(spans.track[calls], return_counts=True)
    order = [int(t) for t in tracks[np.argsort(-counts, kind="stable")]]
    if step_track in order:
        order.remove(step_track)
        order.insert(0, step_track)
    found = np.full(len(trace.tracks), NONE, np.int32)
    if step_track >= 0:
        found[step_track] = 0
    active: list[Union] = []
    for track in order:
        mine = calls[spans.track[calls] == track]
        busy = _bursts(spans.start_ns[mine], spans.end_ns[mine])
        number = next((i for i, other in enumerate(active) if _take_turns(busy, other)), len(active))
        if number == len(active):
            active.append(busy)
        else:
            joined = active[number]
            active[number] = union(np.concatenate((joined[0], busy[0])), np.concatenate((joined[1], busy[1])))
        found[track] = number
    return found


def _bursts(start: Ints, end: Ints) -> Union:
    """When a thread was at work: its calls, and the short times between them."""
    following = np.append(start[1:], end[-1:])
    return union(start, np.where(following - end < _PAUSE_NS, np.maximum(following, end), end))


def _take_turns(a: Union, b: Union) -> bool:
    return length(intersect(a, b)) <= _SHARE * min(length(a), length(b))
