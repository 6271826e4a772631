"""Which slices belong together: the arrows of a trace."""

from __future__ import annotations

import numpy as np

from tracer.analysis.launches import find_processes
from tracer.exports._arrows import GPU_SPAN, GRAPH, HOST_SPAN, IDLE, STALL
from tracer.exports._scene import Scene
from tracer.trace import NONE, Kind


def draw_arrows(scene: Scene) -> None:
    """All arrows, by what they say."""
    _launches(scene)
    if scene.detail != "low":
        _backward(scene)
        _event_waits(scene)
    _stalls(scene)
    _idle(scene)


def _launches(scene: Scene) -> None:
    """Launch to work; to the graph where one launch made several pieces."""
    spans, launches, graphs = scene.trace.spans, scene.launches, scene.graphs
    tracks = len(scene.trace.tracks)
    in_graph = np.isin(
        launches.call.astype(np.int64) * tracks + spans.track[launches.work],
        graphs.call.astype(np.int64) * tracks + graphs.track,
    )
    in_graph &= spans.kind[launches.work] == Kind.KERNEL
    call, work = launches.call[~in_graph], launches.work[~in_graph]
    scene.arrows.add("launch", HOST_SPAN, call, spans.start_ns[call], GPU_SPAN, work, spans.start_ns[work])
    rows = np.arange(len(graphs), dtype=np.int32)
    starts = spans.start_ns[graphs.call]
    scene.arrows.add("graph launch", HOST_SPAN, graphs.call, starts, GRAPH, rows, graphs.start_ns)


def _stalls(scene: Scene) -> None:
    """Stall to the last work that it waited for."""
    held, spans = scene.stalled, scene.trace.spans
    rows = np.flatnonzero(held.last_work != NONE).astype(np.int32)
    work = held.last_work[rows]
    scene.arrows.add("stall", STALL, rows, held.start_ns[rows], GPU_SPAN, work, spans.start_ns[work])


def _idle(scene: Scene) -> None:
    """Idle time to the launch that ended it; not where the work was queued already and the launch had no part in it."""
    idle, spans = scene.idled, scene.trace.spans
    calls = np.full(len(idle), NONE, np.int32)
    known = idle.next_work != NONE
    calls[known] = scene.calls[idle.next_work[known]]
    own = [i for i, text in enumerate(scene.strings.texts) if text in ("gpu.gap", "gpu.wait")]
    rows = np.flatnonzero((calls != NONE) & ~np.isin(idle.cause, own)).astype(np.int32)
    calls = calls[rows]
    scene.arrows.add("idle", IDLE, rows, idle.start_ns[rows], HOST_SPAN, calls, spans.start_ns[calls])


def _backward(scene: Scene) -> None:
    """Forward operator to its backward, joined by autograd's sequence number.

    Of the operators with one number the innermost and last made the node of the
    graph; of those that ran it, the first is the outermost.
    """
    trace, ops = scene.trace, scene.trace.ops
    known = ops.sequence >= 0
    if not known.any():
        return
    spans = trace.spans
    keys = (find_processes(trace)[spans.track[ops.span]].astype(np.int64) << 40) + ops.sequence
    back = np.flatnonzero(known & (ops.forward_lane > 0))
    forward = np.flatnonzero(known & (ops.forward_lane <= 0))[::-1]
    made, last = np.unique(keys[forward], return_index=True)
    ran, first = np.unique(keys[back], return_index=True)
    at = np.minimum(np.searchsorted(made, ran), max(len(made) - 1, 0))
    found = made[at] == ran if len(made) else np.zeros(len(ran), np.bool_)
    sources, ends = ops.span[forward[last[at[found]]]], ops.span[back[first[found]]]
    real = spans.start_ns[sources] < spans.start_ns[ends]
    sources, ends = sources[real], ends[real]
    scene.arrows.add("backward", HOST_SPAN, sources, spans.start_ns[sources], HOST_SPAN, ends, spans.start_ns[ends])


def _event_waits(scene: Scene) -> None:
    """Last work before an event was recorded, to the first work after another stream waited for it."""
    trace, spans, waits = scene.trace, scene.trace.spans, scene.trace.waits
    rows = np.flatnonzero((waits.source_corr > 0) & (waits.source_stream != NONE))
    if not len(rows):
        return
    records = np.flatnonzero(np.isin(spans.corr, waits.source_corr[rows]) & (spans.kind == Kind.CALL))
    calls = dict(zip(spans.corr[records].tolist(), records.tolist()))
    streams = {(t.rank, t.pid, t.lane, t.device): i for i, t in enumerate(trace.tracks) if t.on_gpu}
    found = []
    for row in rows.tolist():
        record = calls.get(int(waits.source_corr[row]))
        wait = int(waits.span[row])
        host = trace.tracks[spans.track[wait]]
        device = int(waits.device[row])
        source = streams.get((host.rank, host.pid, int(waits.source_stream[row]), device))
        end = streams.get((host.rank, host.pid, int(waits.stream[row]), device))
        if record is None or source is None or end is None or source == end:
            continue
        last = _launched(scene, source, int(spans.start_ns[record]), before=True)
        first = _launched(scene, end, int(spans.start_ns[wait]), before=False)
        if last != NONE and first != NONE:
            found.append((last, first))
    if found:
        pairs = np.array(found, np.int32)
        begin = spans.start_ns[pairs]
        scene.arrows.add("event", GPU_SPAN, pairs[:, 0], begin[:, 0], GPU_SPAN, pairs[:, 1], begin[:, 1])


def _launched(scene: Scene, track: int, time_ns: int, *, before: bool) -> int:
    """The last work of a stream launched before a moment, or the first after it."""
    times, works = scene.launched_on(track)
    at = int(np.searchsorted(times, time_ns))
    if before:
        return int(works[at - 1]) if at else NONE
    return int(works[at]) if at < len(works) else NONE
