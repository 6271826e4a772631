"""Every call that may hold the host for the GPU, and the work that it waits for; every stream that waits for another.

What a call waits for follows from its name and the order of launches, so that a wait
that was over at once is known too: without the waits before it, it would hold.
Where calls say nothing (events), the work that had just ended tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.calls import Does
from tracer.analysis.replay_works import Works
from tracer.analysis.stalls import COPY_HELD_NS, Stalls
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Table, Trace

_BETWEEN = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")
_AT_ONCE_NS = 5_000  # a copy that is done this soon after its call returns was waited for
_CLOCK_NS = 5_000
_BACK = 256  # launches to look back over for another stream


@dataclass(frozen=True, slots=True, eq=False)
class Waits(Table):
    """One row for each work that a call waits for: several for a wait for a whole device."""

    row: Ids  # -> spans: the call
    track: Ids  # the thread that calls
    start_ns: Ints
    end_ns: Ints
    target: Ids  # -> works; NONE: nothing; -2 - n: what stream n had pending before the window
    hold: Bools  # a stream waits, not the host
    stream: Ids  # of a hold: the stream that waits
    first: Bools  # the row that carries the call's own time: one of each call


def find_waits(
    trace: Trace, stalls: Stalls, works: Works, streams: tuple[int, ...], rank: int, window_ns: tuple[int, int]
) -> Waits:
    """All waits of one rank in the window."""
    spans = trace.spans
    ranks = np.array([t.rank for t in trace.tracks] or [0])
    inside = (ranks[stalls.track] == rank) & (spans.start_ns[stalls.call] >= window_ns[0])
    inside &= spans.start_ns[stalls.call] < window_ns[1]
    mine = stalls.take(np.flatnonzero(inside & (stalls.queue == 0) & (stalls.load == 0)))
    asked = _asked_stream(trace, mine, streams)
    does = np.where(spans.kind[mine.call] == Kind.WAIT, Does.STREAM_WAIT, mine.does)
    parts = [_on_copies(trace, works)]
    whole = (does == Does.DEVICE_WAIT) | ((does == Does.FREE) & trace.name_rows("cudaFree", "hipFree")[mine.call])
    whole |= (does == Does.STREAM_WAIT) & (asked == NONE) & (spans.kind[mine.call] == Kind.WAIT)
    one = (does == Does.STREAM_WAIT) & ~whole
    parts.append(_on_streams(trace, mine.take(one), asked[one], works))
    parts.extend(_on_devices(trace, mine.take(whole), works, streams))
    parts.append(_on_events(trace, mine.take(does == Does.EVENT_WAIT), works))
    parts.append(_between_streams(trace, works, streams, rank, window_ns))
    parts.extend(_on_engines(trace, works))
    return _mark_first(Waits.join(parts), works)


def _waits(
    trace: Trace, rows: Ids | Ints, track: Ids, target: Ints, hold: bool = False, stream: Ints | int = NONE
) -> Waits:
    spans = trace.spans
    return Waits.of(
        row=rows,
        track=track,
        start_ns=spans.start_ns[rows],
        end_ns=spans.end_ns[rows],
        target=target,
        hold=np.full(len(rows), hold),
        stream=np.broadcast_to(np.asarray(stream), len(rows)),
        first=np.zeros(len(rows), bool),
    )


def _asked_stream(trace: Trace, stalls: Stalls, streams: tuple[int, ...]) -> Ints:
    """For each stall the stream that its synchronisation record names, as a number among `streams`; NONE."""
    spans, waits = trace.spans, trace.waits
    number = {(trace.tracks[t].device, trace.tracks[t].lane): i for i, t in enumerate(streams)}
    told: dict[int, int] = {}
    for span, stream, device in zip(waits.span.tolist(), waits.stream.tolist(), waits.device.tolist(), strict=True):
        if stream != NONE:
            told[int(spans.corr[span])] = number.get((device, stream), NONE)
    return np.array([told.get(int(c), NONE) for c in spans.corr[stalls.call]], np.int64)


def last_launched(works: Works, stream: int, before_ns: Ints) -> Ints:
    """For each moment the last work launched to a stream before it; -2 - stream if none was in the window."""
    mine = np.flatnonzero(works.stream == stream)
    at = np.searchsorted(works.launched_ns[mine], before_ns) - 1
    if not len(mine):
        return np.full(len(before_ns), -2 - stream, np.int64)
    return np.where(at >= 0, mine[np.maximum(at, 0)], -2 - stream)


def _on_copies(trace: Trace, works: Works) -> Waits:
    """Copies whose call returned only when they were done, or staged."""
    spans = trace.spans
    rows = np.flatnonzero(works.copy & (works.call >= 0))
    call, end = works.call[rows], works.start_ns[rows] + works.dur_ns[rows]
    pageable = np.array(["Pageable" in name for name in trace.names] or [False])[spans.name[works.work[rows]]]
    returned = spans.end_ns[call]
    waited = (spans.dur_ns[call] >= COPY_HELD_NS) & (
        (end <= returned + _AT_ONCE_NS) | (pageable & (works.start_ns[rows] < returned))
    )
    return _waits(trace, call[waited], spans.track[call[waited]], rows[waited])


def _on_streams(trace: Trace, stalls: Stalls, asked: Ints, works: Works) -> Waits:
    """Calls that wait for one stream: the one that they name, else the one that their thread used last."""
    spans = trace.spans
    rows, target = stalls.call, np.full(len(stalls), NONE, np.int64)
    stream = asked.copy()
    caller = works.track
    for track in np.unique(stalls.track):
        unknown = np.flatnonzero((stream == NONE) & (stalls.track == track))
        mine = np.flatnonzero(caller == track)
        if len(mine) and len(unknown):
            at = np.searchsorted(works.launched_ns[mine], spans.start_ns[rows[unknown]]) - 1
            stream[unknown] = np.where(at >= 0, works.stream[mine[np.maximum(at, 0)]], NONE)
    for number in np.unique(stream[stream >= 0]):
        mine = np.flatnonzero(stream == number)
        target[mine] = last_launched(works, int(number), spans.start_ns[rows[mine]])
    return _waits(trace, rows, stalls.track, target)


def _on_devices(trace: Trace, stalls: Stalls, works: Works, streams: tuple[int, ...]) -> list[Waits]:
    """Calls that wait for all streams of a device."""
    parts = []
    for number, track in enumerate(streams):
        mine = np.flatnonzero((stalls.device == trace.tracks[track].device) | (stalls.device == NONE))
        rows = stalls.call[mine]
        target = last_launched(works, number, trace.spans.start_ns[rows])
        parts.append(_waits(trace, rows, stalls.track[mine], target))
    return parts


def _on_events(trace: Trace, stalls: Stalls, works: Works) -> Waits:
    """Calls that wait for an event: whatever had ended last when they returned had certainly been launched before."""
    rows = stalls.call
    end = works.start_ns + works.dur_ns
    order = np.argsort(end, kind="stable")
    at = np.searchsorted(end[order], trace.spans.end_ns[rows] + _CLOCK_NS, "right") - 1
    target = order[np.maximum(at, 0)] if len(order) else np.full(len(rows), NONE)
    early = works.launched_ns[target] < trace.spans.start_ns[rows] if len(order) else np.zeros(len(rows), bool)
    return _waits(trace, rows, stalls.track, np.where((at >= 0) & early, target, NONE))


def _between_streams(
    trace: Trace, works: Works, streams: tuple[int, ...], rank: int, window_ns: tuple[int, int]
) -> Waits:
    """`cudaStreamWaitEvent`: the stream that waits, and the last work launched to the stream that it waits for.

    Where the trace does not say which, it is the stream that the thread used last.
    """
    spans, details = trace.spans, trace.waits
    ranks = np.array([t.rank for t in trace.tracks] or [0])
    rows = np.flatnonzero((spans.kind == Kind.CALL) & trace.name_rows(*_BETWEEN) & (ranks[spans.track] == rank))
    rows = rows[(spans.start_ns[rows] >= window_ns[0]) & (spans.start_ns[rows] < window_ns[1])]
    number = {(trace.tracks[t].device, trace.tracks[t].lane): i for i, t in enumerate(streams)}
    told = {
        int(spans.corr[span]): (number.get((device, waits), NONE), number.get((device, source), NONE))
        for span, waits, source, device in zip(
            details.span.tolist(),
            details.stream.tolist(),
            details.source_stream.tolist(),
            details.device.tolist(),
            strict=True,
        )
    }
    found = np.array([told.get(int(c), (NONE, NONE)) for c in spans.corr[rows]], np.int64).reshape(-1, 2)
    waiting, source = found[:, 0].copy(), found[:, 1].copy()
    after = np.searchsorted(works.launched_ns, spans.start_ns[rows])
    for i in range(len(rows)):  # few: one for each change of streams
        if waiting[i] == NONE and after[i] < len(works):
            waiting[i] = works.stream[after[i]]
        if source[i] == NONE:
            # At the start of the window, what went before is taken to be like its end.
            before = np.arange(after[i] - _BACK, after[i]) % len(works)
            others = before[works.stream[before] != waiting[i]]
            if len(others):
                source[i] = works.stream[others[-1]]
    target = np.full(len(rows), NONE, np.int64)
    for one in np.unique(source[source >= 0]):
        mine = np.flatnonzero(source == one)
        target[mine] = last_launched(works, int(one), spans.start_ns[rows[mine]])
    real = (waiting >= 0) & (target != NONE)
    return _waits(trace, rows[real], spans.track[rows[real]], target[real], hold=True, stream=waiting[real])


def _on_engines(trace: Trace, works: Works) -> list[Waits]:
    """Copies of one direction share an engine: one waits for the one before it, whatever its stream."""
    spans = trace.spans
    device = np.array([t.device for t in trace.tracks] or [NONE])[spans.track[works.work]]
    parts = []
    for direction in ("HtoD", "DtoH"):
        named = np.array([direction in name for name in trace.names] or [False])[spans.name[works.work]]
        for one in np.unique(device[named]):
            rows = np.flatnonzero(named & (device == one) & (works.call != NONE))
            before = np.roll(rows, 1)
            other = works.stream[before] != works.stream[rows]
            # What went before the window is taken to be like its end.
            target = np.where(np.arange(len(rows)) > 0, before, -2 - works.stream[before])[other]
            after = rows[other]
            holds = _waits(trace, works.call[after], works.track[after], target, hold=True, stream=works.stream[after])
            columns = {name: getattr(holds, name) for name in Waits.columns()}
            parts.append(Waits.of(**(columns | {"end_ns": holds.start_ns})))  # the call's time is its launch's
    return parts


def _mark_first(waits: Waits, works: Works) -> Waits:
    """Of the rows of one call, the one whose target ends last carries the call's own time and comes first."""
    end = np.append(works.start_ns + works.dur_ns, np.iinfo(np.int64).min)
    until = np.where(waits.target >= 0, end[np.maximum(waits.target, 0)], np.iinfo(np.int64).min)
    order = np.lexsort((-until // 2, waits.row, waits.start_ns))
    waits = waits.take(order)
    first = np.concatenate(([True], waits.row[1:] != waits.row[:-1]))[: len(waits)]
    columns = {name: getattr(waits, name) for name in Waits.columns()}
    return Waits.of(**(columns | {"first": first}))
