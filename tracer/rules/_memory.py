"""Memory that comes and goes: growing once is no churn, and a failed allocation has a sign of its own."""

from __future__ import annotations

import numpy as np

from tracer.analysis.calls import Does
from tracer.analysis.stalls import Stalls
from tracer.trace import Bools, Ids

_AT_ONCE_NS = 300_000  # from a failed allocation to the frees that answer it


def retrying(stalls: Stalls) -> Ids:
    """Groups in which an allocation was followed at once by frees, and those by an allocation: it had failed."""
    order = np.lexsort((stalls.start_ns, stalls.track))
    does, group, track = stalls.does[order], stalls.group[order], stalls.track[order]
    start, end = stalls.start_ns[order], stalls.end_ns[order]
    takes = np.isin(does, (Does.MALLOC, Does.PIN))
    frees = np.isin(does, (Does.FREE, Does.UNPIN))
    waits = np.isin(does, (Does.EVENT_WAIT, Does.STREAM_WAIT, Does.DEVICE_WAIT))
    joined = (group[1:] == group[:-1]) & (track[1:] == track[:-1]) & (start[1:] - end[:-1] < _AT_ONCE_NS)
    # States of a small machine: an allocation, then waits and frees, then an allocation.
    found: set[int] = set()
    freed = taken = False
    for i in np.flatnonzero(takes | frees | waits).tolist():
        linked = i > 0 and bool(joined[i - 1])
        if takes[i]:
            if linked and taken and freed:
                found.add(int(group[i]))
            taken, freed = True, False
        elif not linked:
            taken = freed = False
        elif frees[i]:
            freed = True
    return np.array(sorted(found), np.int32)


def taken_anew(stalls: Stalls) -> Bools:
    """Allocations that take what was freed before, and the frees: growing once is no churn."""
    found = np.zeros(len(stalls), np.bool_)
    for take, give in ((Does.MALLOC, Does.FREE), (Does.PIN, Does.UNPIN)):
        rows = np.flatnonzero(np.isin(stalls.does, (take, give)))
        live = credit = 0
        for row in rows.tolist():
            if stalls.does[row] == take:
                found[row] = credit > 0
                credit = max(credit - 1, 0)
                live += 1
            elif live > 0:
                found[row] = True
                live -= 1
                credit += 1
    return found
