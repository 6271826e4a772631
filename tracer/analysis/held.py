"""Which calls were held, and by what: a wait, memory, a full queue, a pageable copy, a module load."""

from __future__ import annotations

import numpy as np

from tracer.analysis.calls import WAITS, Does
from tracer.analysis.intervals import Union, covered, union
from tracer.analysis.launches import Launches, find_processes, process_keys
from tracer.trace import NONE, Bools, Bytes, Ids, Ints, Kind, Trace

COPY_HELD_NS = 20_000  # an asynchronous copy call that takes longer was held
LAUNCH_HELD_NS = 50_000
LOAD_HELD_NS = 100_000
_QUEUE_FULL = 512  # launches pending from which a long launch without a label counts as held by the queue


def held_calls(trace: Trace, launches: Launches, does: Bytes) -> tuple[Ids, Bytes, Bytes]:
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


def with_driver_waits(
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
    keys = process_keys(trace, np.concatenate((calls, records)))
    alone = records[~np.isin(keys[len(calls) :], keys[: len(calls)])]
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
