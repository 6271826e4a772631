"""Which host threads take turns, and which run beside each other.

Autograd's thread works while the main thread stands still in `backward()`: for a
replay the two are one line of work. A thread that launches at the same time as the
main one is a line of its own.
"""

from __future__ import annotations

import numpy as np

from tracer.analysis.intervals import intersect, length, union
from tracer.trace import NONE, Ids, Ints, Trace

_TOGETHER = 0.2  # threads that take turns are inside calls together for less than this share
_CHANGES = 0.6  # and change places less often than this share of the times that they could


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
    if step_track != NONE:
        found[step_track] = 0
    chains: list[Ints] = []
    for track in order:
        mine = calls[spans.track[calls] == track]
        number = next((i for i, other in enumerate(chains) if _take_turns(trace, mine, other)), len(chains))
        if number == len(chains):
            chains.append(mine)
        else:
            chains[number] = np.union1d(chains[number], mine)
        found[track] = number
    return found


def _take_turns(trace: Trace, a: Ints, b: Ints) -> bool:
    spans = trace.spans
    busy = [union(spans.start_ns[rows], spans.end_ns[rows]) for rows in (a, b)]
    if length(intersect(*busy)) > _TOGETHER * min(length(one) for one in busy):
        return False
    whose = np.isin(np.union1d(a, b), a)  # rows are in order of time
    changes = int(np.count_nonzero(whose[1:] != whose[:-1]))
    return changes <= _CHANGES * 2 * min(len(a), len(b))
