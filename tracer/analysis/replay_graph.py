"""The window as a graph: what each host thread did between its calls, and which GPU work waits for what.

- Threads that take turns (the main thread and autograd's) are one chain: while one
  works the other stands still. Threads that run beside the main one follow its clock.
- Work starts when its launch has reached the device and its stream is free.
- A host wait that was over at once in the recording is kept: it may hold the host when
  another one is gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.launches import Launches
from tracer.analysis.replay_chains import find_chains
from tracer.analysis.replay_timing import full_queues, time_works, typical_latency
from tracer.analysis.replay_waits import Waits, find_waits
from tracer.analysis.replay_works import Works, find_works
from tracer.analysis.stalls import Stalls
from tracer.trace import NONE, Bools, Bytes, Ids, Ints, Kind, Table, Trace

LAUNCH, WAIT, HOLD, END = 0, 1, 2, 3
_QUICK_NS = 3_000  # a wait that finds nothing to wait for, where the trace has no example
_TAIL_NS = 10_000  # more than this between the end of the work and the return is not the wait's doing


@dataclass(frozen=True, slots=True, eq=False)
class Items(Table):
    """One row for each thing that a host thread did to the GPU, in order of time."""

    kind: Bytes  # LAUNCH, WAIT, HOLD (one stream waits for another), END (of the window)
    row: Ids  # -> spans: the call
    chain: Ids  # 0 is the chain that steps
    start_ns: Ints
    end_ns: Ints
    before_ns: Ints  # host time since the chain's last item
    own_ns: Ints  # host time of the call itself, its waiting not counted
    before_events: Ints  # ops and calls recorded in that time
    own_events: Ints
    work: Ids  # of a LAUNCH: -> works
    target: Ids  # of a WAIT or HOLD: -> works; NONE: nothing; -2 - n: what stream n had pending
    stream: Ids  # of a HOLD: the stream that waits
    tail_ns: Ints  # of a WAIT: from the end of the target to the return of the call
    anchor_ns: Ints  # of other chains: time since the stepping chain's last item


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """All that a replay needs of one process."""

    window_ns: tuple[int, int]
    items: Items
    works: Works
    streams: tuple[int, ...]  # -> Trace.tracks
    chains: Ids  # for each track its chain, NONE
    pending_ns: Ints  # for each stream, until when it works off what was launched before the window
    limits: Ints  # for each stream, pending launches that fill its queue
    full: Bools  # for each work, whether its launch found the queue full
    launch_ns: int  # host time of a typical launch
    latency_ns: int  # from call to kernel on an idle stream


def build_graph(
    trace: Trace, launches: Launches, stalls: Stalls, rank: int, window_ns: tuple[int, int], step_track: int
) -> Graph:
    """The graph of one rank's process in a window, which the thread of `step_track` steps through."""
    works, streams, pending = find_works(trace, launches, rank, window_ns)
    waits = find_waits(trace, stalls, works, streams, rank, window_ns)
    chains = find_chains(trace, np.concatenate((works.call, waits.row)), step_track)
    latency = typical_latency(works, pending)
    works, waits = time_works(works, waits, pending)
    full, limits, launch = full_queues(trace, works, len(streams))
    items = _make_items(trace, works, waits, chains, window_ns, np.where(full, launch, NONE))
    items = _split_waits(items, works, pending)
    return Graph(window_ns, items, works, streams, chains, pending, limits, full, launch, latency)


def _make_items(
    trace: Trace, works: Works, waits: Waits, chains: Ids, window_ns: tuple[int, int], short_ns: Ints
) -> Items:
    spans = trace.spans
    low, high = window_ns
    called = works.call != NONE
    returned = np.where(called, spans.end_ns[works.call], works.launched_ns)
    # A copy that its call waited for is launched at once and waited for by an item of its own.
    returned = np.where(called & np.isin(works.call, waits.row[~waits.hold]), works.launched_ns, returned)
    chain_of = np.append(chains, 0)
    kind = np.concatenate((np.full(len(works), LAUNCH), np.where(waits.hold, HOLD, WAIT), [END]))
    start = np.concatenate((works.launched_ns, waits.start_ns, [high]))
    first = np.concatenate((np.ones(len(works), bool), waits.first, [True]))
    # A hold comes before the launch that it holds, a copy's launch before the wait for it.
    order = np.lexsort((~first, np.array([1, 2, 0, 3])[kind], start))
    none = np.full(len(waits), NONE)
    columns = {
        "kind": kind,
        "row": np.concatenate((works.call, waits.row, [NONE])),
        "chain": np.concatenate((chain_of[works.track], chain_of[waits.track], [0])).clip(0),
        "start_ns": start,
        "end_ns": np.concatenate((returned, waits.end_ns, [high])),
        "work": np.concatenate((np.arange(len(works)), none, [NONE])),
        "target": np.concatenate((np.full(len(works), NONE), waits.target, [NONE])),
        "stream": np.concatenate((works.stream, waits.stream, [NONE])),
        "tail_ns": np.zeros(len(kind)),
    }
    columns = {name: column[order] for name, column in columns.items()}
    times = _host_times(trace, columns, chains, low)
    most = np.concatenate((np.where(short_ns != NONE, short_ns, high), np.where(waits.first, high, 0), [high]))[order]
    times["own_ns"] = np.minimum(times["own_ns"], most)
    return Items.of(**columns, **times)


def _host_times(trace: Trace, columns: dict[str, Ints], chains: Ids, low: int) -> dict[str, Ints]:
    """Host time between the items of each chain, and how much was recorded in it."""
    spans = trace.spans
    chain, start, end = columns["chain"], columns["start_ns"], columns["end_ns"]
    before, took, anchor = (
        np.zeros(len(start), np.int64),
        np.zeros(len(start), np.int64),
        np.zeros(len(start), np.int64),
    )
    events = np.zeros(len(start), np.int64)
    main = np.flatnonzero(chain == 0)
    main_reach = np.maximum.accumulate(np.concatenate(([low], end[main])))
    host_rows = np.flatnonzero(np.isin(spans.kind, (Kind.OP, Kind.CALL)))
    for number in np.unique(chain):
        mine = np.flatnonzero(chain == number)
        reach = np.maximum.accumulate(np.concatenate(([low], end[mine])))[:-1]
        before[mine] = np.maximum(start[mine] - reach, 0)
        took[mine] = np.maximum(end[mine] - np.maximum(start[mine], reach), 0)
        recorded = spans.start_ns[host_rows[chains[spans.track[host_rows]] == number]]
        events[mine] = np.searchsorted(recorded, start[mine]) - np.searchsorted(
            recorded, np.minimum(reach, start[mine])
        )
        if number:
            since = np.searchsorted(main, mine)
            anchor[mine] = np.maximum(start[mine] - main_reach[since], 0)
    return {
        "before_ns": before,
        "own_ns": took,
        "before_events": events,
        "own_events": (took > 0).astype(np.int64),
        "anchor_ns": anchor,
    }


def _split_waits(items: Items, works: Works, pending_ns: Ints) -> Items:
    """Part the time of each waiting call into its own and what it waited, as the end of its target tells."""
    waits = np.flatnonzero((items.kind == WAIT) & (items.target != NONE))
    ends = np.concatenate((works.start_ns + works.dur_ns, pending_ns[::-1]))
    target = items.target[waits]
    until = ends[np.where(target >= 0, target, target + 1)]  # -2 is the last of `ends`, the first pending stream
    own = items.own_ns[waits]
    held = (own > 0) & (until > items.end_ns[waits] - own)
    quick = own[(own > 0) & ~held]
    quick_ns = min(int(np.median(quick)), _QUICK_NS) if len(quick) else _QUICK_NS
    tails = (items.end_ns[waits] - until)[held]
    tail_ns = min(max(int(np.median(tails)), 0), _TAIL_NS) if len(tails) else _QUICK_NS
    columns = {name: getattr(items, name).copy() for name in Items.columns()}
    columns["tail_ns"][waits] = np.where(
        held, items.end_ns[waits] - until, np.minimum(tail_ns, items.end_ns[waits] - until)
    )
    columns["own_ns"][waits] = np.where(held, np.minimum(own, quick_ns), own)
    return Items.of(**columns)
