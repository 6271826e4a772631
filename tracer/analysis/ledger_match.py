"""Which spans a ledger entry speaks of.

Traps:
- torch delivers its warning when the operator returns, so an entry without a start
  belongs to the wait that ended last before it, and to all waits of the operator that
  returned then, several entries together. Little may happen between the two (a call
  like torch.tensor() runs a few operators more): if more did, the entry's own wait is
  not in the trace and the entry names nothing.
- The C++ part of a backward pass runs on another thread. Its entries come when the
  pass has ended, on the thread that called backward().
- A ledger from a sidecar knows no thread: it gets the one whose wait ended last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tracer.analysis.lookup import Lookup
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Table, Trace

CLOCK_NS = 5_000  # how far the clocks of two recorders may differ
_REST_NS = 200_000  # what a call may still do after its operator that waited
_SYNC = re.compile(r"ynchronize|MemcpyWithStream|QueueFinish|EventWait\b|^(Stream|Context|Event) Sync$")
_BACKWARD = "_engine_run_backward"


@dataclass(frozen=True, slots=True, eq=False)
class Reaches(Table):
    """One row for each stretch of a track that a ledger entry explains."""

    track: Ids
    start_ns: Ints
    end_ns: Ints
    frame: Ids  # -> frames: the leaf


def find_reaches(trace: Trace) -> Reaches:
    """The stretches of all entries with a stack, sorted by track and start."""
    ledger, spans = trace.ledger, trace.spans
    ends = spans.end_ns
    known = np.flatnonzero(ledger.frame != NONE)
    if not len(known):
        return Reaches.empty()
    timed = known[ledger.start_ns[known] != NONE]
    rows = [(ledger.track[timed], ledger.start_ns[timed] - CLOCK_NS, ledger.end_ns[timed] + CLOCK_NS, timed)]
    delivered = known[ledger.start_ns[known] == NONE]
    told = ledger.end_ns[delivered]
    owner = _owners(trace, delivered)
    whole = _operators(trace, owner, told)
    good = np.flatnonzero(owner != NONE)
    near = told[good] - ends[whole[good]] < _REST_NS
    near |= _idle_between(trace, spans.track[owner[good]], ends[whole[good]], told[good])
    near |= _only_one(owner[good])
    good = good[near]
    found, of = whole[good], delivered[good]
    rows.append((spans.track[found], spans.start_ns[found], ends[found], of))
    rows.extend(_backward(trace, np.setdiff1d(delivered, of)))
    track, start, end, entry = (np.concatenate([row[i] for row in rows]) for i in range(4))
    order = np.lexsort((-end, start, track))
    return Reaches.of(track=track[order], start_ns=start[order], end_ns=end[order], frame=ledger.frame[entry[order]])


def match(reaches: Reaches, track: Ids, start_ns: Ints, end_ns: Ints) -> Ids:
    """For each interval the frame of the innermost stretch around it, or NONE."""
    frame = np.full(len(track), NONE, np.int32)
    if not len(reaches):
        return frame
    for one in np.unique(reaches.track):
        low, high = np.searchsorted(reaches.track, [one, one + 1])
        ours = np.flatnonzero(track == one)
        starts, ends = reaches.start_ns[low:high], reaches.end_ns[low:high]
        # Stretches nest at most a few deep: go outwards until one is long enough.
        at = np.searchsorted(starts, start_ns[ours], side="right") - 1
        highest = np.maximum.accumulate(ends)
        while len(ours):
            keep = (at >= 0) & (highest[np.maximum(at, 0)] >= end_ns[ours])
            ours, at = ours[keep], at[keep]
            inside = end_ns[ours] <= ends[at]
            frame[ours[inside]] = reaches.frame[low:high][at[inside]]
            ours, at = ours[~inside], at[~inside] - 1
    return frame


def _is_sync(trace: Trace) -> Bools:
    """For each span, whether it is a call that torch warns of."""
    named = [i for i, name in enumerate(trace.names) if _SYNC.search(name)]
    return np.isin(trace.spans.name, named) & np.isin(trace.spans.kind, [Kind.CALL, Kind.WAIT])


def _owners(trace: Trace, entries: Ints) -> Ints:
    """For each entry the wait of its thread that ended last before it, or NONE."""
    ledger, spans, tracks = trace.ledger, trace.spans, trace.tracks
    waits = np.flatnonzero(_is_sync(trace))
    ends = spans.start_ns[waits] + spans.dur_ns[waits]
    rank = np.array([track.rank for track in tracks], np.int32)
    unknown = np.array([track.lane == NONE for track in tracks], np.bool_)[ledger.track[entries]]
    until = ledger.end_ns[entries] + CLOCK_NS
    owner = Lookup(spans.track[waits], ends, waits).last_until(ledger.track[entries], until)
    any_thread = Lookup(rank[spans.track[waits]], ends, waits)
    owner[unknown] = any_thread.last_until(rank[ledger.track[entries[unknown]]], until[unknown])
    return owner


def _operators(trace: Trace, waits: Ints, delivered_ns: Ints) -> Ints:
    """For each wait the outermost operator around it that had returned by then; the wait itself without one."""
    spans = trace.spans
    best, at = waits.copy(), waits.copy()
    open_rows = np.flatnonzero(at != NONE)
    while len(open_rows):
        rows = at[open_rows]
        returned = spans.start_ns[rows] + spans.dur_ns[rows] <= delivered_ns[open_rows] + CLOCK_NS
        returned &= spans.kind[rows] == Kind.OP
        best[open_rows[returned]] = rows[returned]
        at[open_rows] = spans.parent[rows]
        open_rows = open_rows[at[open_rows] != NONE]
    return best


def _idle_between(trace: Trace, track: Ids, start_ns: Ints, end_ns: Ints) -> Bools:
    """Whether a thread starts no operator and no call strictly inside each interval."""
    spans = trace.spans
    rows = np.flatnonzero(np.isin(spans.kind, [Kind.OP, Kind.CALL]))
    began = Lookup(spans.track[rows], spans.start_ns[rows], rows)
    return began.count_between(track, start_ns + 1, end_ns - CLOCK_NS) <= 0


def _only_one(owner: Ints) -> Bools:
    """Whether a wait is the last before one entry only: then no other can be meant.

    torch.compile works for milliseconds between an operator's return and the delivery.
    """
    _, place, count = np.unique(owner, return_inverse=True, return_counts=True)
    return np.asarray(count[place] == 1, np.bool_)


def _backward(trace: Trace, entries: Ints) -> list[tuple[Ints, Ints, Ints, Ints]]:
    """Stretches on autograd threads for entries that came at the end of a backward pass."""
    ledger, spans, names = trace.ledger, trace.spans, trace.names
    if not len(entries) or _BACKWARD not in names:
        return []
    calls_it = trace.frames.function[ledger.frame[entries]] == names.index(_BACKWARD)
    engine = np.isin(spans.name, [i for i, name in enumerate(names) if "autograd::engine" in name])
    engine_tracks = np.unique(spans.track[engine])
    ops = np.flatnonzero(spans.kind == Kind.OP)
    began = Lookup(spans.track[ops], spans.start_ns[ops], ops)
    found = []
    for entry in entries[calls_it].tolist():
        caller, end = int(ledger.track[entry]), int(ledger.end_ns[entry])
        # While the pass runs its caller sits in backward(), without operators of its own.
        before = int(began.last_until([caller], [end])[0])
        start = int(spans.start_ns[before] + spans.dur_ns[before]) if before != NONE else 0
        for track in engine_tracks.tolist():
            if track != caller and trace.tracks[track].pid == trace.tracks[caller].pid:
                found.append(tuple(np.array([value], np.int64) for value in (track, start, end, entry)))
    return found  # type: ignore[return-value]
