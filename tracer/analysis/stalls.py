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

from tracer.analysis.calls import Does, what_calls_do
from tracer.analysis.held import COPY_HELD_NS, LAUNCH_HELD_NS, held_calls, outermost_op, with_driver_waits
from tracer.analysis.launches import Launches, early_by, find_devices, lead_at, process_keys
from tracer.trace import NONE, Bytes, Ids, Ints, Kind, Table, Trace

_CLOCK_NS = 5_000


__all__ = ["COPY_HELD_NS", "Stalls", "find_stalls"]


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
    rows, queue, load = held_calls(trace, launches, does)
    rows, track, queue, load = with_driver_waits(trace, launches, rows, queue, load)
    if not len(rows):
        return Stalls.empty()
    order = np.lexsort((rows, trace.spans.start_ns[rows]))
    rows, track, queue, load = rows[order], track[order], queue[order], load[order]
    copies, start = copies_before(trace, launches, does, rows)
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


def copies_before(trace: Trace, launches: Launches, does: Bytes, rows: Ids) -> tuple[tuple[Ids, Ids], Ints]:
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
        keys = process_keys(trace, np.concatenate((waits.span, rows))).tolist()
        of_key = {key: int(d) for key, d in zip(keys[: len(waits)], waits.device, strict=True) if d != NONE}
        told = np.array([of_key.get(key, NONE) for key in keys[len(waits) :]], np.int32)
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
        early = early_by(trace, launches, rank, one)
        at = np.searchsorted(spans.end_ns[work] + early, end[mine] + _CLOCK_NS, "right") - 1
        found = work[np.maximum(at, 0)]
        waited = (at >= 0) & (spans.end_ns[found] + early > start[mine])
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
