"""The GPU work of the window, one row for each call that launched some."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.launches import Launches
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Table, Trace

_BEFORE_NS = 8_000  # work without a call is taken as launched so long before it began


@dataclass(frozen=True, slots=True, eq=False)
class Works(Table):
    """One row for each launching call: all the GPU work that it launched, in order of the calls.

    A graph launch is not taken apart: it lasts from its first start to its last end.
    """

    call: Ids  # -> spans; NONE for work whose call was not recorded
    work: Ids  # -> spans: the first of them
    track: Ids  # the thread that called; NONE
    stream: Ids  # number among the streams of the graph
    launched_ns: Ints  # start of the call
    start_ns: Ints
    dur_ns: Ints
    pieces: Ints  # kernels, copies and fills in it
    gap_ns: Ints  # least time after the end of the work before it on its stream
    latency_ns: Ints  # least time after the start of its call
    copy: Bools


def find_works(
    trace: Trace, launches: Launches, rank: int, window_ns: tuple[int, int]
) -> tuple[Works, tuple[int, ...], Ints]:
    """What the window's calls of one rank launched, the streams (as tracks), and until when each was busy before."""
    spans = trace.spans
    mine = np.array([t.rank == rank for t in trace.tracks] or [False])
    work = np.flatnonzero(trace.is_work & mine[spans.track])
    call_of = np.full(len(spans), NONE, np.int32)
    call_of[launches.work] = launches.call
    call = call_of[work]
    launched = np.where(call != NONE, spans.start_ns[call], spans.start_ns[work] - _BEFORE_NS)
    key = np.where(call != NONE, call.astype(np.int64), len(spans) + work)
    order = np.lexsort((spans.start_ns[work], key))
    work, call, launched, key = work[order], call[order], launched[order], key[order]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))[: len(key)])
    tracks = np.unique(spans.track[work])
    start = spans.start_ns[work[first]]
    end = np.maximum.reduceat(spans.end_ns[work], first) if len(first) else start
    works = Works.of(
        call=call[first],
        work=work[first],
        track=np.where(call[first] != NONE, spans.track[call[first]], NONE),
        stream=np.searchsorted(tracks, spans.track[work[first]]),
        launched_ns=launched[first],
        start_ns=start,
        dur_ns=end - start,
        pieces=np.diff(np.append(first, len(work))),
        gap_ns=np.zeros(len(first)),
        latency_ns=np.zeros(len(first)),
        copy=spans.kind[work[first]] == Kind.COPY,
    )
    low, high = window_ns
    pending = np.full(len(tracks), low, np.int64)
    earlier = (works.launched_ns < low) | _left_over(works, len(tracks))
    np.maximum.at(pending, works.stream[earlier], end[earlier])
    inside = np.flatnonzero(~earlier & (works.launched_ns < high))
    order = np.lexsort((start[inside], works.launched_ns[inside]))
    return works.take(inside[order]), tuple(int(t) for t in tracks), pending


def _left_over(works: Works, streams: int) -> Bools:
    """Work without a call that ran before all work with one on its stream: launched before the recording began."""
    lone = works.call == NONE
    first = np.full(streams, np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, works.stream[~lone], works.start_ns[~lone])
    return np.asarray(lone & (works.start_ns < first[works.stream]) & (first[works.stream] < np.iinfo(np.int64).max))
