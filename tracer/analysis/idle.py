"""When the GPU had nothing to do, and what the CPU did then.

Every nanosecond in which a device runs no kernel, copy or fill has exactly one cause,
so the rows of a device sum to its idle time. Before its first work it is the *head*,
after its last the *tail*; work launched before the window counts as work like any.

Between two pieces of work, what ended the gap decides whom to ask. If that work was
already launched when the gap began, the host is not to blame: a short gap is the
device's own (`gpu.gap`), a long one waits for another stream, an event, a peer copy or
another process that shares the device (`gpu.wait`). Else it is the thread that launched
it, if it feeds the device (a tenth of its GPU time or more), else the one that feeds it
most; then the others that feed it. Of several causes at one moment it is the first of:

1. the profiler's own work, or a break in which it was off (`profiler`);
2. a call that holds the thread (`stall`): the row names it;
3. waiting for the DataLoader (`input.bound`), garbage collection (`host.gc`), compilation
   (`compile.jit`), if annotations or functions say so;
4. another thread of the process that holds the GIL (`host.gil`): the row names that thread;
5. a stall before that: its effect lasts until a launch again finds the device busy, the
   next stall begins, or ten times the lead that was lost is used up. A wait that lost
   no lead has no effect: the GPU would have been idle anyway;
6. an operator that works on the CPU for long, or a stretch without any operator or call
   (`host.hot` if its line is known, else `host.late`);
7. an operator's first use, where it does something for long that is neither a call nor
   another operator: libraries set themselves up then (`load.library`);
8. operators, calls and the Python between them (`launch.bound`).

The causes are looked for after the correction of clocks that disagree.
What no thread of the trace can answer for is `unknown`, and so is a gap where work that was launched
in between has no record: it may have run then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.calls import Does, captured, what_calls_do
from tracer.analysis.idle_layers import find_layers, named_parts, window_of
from tracer.analysis.intervals import Union, clip, distinct, gaps, intersect, subtract, union
from tracer.analysis.launches import (
    Launches,
    busy,
    device_tracks,
    early_by,
    feeding_threads,
    find_devices,
    find_processes,
)
from tracer.analysis.stalls import Stalls
from tracer.trace import NONE, Bools, Ids, Ints, Table, Trace

CAUSES = (
    "unknown",
    "head",
    "tail",
    "profiler",
    "stall",
    "input.bound",
    "host.gc",
    "host.gil",
    "compile.jit",
    "host.hot",
    "host.late",
    "load.library",
    "launch.bound",
    "gpu.gap",
    "gpu.wait",
)
__all__ = ["CAUSES", "Idle", "find_idle", "idle_of", "named_parts", "window_of"]

_OWN_GAP_NS = 20_000  # gaps between queued work up to this long are the device's own


@dataclass(frozen=True, slots=True, eq=False)
class Idle(Table):
    """One row for each stretch of a device's idle time with one cause, sorted by device and start."""

    start_ns: Ints
    dur_ns: Ints
    rank: Ids
    device: Ids
    cause: Ids  # -> CAUSES
    stall: Ids  # -> Stalls, for the cause "stall"; NONE
    track: Ids  # the host thread to look at; NONE
    next_work: Ids  # -> spans: the work that ends the gap; NONE


def find_idle(trace: Trace, launches: Launches, stalls: Stalls, window_ns: tuple[int, int] | None = None) -> Idle:
    """The idle time of all devices, by cause, in the trace's window or a part of it."""
    low, high = window_ns or window_of(trace)
    parts = [_of_device(trace, launches, stalls, *device, low, high) for device in find_devices(trace)]
    return Idle.join(parts)


def _of_device(trace: Trace, launches: Launches, stalls: Stalls, rank: int, device: int, low: int, high: int) -> Idle:
    worked = clip(busy(trace, rank, device), low, high)
    opens, closes = gaps(*worked, low, high)
    rows: list[Idle] = []

    def add(cause: str, part: Union, track: int, stall: Ids | None = None) -> None:
        size = len(part[0])
        rows.append(
            Idle.of(
                start_ns=part[0],
                dur_ns=part[1] - part[0],
                rank=np.full(size, rank),
                device=np.full(size, device),
                cause=np.full(size, CAUSES.index(cause)),
                stall=np.full(size, NONE) if stall is None else stall,
                track=np.full(size, track),
                next_work=np.full(size, NONE),
            )
        )

    # A device whose work lies outside the window, or took no time, waits for its first work all the while.
    first, last = (int(worked[0][0]), int(worked[1][-1])) if len(worked[0]) else (high, high)
    add("head", clip((opens, closes), low, first), NONE)
    add("tail", clip((opens, closes), last, high), NONE)
    inner = (opens >= first) & (closes <= last)
    opens, closes = opens[inner], closes[inner]
    if len(opens):
        work, order = _ending(trace, rank, device, closes)
        early = early_by(trace, launches, rank, device)
        opens, closes = opens + early, closes + early  # on the host's clock from here on

        def add_here(cause: str, part: Union, track: int, stall: Ids | None = None) -> None:
            add(cause, (part[0] - early, part[1] - early), track, stall)

        call = np.full(len(trace.spans), NONE, np.int32)
        call[launches.work] = launches.call
        calls = call[work]
        known = calls != NONE
        lost = known & _work_lost(trace, launches)[np.maximum(calls, 0)] & (closes - opens > _OWN_GAP_NS)
        add_here("unknown", (opens[lost], closes[lost]), NONE)
        work, opens, closes, calls, known = (column[~lost] for column in (work, opens, closes, calls, known))
        queued = known & (trace.spans.end_ns[np.maximum(calls, 0)] <= opens)
        short = closes - opens <= _OWN_GAP_NS
        add_here("gpu.gap", (opens[queued & short], closes[queued & short]), NONE)
        add_here("gpu.wait", (opens[queued & ~short], closes[queued & ~short]), NONE)
        feeds, main = feeding_threads(trace, launches, rank, device)
        if main == NONE:
            main = _any_thread(trace, order)
        caller = trace.spans.track[np.maximum(calls, 0)]
        thread = np.where(known & feeds[caller], caller, main)
        rebuilt = _rebuilt(trace, launches, rank, device, early)
        for track in distinct(thread[~queued]):
            chosen = (thread == track) & ~queued
            rest: Union = (opens[chosen], closes[chosen])
            if track == NONE:
                add_here("unknown", rest, NONE)
                continue
            others = [one for one in np.flatnonzero(feeds).tolist() if one != track]
            for one, layer in find_layers(trace, stalls, (opens, closes), rebuilt, [int(track), *others], device):
                part, at = _overlap(rest, layer.starts, layer.ends)
                add_here(layer.cause, part, one, None if layer.stall is None else layer.stall[at])
                rest = subtract(rest, union(layer.starts, layer.ends))
            add_here("launch.bound", rest, int(track))
    idle = Idle.join(rows)
    idle = idle.take(np.argsort(idle.start_ns, kind="stable"))
    return _with_next_work(trace, idle, rank, device)


def _ending(trace: Trace, rank: int, device: int, closes: Ints) -> tuple[Ids, int]:
    """The work that begins where each gap ends, and a track of the device."""
    streams = device_tracks(trace, rank, device)
    work = np.flatnonzero(trace.is_work & streams[trace.spans.track] & (trace.spans.dur_ns > 0)).astype(np.int32)
    at = np.searchsorted(trace.spans.start_ns[work], closes)
    return work[np.minimum(at, len(work) - 1)], int(np.flatnonzero(streams)[0])


def _with_next_work(trace: Trace, idle: Idle, rank: int, device: int) -> Idle:
    streams = device_tracks(trace, rank, device)
    work = np.flatnonzero(trace.is_work & streams[trace.spans.track] & (trace.spans.dur_ns > 0))
    if not len(work):
        return idle
    at = np.searchsorted(trace.spans.start_ns[work], idle.start_ns)
    found = np.where(at < len(work), work[np.minimum(at, len(work) - 1)], NONE)
    columns = {name: getattr(idle, name) for name in Idle.columns()}
    return Idle.of(**(columns | {"next_work": found}))


def _work_lost(trace: Trace, launches: Launches) -> Bools:
    """For each span, whether it is a launching call and the launch before it on its thread has no work in the trace."""
    spans = trace.spans
    served = np.zeros(len(spans), np.bool_)
    served[launches.call] = True
    rows = np.flatnonzero(served | ((what_calls_do(trace) == Does.LAUNCH) & ~captured(trace)))
    rows = rows[np.argsort(spans.track[rows], kind="stable")]
    before, after = rows[:-1], rows[1:]
    found = np.zeros(len(spans), np.bool_)
    found[after[~served[before] & served[after] & (spans.track[before] == spans.track[after])]] = True
    return found


def _any_thread(trace: Trace, stream: int) -> int:
    """A thread of the process that owns a stream, NONE if there is none."""
    process = find_processes(trace)
    host = [i for i, t in enumerate(trace.tracks) if not t.on_gpu and process[i] == process[stream]]
    return host[0] if host else NONE


def _rebuilt(trace: Trace, launches: Launches, rank: int, device: int, early_ns: int) -> Ints:
    """When the host was ahead of the device: starts of calls whose work found earlier work still running."""
    spans = trace.spans
    mine = device_tracks(trace, rank, device)[spans.track[launches.work]]
    call, work = launches.call[mine], launches.work[mine]
    reach = np.maximum.accumulate(spans.end_ns[work])
    ahead = spans.end_ns[call][1:] < reach[:-1] + early_ns
    return np.sort(spans.start_ns[call][1:][ahead])


def _overlap(of: Union, starts: Ints, ends: Ints) -> tuple[Union, Ints]:
    """The parts of a union inside disjoint intervals, cut at their borders, and which interval each part is in."""
    common = intersect(of, union(starts, ends))
    cuts = distinct(np.concatenate((common[0], common[1], starts, ends)))
    opens, closes = cuts[:-1], cuts[1:]
    at = np.searchsorted(common[0], opens, "right") - 1
    inside = (at >= 0) & (opens < common[1][np.maximum(at, 0)]) if len(common[0]) else np.zeros(len(opens), np.bool_)
    opens, closes = opens[inside], closes[inside]
    return (opens, closes), np.searchsorted(starts, opens, "right") - 1


def idle_of(stalls: Stalls, idle: Idle) -> Ints:
    """For each stall the idle time that it answers for."""
    mine = idle.stall != NONE
    return np.bincount(idle.stall[mine], weights=idle.dur_ns[mine], minlength=len(stalls)).astype(np.int64)
