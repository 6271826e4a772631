"""What held each work in the recording: its launch, its stream, another stream, or a full queue."""

from __future__ import annotations

import numpy as np

from tracer.analysis.replay_waits import Waits
from tracer.analysis.replay_works import Works
from tracer.trace import NONE, Bools, Ints, Trace

QUEUE_LIMIT = 1_000  # pending launches that fill a stream's queue, as measured on an H200
LATENCY_NS = 8_000  # from call to kernel on an idle stream, where the trace has no example
_SPACING_NS = 1_000  # between two kernels of a stream, where the trace has no example
_FULL = 400  # fewer pending launches than this never fill a queue
_LATE_NS = 30_000  # work that starts this late was held by something that no call shows
_CLOCK_NS = 2_000
_NEVER = np.iinfo(np.int64).min // 4


def time_works(works: Works, waits: Waits, pending_ns: Ints) -> tuple[Works, Waits]:
    """The works with the times that held them, and the waits without holds that the recording contradicts.

    Either the launch or the stream held a work; the other one gets a typical value,
    so that it holds where a replay makes it the later one.
    """
    before = _ends_before(works, pending_ns)
    latency = np.where(works.copy, _latency(works, works.copy, before), _latency(works, ~works.copy, before))
    spacing = _spacing(works, before, latency)
    waits, until = _real_holds(works, waits, before, latency)
    free = np.maximum(before, until)
    queued = free > works.launched_ns + latency
    delay = works.start_ns - works.launched_ns
    columns = {name: getattr(works, name) for name in Works.columns()}
    columns["gap_ns"] = np.where(queued, works.start_ns - free, np.minimum(spacing, works.start_ns - before))
    columns["latency_ns"] = np.where(queued, np.minimum(latency, delay), delay)
    return Works.of(**columns), waits


def typical_latency(works: Works, pending_ns: Ints) -> int:
    """Typical time from the call to a kernel on an idle stream."""
    return _latency(works, ~works.copy, _ends_before(works, pending_ns))


def _ends_before(works: Works, pending_ns: Ints) -> Ints:
    """For each work the latest end of earlier work on its stream; of the first, when what was pending ended."""
    order = np.lexsort((works.start_ns, works.stream))
    before = pending_ns[works.stream].copy()
    if not len(works):
        return before
    end = works.start_ns + works.dur_ns
    # A stream's times are moved beyond all times of the stream before it: one running maximum serves all.
    span = int(end.max()) - int(works.start_ns.min()) + 1
    offset = works.stream[order].astype(np.int64) * span
    reach = np.maximum.accumulate(end[order] + offset) - offset
    same = works.stream[order][1:] == works.stream[order][:-1]
    before[order[1:][same]] = np.maximum(before[order[1:][same]], reach[:-1][same])
    return before


def _latency(works: Works, which: Bools, before: Ints) -> int:
    idle = which & (before < works.launched_ns) & (works.call != NONE)
    delay = (works.start_ns - works.launched_ns)[idle]
    return int(np.percentile(delay, 25)) if len(delay) else LATENCY_NS


def _spacing(works: Works, before: Ints, latency: Ints) -> int:
    between = (works.start_ns - before)[before > works.launched_ns + latency]
    return int(np.percentile(between, 25)) if len(between) else _SPACING_NS


def _real_holds(works: Works, waits: Waits, before: Ints, latency: Ints) -> tuple[Waits, Ints]:
    """Holds that the recording does not contradict, and for each work until when one held it.

    To those that calls ask for come those that only the times show: work that starts
    late, just when work of another stream ends (a shared engine, an event of a library).
    """
    end = works.start_ns + works.dur_ns
    until = np.full(len(works), _NEVER, np.int64)
    follower = np.full(len(waits), NONE, np.int64)
    for stream in np.unique(waits.stream[waits.hold]):
        mine = np.flatnonzero(works.stream == stream)
        asked = np.flatnonzero(waits.hold & (waits.stream == stream))
        at = np.searchsorted(works.launched_ns[mine], waits.start_ns[asked])
        known = at < len(mine)
        follower[asked[known]] = mine[at[known]]
    real = waits.hold & (follower >= 0)
    rows = np.flatnonzero(real)
    known = waits.target[rows] >= 0  # what was pending before the window contradicts nothing
    true = ~known | (works.start_ns[follower[rows]] >= end[np.maximum(waits.target[rows], 0)] - _CLOCK_NS)
    real[rows[~true]] = False
    rows = rows[true & known]
    np.maximum.at(until, follower[rows], end[waits.target[rows]])
    ready = np.maximum(np.maximum(works.launched_ns + latency, before), until)
    late = np.flatnonzero(works.start_ns - ready > _LATE_NS)
    if len(late):
        order = np.argsort(end, kind="stable")
        at = np.searchsorted(end[order], works.start_ns[late] + _CLOCK_NS, "right") - 1
        source = order[np.maximum(at, 0)]
        seen = (works.stream[source] != works.stream[late]) & (works.launched_ns[source] < works.launched_ns[late])
        seen &= works.start_ns[late] - end[source] < _LATE_NS
        late, source = late[seen], source[seen]
        until[late] = np.maximum(until[late], end[source])
    else:
        source = late
    found = Waits.of(
        row=works.call[late],
        track=works.track[late],
        start_ns=works.launched_ns[late],
        end_ns=works.launched_ns[late],
        target=source,
        hold=np.ones(len(late), bool),
        stream=works.stream[late],
        first=np.ones(len(late), bool),
    )
    return Waits.join([waits.take(~waits.hold | real), found]), until


def full_queues(trace: Trace, works: Works, streams: int) -> tuple[Bools, Ints, int]:
    """Which launches found their queue full, how many pending ones fill each, and how long a launch takes otherwise."""
    took = np.where(works.call != NONE, trace.spans.dur_ns[works.call], 0)
    plain = (works.call != NONE) & ~works.copy
    typical = int(np.median(took[plain])) if plain.any() else 0
    full = np.zeros(len(works), bool)
    limits = np.full(streams, QUEUE_LIMIT, np.int64)
    for stream in range(streams):
        mine = np.flatnonzero(works.stream == stream)
        if int(works.pieces[mine].sum()) < _FULL:
            continue
        ends = works.start_ns[mine] + works.dur_ns[mine]
        order = np.argsort(ends, kind="stable")
        done = np.concatenate(([0], np.cumsum(works.pieces[mine][order])))
        returned = works.launched_ns[mine] + took[mine]
        depth = np.cumsum(works.pieces[mine]) - done[np.searchsorted(ends[order], returned, "right")]
        held = plain[mine] & (depth >= _FULL) & (took[mine] > max(100_000, 10 * typical))
        if held.any():
            limits[stream] = int(np.median(depth[held]))
            full[mine[plain[mine] & (depth >= limits[stream] - 16) & (took[mine] > 2 * typical)]] = True
    return full, limits, typical
