"""The line that called backward(), for work that autograd's own threads do.

Those threads run no Python. Their caller sits in backward() meanwhile: the one thread
of the process that is on a line of the user's and starts nothing itself.
"""

from __future__ import annotations

import numpy as np

from tracer.analysis.lookup import Lookup
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Trace

_ENGINE = "autograd::engine"


def calling_frames(trace: Trace, lines: Lookup, rows: Ints) -> Ids:
    """For each span below autograd's engine the frame of the line that waits for it, or NONE."""
    frame = np.full(len(rows), NONE, np.int32)
    engine = np.array([_ENGINE in name for name in trace.names] or [False], np.bool_)
    ours = np.flatnonzero(_below(trace, rows, engine))
    if not len(ours) or not len(lines):
        return frame
    spans, tracks = trace.spans, trace.tracks
    busy = np.flatnonzero(np.isin(spans.kind, [Kind.OP, Kind.CALL]))
    began = Lookup(spans.track[busy], spans.start_ns[busy])
    start = spans.start_ns[rows[ours]]
    end = start + spans.dur_ns[rows[ours]]
    own = spans.track[rows[ours]]
    process = np.array([(track.rank, track.pid) for track in tracks], np.int64)
    candidates = np.zeros(len(ours), np.int64)
    found = np.full(len(ours), NONE, np.int32)
    for track in np.unique(trace.lines.track).tolist():
        column = np.full(len(ours), track)
        at = lines.last_until(column, start)
        waits = (at != NONE) & (own != track) & np.all(process[own] == process[track], axis=1)
        waits[waits] = end[waits] <= trace.lines.start_ns[at[waits]] + trace.lines.dur_ns[at[waits]]
        waits &= began.count_between(column, start, end) == 0
        candidates += waits
        found[waits] = trace.lines.frame[at[waits]]
    frame[ours] = np.where(candidates == 1, found, NONE)
    return frame


def _below(trace: Trace, rows: Ints, wanted: Bools) -> Bools:
    """For each span whether one around it has one of these names."""
    found = np.zeros(len(rows), np.bool_)
    at = rows.copy()
    going = np.arange(len(rows))
    while len(going):
        found[going] |= wanted[trace.spans.name[at[going]]]
        at[going] = trace.spans.parent[at[going]]
        going = going[(at[going] != NONE) & ~found[going]]
    return found
