"""Calls that hold the CPU, and what made them.

- A row is one wait. A copy and the synchronisation after it, under one operator, are
  one wait; it starts with the copy only if the copy call itself was held.
- Every synchronising call is a row, long or short: a read costs the host's lead even
  where there is nothing left to wait for. Other calls are rows only if they were held:
  a launch by a full queue, a pageable copy by its staging, any call by a module load.
- `group` numbers the outermost call made from Python: one `repeat_interleave` is one
  group with two rows.
- The profiler's own synchronisation at the end of its window is left out.
- A synchronisation record without a call (a library used the driver directly) is a row
  of the process's launching thread, if that thread made no call meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.calls import WAITS, Does, what_calls_do
from tracer.analysis.intervals import Union, covered, union
from tracer.analysis.launches import Launches, find_devices, find_processes, lead_at
from tracer.trace import NONE, Bools, Bytes, Ids, Ints, Kind, Table, Trace

COPY_HELD_NS = 20_000  # an asynchronous copy call that takes longer was held
LAUNCH_HELD_NS = 50_000
LOAD_HELD_NS = 100_000
_QUEUE_FULL = 512  # launches pending from which a long launch without a label counts as held by the queue
_CLOCK_NS = 5_000


@dataclass(frozen=True, slots=True, eq=False)
class Stalls(Table):
    """One row for each wait of the host, sorted by start."""

    call: Ids  # -> spans: the call that waited, or a WAIT record without a call
    op: Ids  # -> spans: the outermost operator around it below Python; NONE
    start_ns: Ints
    dur_ns: Ints
    track: Ids  # the thread that was held
    device: Ids
    last_work: Ids  # -> spans: the last GPU work that it waited for; NONE
    lead_ns: Ints  # queued GPU work that the host was ahead by at the start, less what was left at the end
    idle_ns: Ints  # GPU idle that follows from it (filled by find_idle)
    does: Bytes  # calls.Does of the call; Does.LAUNCH, FILL or COPY here means: held by a full queue or by staging
    copy: Ids  # -> spans: the copy that it moves, on the GPU; NONE
    group: Ids  # the same for all waits of one outermost call
    queue: Bytes  # 1: held by a full launch queue
    load: Bytes  # 1: held by loading a module

    @property
    def end_ns(self) -> Ints:
        """When the host went on."""
        return self.start_ns + self.dur_ns


def find_stalls(trace: Trace, launches: Launches) -> Stalls:
    """All waits of the host."""
    does = what_calls_do(trace)
    rows, queue, load = _held_calls(trace, launches, does)
    rows, track, queue, load = _with_driver_waits(trace, launches, rows, queue, load)
    if not len(rows):
        return Stalls.empty()
    order = np.lexsort((rows, trace.spans.start_ns[rows]))
    rows, track, queue, load = rows[order], track[order], queue[order], load[order]
    copies, start = _copies_before(trace, launches, does, rows)
    start = np.where(copies[0] != NONE, start, trace.spans.start_ns[rows])
    keep = ~np.isin(rows, copies[0][copies[0] != rows])  # a held copy before a wait is part of that wait
    rows, track, queue, load, start = rows[keep], track[keep], queue[keep], load[keep], start[keep]
    copy_work = copies[1][keep]
    end = trace.spans.end_ns[rows]
    op = outermost_op(trace, rows)
    device = _devices(trace, launches, rows, track, copy_work)
    lost, last = _what_was_lost(trace, launches, start, end, track, device, copy_work)
    stalls = Stalls.of(
        call=rows,
        op=op,
        start_ns=start,
        dur_ns=end - start,
        track=track,
        device=device,
        last_work=last,
        lead_ns=lost,
        idle_ns=np.zeros(len(rows)),
        does=does[rows],
        copy=copy_work,
        group=_groups(trace, rows, op, track, does),
        queue=queue,
        load=load,
    )
    return stalls.take(np.lexsort((stalls.call, stalls.start_ns)))


def outermost_op(trace: Trace, rows: Ids | Ints) -> Ids:
    """For each span the outermost torch operator around it that Python (or autograd, or a compiled region) called."""
    spans = trace.spans
    plain = _plain_ops(trace)
    top = np.full(len(rows), NONE, np.int32)
    at = spans.parent[rows].copy()
    open_rows = np.flatnonzero(at != NONE)
    while len(open_rows):
        here = at[open_rows]
        is_op = plain[here]
        open_rows = open_rows[is_op]
        top[open_rows] = at[open_rows]
        at[open_rows] = spans.parent[at[open_rows]]
        open_rows = open_rows[at[open_rows] != NONE]
    return top


def _plain_ops(trace: Trace) -> Bools:
    """For each span, whether it is an operator proper: not a node of autograd or a compiled region, which wrap them."""
    by_name = np.array(
        [
            ("::" in name and not name.startswith("autograd::engine")) or name in ("detach", "detach_")
            for name in trace.names
        ]
        or [False]
    )
    found: Bools = (trace.spans.kind == Kind.OP) & by_name[trace.spans.name]
    return found


def _held_calls(trace: Trace, launches: Launches, does: Bytes) -> tuple[Ids, Bytes, Bytes]:
    """Rows of calls that were held, and whether by a full queue, by a module load."""
    spans = trace.spans
    waits = np.isin(does, WAITS) | (does == Does.COPY_WAIT)
    memory = np.isin(does, (Does.MALLOC, Does.FREE, Does.PIN, Does.UNPIN))
    full = _queue_full(trace, launches, does)
    copies = (does == Does.COPY) & (spans.dur_ns >= COPY_HELD_NS) & _moves_pageable(trace, launches)
    loading = _loading(trace, launches, does) & ~full & ~copies
    chosen = (waits | memory | full | copies | loading) & ~_own_sync(trace, does)
    rows = np.flatnonzero(chosen).astype(np.int32)
    return rows, full[rows].astype(np.int8), loading[rows].astype(np.int8)


def _overhead(trace: Trace, *names: str) -> Union:
    spans = trace.spans
    rows = np.flatnonzero((spans.kind == Kind.OVERHEAD) & trace.name_rows(*names))
    return union(spans.start_ns[rows], spans.end_ns[rows])


def _queue_full(trace: Trace, launches: Launches, does: Bytes) -> Bools:
    """Calls that put work into a queue and were held since it was full."""
    spans = trace.spans
    queueing = np.isin(does, (Does.LAUNCH, Does.FILL, Does.COPY)) & (spans.dur_ns >= LAUNCH_HELD_NS)
    rows = np.flatnonzero(queueing)
    found = np.zeros(len(spans), np.bool_)
    if not len(rows):
        return found
    full = _overhead(trace, "Command Buffer Full")
    if len(full[0]):
        labelled = covered(full, spans.start_ns[rows], spans.end_ns[rows]) * 2 > spans.dur_ns[rows]
        found[rows[labelled]] = True
        return found
    typical = np.median(spans.dur_ns[does == Does.LAUNCH]) if np.any(does == Does.LAUNCH) else 0
    rows = rows[spans.dur_ns[rows] > 10 * typical]
    opens = np.sort(spans.start_ns[launches.call])
    closes = np.sort(spans.end_ns[launches.work])
    pending = np.searchsorted(opens, spans.start_ns[rows]) - np.searchsorted(closes, spans.start_ns[rows], "right")
    found[rows[pending >= _QUEUE_FULL]] = True
    return found


def _loading(trace: Trace, launches: Launches, does: Bytes) -> Bools:
    """Calls that loaded a kernel or module before they did their own work."""
    spans = trace.spans
    calls = spans.kind == Kind.CALL
    loads = _overhead(trace, "Lazy Function Loading", "Runtime Triggered Module Loading", "Driver Compiler")
    rows = np.flatnonzero(calls & (spans.dur_ns >= LOAD_HELD_NS))
    found = np.zeros(len(spans), np.bool_)
    if not len(rows):
        return found
    labelled = covered(loads, spans.start_ns[rows], spans.end_ns[rows]) > 0
    found[rows[labelled | (does[rows] == Does.LOAD)]] = True
    # The first launch of each kernel loads it too; later ones that take long do not.
    names = spans.name[launches.work]
    order = np.lexsort((spans.start_ns[launches.call], names))
    first = order[np.unique(names[order], return_index=True)[1]]
    calls_of_first = launches.call[first]
    found[calls_of_first[(spans.dur_ns[calls_of_first] >= LOAD_HELD_NS) & (does[calls_of_first] == Does.LAUNCH)]] = True
    return found & ~np.isin(does, (*WAITS, Does.COPY_WAIT, Does.MALLOC, Does.FREE, Does.PIN, Does.UNPIN))


def _moves_pageable(trace: Trace, launches: Launches) -> Bools:
    """For each span, whether it is a call whose copy reads or writes pageable or managed memory."""
    names = np.array(["Pageable" in name or "Managed" in name for name in trace.names] or [False])
    found = np.zeros(len(trace.spans), np.bool_)
    found[launches.call[names[trace.spans.name[launches.work]]]] = True
    return found


def _own_sync(trace: Trace, does: Bytes) -> Bools:
    """The device synchronisation with which torch's profiler ends its window: the last of a process, nothing after."""
    spans = trace.spans
    found = np.zeros(len(spans), np.bool_)
    if "profiler_span" not in trace.meta:
        return found
    process = find_processes(trace)[spans.track]
    rows = np.flatnonzero(does == Does.DEVICE_WAIT)
    rows = rows[outermost_op(trace, rows) == NONE]
    for one in np.unique(process[rows]):
        last = rows[process[rows] == one][-1]
        active = (spans.kind == Kind.OP) | np.isin(does, (Does.LAUNCH, Does.COPY, Does.FILL, *WAITS))
        found[last] = not np.any(active & (spans.start_ns >= spans.end_ns[last]) & (process == one))
    return found


def _with_driver_waits(
    trace: Trace, launches: Launches, rows: Ids, queue: Bytes, load: Bytes
) -> tuple[Ids, Ids, Bytes, Bytes]:
    """The rows, and the thread of each, with those synchronisation records that no call accounts for."""
    spans = trace.spans
    track = spans.track[rows].astype(np.int32)
    host = trace.name_rows("Stream Sync", "Event Sync", "Context Sync", "Stream Synchronize", "Context Synchronize")
    records = np.flatnonzero((spans.kind == Kind.WAIT) & host)
    if not len(records):
        return rows, track, queue, load
    calls = np.flatnonzero((spans.kind == Kind.CALL) & (spans.corr > 0))
    alone = records[~np.isin(spans.corr[records], spans.corr[calls])]
    process = find_processes(trace)
    kept: list[int] = []
    threads: list[int] = []
    for record in alone.tolist():
        thread = _launching_thread(trace, launches, process, int(process[spans.track[record]]))
        if thread == NONE:
            continue
        mine = calls[spans.track[calls] == thread]
        overlap = (spans.start_ns[mine] < spans.end_ns[record]) & (spans.end_ns[mine] > spans.start_ns[record])
        if not np.any(overlap):
            kept.append(record)
            threads.append(thread)
    none = np.zeros(len(kept), np.int8)
    return (
        np.concatenate((rows, np.array(kept, np.int32))),
        np.concatenate((track, np.array(threads, np.int32))),
        np.concatenate((queue, none)),
        np.concatenate((load, none)),
    )


def _launching_thread(trace: Trace, launches: Launches, process: Ids, one: int) -> int:
    """The thread of a process that launched most."""
    tracks = trace.spans.track[launches.call]
    tracks = tracks[process[tracks] == one]
    return int(np.bincount(tracks).argmax()) if len(tracks) else NONE


def _copies_before(trace: Trace, launches: Launches, does: Bytes, rows: Ids) -> tuple[tuple[Ids, Ids], Ints]:
    """For each held call the copy call and the copy on the GPU that it waits for, and where the wait starts.

    A stream synchronisation belongs to the last copy before it under the same operator;
    without an operator, to a copy directly before it. A copy call belongs to itself.
    """
    spans = trace.spans
    work_of = np.full(len(spans), NONE, np.int32)
    work_of[launches.call[::-1]] = launches.work[::-1]
    copies = np.flatnonzero(np.isin(does, (Does.COPY, Does.COPY_WAIT)))
    call = np.full(len(rows), NONE, np.int32)
    own = np.isin(does[rows], (Does.COPY, Does.COPY_WAIT))
    call[own] = rows[own]
    start = spans.start_ns[rows].copy()
    waits = np.flatnonzero(does[rows] == Does.STREAM_WAIT)
    if len(copies) and len(waits):
        # The last copy on the same thread: order by thread, then by row (rows are sorted by time).
        size = np.int64(len(spans))
        keys = np.sort(spans.track[copies] * size + copies)
        mine = rows[waits]
        at = np.searchsorted(keys, spans.track[mine] * size + mine) - 1
        found = (keys[np.maximum(at, 0)] % size).astype(np.int32)
        near = (at >= 0) & (spans.track[found] == spans.track[mine]) & (spans.parent[found] == spans.parent[mine])
        near &= (spans.parent[mine] != NONE) | (spans.start_ns[mine] - spans.end_ns[found] < LAUNCH_HELD_NS)
        # Python itself is no operator: a copy and a later synchronize() in one function are two things.
        inside = (spans.parent[mine] == NONE) | (spans.kind[np.maximum(spans.parent[mine], 0)] == Kind.OP)
        near &= inside
        call[waits[near]] = found[near]
        long = near & (spans.dur_ns[found] >= COPY_HELD_NS)
        start[waits[long]] = spans.start_ns[found[long]]
    work = np.where(call != NONE, work_of[np.maximum(call, 0)], NONE).astype(np.int32)
    return (call, work), start


def _devices(trace: Trace, launches: Launches, rows: Ids, track: Ids, copy_work: Ids) -> Ids:
    """The device that each held call waits for: of its copy, of its record, else of its thread's last launch."""
    spans = trace.spans
    of_track = np.array([t.device for t in trace.tracks] or [NONE], np.int32)
    device = np.full(len(rows), NONE, np.int32)
    order = np.lexsort((launches.call, spans.track[launches.call]))
    calls, work = launches.call[order], launches.work[order]
    if len(calls):
        size = np.int64(len(spans))
        at = np.searchsorted(spans.track[calls] * size + calls, track * size + rows, "right") - 1
        known = (at >= 0) & (spans.track[calls[np.maximum(at, 0)]] == track)
        device[known] = of_track[spans.track[work[at[known]]]]
    waits = trace.waits
    if len(waits):
        by_corr = {int(c): int(d) for c, d in zip(spans.corr[waits.span], waits.device, strict=True) if d != NONE}
        told = np.array([by_corr.get(int(c), NONE) for c in spans.corr[rows]], np.int32)
        device = np.where(told != NONE, told, device).astype(np.int32)
    copied = copy_work != NONE
    device[copied] = of_track[spans.track[copy_work[copied]]]
    only = dict(reversed(find_devices(trace)))
    ranks = np.array([only.get(t.rank, NONE) for t in trace.tracks] or [NONE], np.int32)
    return np.where(device == NONE, ranks[track], device).astype(np.int32)


def _what_was_lost(
    trace: Trace, launches: Launches, start: Ints, end: Ints, track: Ids, device: Ids, copy_work: Ids
) -> tuple[Ints, Ids]:
    """The lead that each wait cost, and the last work that it waited for."""
    spans = trace.spans
    lost = np.zeros(len(start), np.int64)
    last = np.full(len(start), NONE, np.int32)
    ranks = np.array([t.rank for t in trace.tracks] or [0])[track]
    for rank, one in find_devices(trace):
        mine = np.flatnonzero((ranks == rank) & (device == one))
        if not len(mine):
            continue
        before = lead_at(trace, launches, rank, one, start[mine])
        after = lead_at(trace, launches, rank, one, end[mine])
        lost[mine] = np.maximum(before - np.maximum(after, 0), 0)
        streams = np.array([t.rank == rank and t.device == one for t in trace.tracks])
        work = np.flatnonzero(trace.is_work & streams[spans.track])
        work = work[np.argsort(spans.end_ns[work], kind="stable")]
        at = np.searchsorted(spans.end_ns[work], end[mine] + _CLOCK_NS, "right") - 1
        found = work[np.maximum(at, 0)]
        waited = (at >= 0) & (spans.end_ns[found] > start[mine])
        last[mine[waited]] = found[waited]
    return lost, last


def _groups(trace: Trace, rows: Ids, op: Ids, track: Ids, does: Bytes) -> Ids:
    """Numbers for the outermost calls: by operator; without one, a train of memory calls is one call."""
    spans = trace.spans
    order = np.lexsort((rows, track))
    previous = np.full(len(rows), NONE, np.int64)
    previous[order[1:]] = order[:-1]
    known = np.maximum(previous, 0)
    memory = np.isin(does[rows], (Does.FREE, Does.UNPIN, Does.STREAM_WAIT, Does.DEVICE_WAIT, Does.EVENT_WAIT))
    freeing = np.isin(does[rows], (Does.FREE, Does.UNPIN))
    train = (previous >= 0) & (track[known] == track) & (op == NONE) & (op[known] == NONE) & freeing & memory[known]
    train &= (spans.parent[rows] == spans.parent[rows[known]]) & (freeing[known])
    # Any span of the thread between two calls ends the train.
    size = np.int64(len(spans))
    host = np.sort(spans.track * size + np.arange(size))
    between = np.searchsorted(host, track * size + rows) - np.searchsorted(host, track[known] * size + rows[known])
    train &= between == 1
    alone = np.where(op == NONE, -2 - np.arange(len(rows), dtype=np.int64), op.astype(np.int64))
    for at in order[train[order]]:  # in order of time, so that a whole train takes its first number
        alone[at] = alone[previous[at]]
    _, numbers = np.unique(alone, return_inverse=True)
    return numbers.astype(np.int32)
