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
    known = np.flatnonzero(ledger.frame != NONE)
    if not len(known):
        return Reaches.empty()
    timed = known[ledger.start_ns[known] != NONE]
    rows = [(ledger.track[timed], ledger.start_ns[timed] - CLOCK_NS, ledger.end_ns[timed] + CLOCK_NS, timed)]
    delivered = known[ledger.start_ns[known] == NONE]
    owner = _owners(trace, delivered)
    whole = np.array([_operator(trace, int(o), int(t)) for o, t in zip(owner, ledger.end_ns[delivered], strict=True)])
    whole = whole.astype(np.int64)
    good = np.flatnonzero(whole != NONE)
    returned, told = spans.end_ns[whole[good]], ledger.end_ns[delivered[good]]
    good = good[(told - returned < _REST_NS) | _idle_between(trace, spans.track[owner[good]], returned, told)]
    found, of = whole[good], delivered[good]
    rows.append((spans.track[found], spans.start_ns[found], spans.end_ns[found], of))
    lost = np.setdiff1d(delivered, of)
    rows.extend(_backward(trace, lost))
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
    exact = Lookup(spans.track[waits], spans.end_ns[waits], waits)
    rank_of = np.array([track.rank for track in tracks], np.int32)
    any_thread = Lookup(rank_of[spans.track[waits]], spans.end_ns[waits], waits)
    owner = np.full(len(entries), NONE, np.int64)
    for i, entry in enumerate(entries.tolist()):
        time, track = int(ledger.end_ns[entry]) + CLOCK_NS, int(ledger.track[entry])
        unknown = tracks[track].lane == NONE
        owner[i] = any_thread.last_until(tracks[track].rank, time) if unknown else exact.last_until(track, time)
    return owner


def _operator(trace: Trace, wait: int, delivered_ns: int) -> int:
    """The outermost operator around a wait that had returned by then; the wait itself without one."""
    spans = trace.spans
    best = at = wait
    while at != NONE:
        if spans.kind[at] == Kind.OP and spans.end_ns[at] <= delivered_ns + CLOCK_NS:
            best = at
        at = int(spans.parent[at])
    return best


def _idle_between(trace: Trace, track: Ids, start_ns: Ints, end_ns: Ints) -> Bools:
    """Whether a thread starts no operator and no call strictly inside each interval."""
    spans = trace.spans
    rows = np.flatnonzero(np.isin(spans.kind, [Kind.OP, Kind.CALL]))
    starts = Lookup(spans.track[rows], spans.start_ns[rows], rows)
    found = [
        not len(starts.between(int(t), int(s) + 1, int(e) - CLOCK_NS))
        for t, s, e in zip(track, start_ns, end_ns, strict=True)
    ]
    return np.array(found, dtype=np.bool_)


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
        before = began.last_until(caller, end)
        start = int(spans.end_ns[before]) if before != NONE else 0
        for track in engine_tracks.tolist():
            if track != caller and trace.tracks[track].pid == trace.tracks[caller].pid:
                found.append(tuple(np.array([value], np.int64) for value in (track, start, end, entry)))
    return found  # type: ignore[return-value]
