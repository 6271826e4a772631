"""Runs a graph again: when would the host and each stream have been where?

Between two points where threads or streams wait for each other, all is fixed but the
two times at which host and stream enter: the stream leaves at the later of "entered,
plus all work" and "host entered, plus what its last launches take". So such a block is
three numbers, found for all blocks at once on whole columns, and the loop in Python
runs over blocks, not over calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracer.analysis.replay_graph import END, HOLD, LAUNCH, WAIT, Graph
from tracer.trace import NONE, Bools, Ints

_BLOCK = 64  # launches in a block at most: how exactly a full queue is met
_FOLLOWS = -(1 << 62)
_SETTLED = 0.001  # passes that differ by less than this share are the steady pace
_PASSES = 6


@dataclass(frozen=True, slots=True, eq=False)
class Costs:
    """What may differ between two replays of one graph; columns of its items and works."""

    before_ns: Ints
    own_ns: Ints
    waits: Bools  # for each item: does it wait, if it is a WAIT
    dur_ns: Ints
    gap_ns: Ints
    latency_ns: Ints
    queued: Bools  # for each stream, whether its queue has a limit


@dataclass(frozen=True, slots=True)
class Run:
    """One replay of the window."""

    first_ns: int  # how long the stepping thread took for the window as it was entered
    steady_ns: int  # and for each further window if it came again and again, streams included
    drained_ns: int  # until all work of the first window was done
    host_ns: int  # of the stepping thread in a window: its own time without waits
    waited_ns: int  # of the stepping thread in the last window


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The graph cut into blocks; what no change of costs alters."""

    graph: Graph
    block: Ints  # for each item
    heads: Ints  # first item of each block
    order: Ints  # launch items by (stream, time)
    groups: Ints  # first position in `order` of each (block, stream): an entry
    by_block: Ints  # entries, block by block
    entry_stream: Ints  # of each, in that order
    target: Ints  # for each block the place, in the list of ends, that its head waits for; NONE
    queue: Ints  # for each entry (block by block) the place that a full queue makes it wait for
    lists: tuple[list[int], ...]  # chain, target, tail, stream of each block's head; its first entry, and the next's


def make_plan(graph: Graph) -> Plan:
    """Cut a graph where something waits, where something is waited for, and where the thread changes."""
    items, works = graph.items, graph.works
    launches = np.flatnonzero(items.kind == LAUNCH)
    item_of = np.empty(len(works), np.int64)
    item_of[items.work[launches]] = launches
    cut = np.isin(items.kind, (WAIT, HOLD, END))
    cut[0] = True
    cut[1:] |= items.chain[1:] != items.chain[:-1]
    targets = items.target[items.target >= 0]
    cut[item_of[targets] + 1] = True  # the END item is last: there is always one more
    cut[launches[::_BLOCK]] = True
    for number in np.unique(works.stream[graph.full]):
        # Where the queue was full in the recording, each launch and the work that it waited for count.
        mine = np.flatnonzero(works.stream == number)
        full = np.flatnonzero(graph.full[mine])
        done = np.cumsum(works.pieces[mine])
        freed = np.searchsorted(done, done[full] - works.pieces[mine[full]] + 1 - graph.limits[number])
        cut[item_of[mine[full]]] = True
        cut[item_of[mine[freed]] + 1] = True
    block = np.cumsum(cut) - 1
    order = launches[np.argsort(works.stream[items.work[launches]], kind="stable")]
    stream = works.stream[items.work[order]].astype(np.int64)
    new = np.concatenate(([True], (block[order][1:] != block[order][:-1]) | (stream[1:] != stream[:-1])))
    groups = np.flatnonzero(new[: len(order)])
    entry_block, entry_stream = block[order[groups]], stream[groups]
    by_block = np.argsort(entry_block, kind="stable")
    entry_at = np.searchsorted(entry_block[by_block], np.arange(block[-1] + 2))
    # The list of ends of one pass: first each stream's as the pass begins, then each entry's, block by block.
    place = np.empty(len(groups), np.int64)
    place[by_block] = np.arange(len(groups)) + len(graph.streams)
    entry_of = np.empty(len(items), np.int64)
    entry_of[order] = np.cumsum(new[: len(order)]) - 1
    heads = np.flatnonzero(cut)
    head_target = items.target[heads]
    target = np.where(head_target <= -2, -2 - head_target, NONE)
    real = head_target >= 0
    target[real] = place[entry_of[item_of[head_target[real]]]]
    queue = _queue_places(graph, order, groups, entry_stream, place)
    columns = (items.chain[heads], target, items.tail_ns[heads], items.stream[heads], entry_at[:-1], entry_at[1:])
    lists = tuple(column.tolist() for column in columns)
    return Plan(graph, block, heads, order, groups, by_block, entry_stream[by_block], target, queue[by_block], lists)


def _queue_places(graph: Graph, order: Ints, groups: Ints, stream: Ints, place: Ints) -> Ints:
    """For each entry the end that its first launch waits for if the queue is full.

    Places below zero lie in the passes before, each as long as all places of one.
    """
    found = np.full(len(groups), _FOLLOWS, np.int64)
    size = len(groups) + len(graph.streams)
    pieces = np.add.reduceat(graph.works.pieces[graph.items.work[order]], groups) if len(groups) else np.empty(0)
    for number in range(len(graph.streams)):
        mine = np.flatnonzero(stream == number)
        if not len(mine):
            continue
        done = np.cumsum(pieces[mine]).astype(np.int64)
        total = int(done[-1])
        need = done - pieces[mine].astype(np.int64) + 1 - int(graph.limits[number])
        back = np.maximum(-((need - 1) // total), 0)
        at = np.searchsorted(done, need + back * total)
        found[mine] = np.where(at < len(mine), place[mine[np.minimum(at, len(mine) - 1)]] - back * size, _FOLLOWS)
    return found


def as_recorded(graph: Graph) -> Costs:
    """The costs that give back the recording."""
    items, works = graph.items, graph.works
    return Costs(
        before_ns=items.before_ns,
        own_ns=items.own_ns,
        waits=items.kind == WAIT,
        dur_ns=works.dur_ns,
        gap_ns=works.gap_ns,
        latency_ns=works.latency_ns,
        queued=np.ones(len(graph.streams), bool),
    )


def faster_host(graph: Graph, costs: Costs, event_ns: float) -> Costs:
    """The costs without what recording one op or call took; a stretch keeps a quarter of its time."""
    items = graph.items
    before = np.maximum(costs.before_ns - event_ns * items.before_events, costs.before_ns // 4).astype(np.int64)
    own = np.maximum(costs.own_ns - event_ns * items.own_events, costs.own_ns // 4).astype(np.int64)
    return replace(costs, before_ns=before, own_ns=own)


def shorter_host(costs: Costs, share: float) -> Costs:
    """The costs with this share of the host's own time left."""
    before, own = (costs.before_ns * share).astype(np.int64), (costs.own_ns * share).astype(np.int64)
    return replace(costs, before_ns=before, own_ns=own)


def run(plan: Plan, costs: Costs, *, once: bool = False) -> Run:
    """Replay the window, and then again and again until its pace is steady."""
    items, works = plan.graph.items, plan.graph.works
    stays = np.isin(items.kind, (WAIT, HOLD))
    step = np.where(stays, 0, costs.before_ns + costs.own_ns)
    clock = np.cumsum(step)
    base = (clock - step)[plan.heads]
    length = np.append(clock[plan.heads[1:] - 1], clock[-1]) - base
    entered = clock - step - base[plan.block] + costs.before_ns  # start of each call, from its block's
    work = items.work[plan.order]
    done = np.cumsum((costs.gap_ns + costs.dur_ns)[work])
    last = np.append(plan.groups[1:], len(work)) - 1
    if len(plan.groups):
        alone = entered[plan.order] + (costs.latency_ns + costs.dur_ns)[work] - done
        whole = done[last] - (done[plan.groups] - (costs.gap_ns + costs.dur_ns)[work[plan.groups]])
        reach = np.maximum.reduceat(alone, plan.groups) + done[last]
    else:
        whole = reach = np.empty(0, np.int64)
    loop = _Loop(plan, costs, length, whole[plan.by_block], reach[plan.by_block])
    main = items.chain == 0
    host = int((costs.before_ns + costs.own_ns)[main].sum())
    return loop.passes(host, once or not len(works))


class _Loop:
    """The loop over blocks, with all columns as lists, which Python reads faster."""

    def __init__(self, plan: Plan, costs: Costs, length: Ints, whole: Ints, reach: Ints) -> None:
        graph, items, heads = plan.graph, plan.graph.items, plan.heads
        kind = items.kind[heads]
        active = np.where(kind == HOLD, HOLD, np.where((kind == WAIT) & costs.waits[heads], WAIT, LAUNCH))
        active[plan.target == NONE] = LAUNCH
        stays = np.isin(kind, (WAIT, HOLD))
        self.size = len(graph.streams) + len(plan.by_block)
        self.pending = (graph.pending_ns - graph.window_ns[0]).tolist()
        self.chains = int(items.chain.max(initial=0)) + 1
        chain, target, tail, stream, low, high = plan.lists
        self.blocks = list(
            zip(
                chain,
                np.where(items.chain[heads] > 0, (items.anchor_ns - costs.before_ns)[heads], _FOLLOWS).tolist(),
                active.tolist(),
                np.where(stays, (costs.before_ns + costs.own_ns)[heads], 0).tolist(),
                target,
                tail,
                stream,
                length.tolist(),
                low,
                high,
            )
        )
        queue = np.where(costs.queued[plan.entry_stream], plan.queue, _FOLLOWS)
        self.entries = list(zip(plan.entry_stream.tolist(), whole.tolist(), reach.tolist(), queue.tolist()))
        # Streams that only other threads feed keep the recorded pace and do not tell how fast the program is.
        main = np.unique(graph.works.stream[items.work[(items.kind == LAUNCH) & (items.chain == 0)]])
        self.counted = main.tolist()

    def passes(self, host_ns: int, once: bool) -> Run:
        host = [0] * self.chains
        free = list(self.pending)
        ends: list[int] = []
        times: list[int] = []
        paces: list[int] = []
        first = drained = waited = 0
        entered = max([0, *(free[s] for s in self.counted)])
        for number in range(1 if once else _PASSES):
            waited = self._one(number, host, free, ends)
            times.append(max([host[0], *(free[s] for s in self.counted)]))
            if number == 0:
                first, drained = host[0], times[0]
            paces.append(times[-1] - (times[-2] if number else entered))
            if len(paces) > 1 and abs(paces[-1] - paces[-2]) <= _SETTLED * max(paces[-1], 1):
                break
            for chain in range(1, self.chains):
                host[chain] = max(host[chain], host[0])
        return Run(first, paces[-1], drained, host_ns, waited)

    def _one(self, number: int, host: list[int], free: list[int], ends: list[int]) -> int:
        """One pass; how long the stepping thread waited in it."""
        start = number * self.size
        ends.extend(free)
        entries = self.entries
        waited = 0
        for chain, anchor, kind, enter, target, tail, stream, length, low, high in self.blocks:
            now = host[chain]
            if host[0] + anchor > now:  # another thread follows the stepping thread's clock
                now = host[0] + anchor
            now += enter
            if kind == WAIT:
                until = ends[start + target] + tail
                if until > now:
                    if chain == 0:
                        waited += until - now
                    now = until
            elif kind == HOLD and ends[start + target] > free[stream]:
                free[stream] = ends[start + target]
            for at in range(low, high):
                stream_of, whole, reach, queue = entries[at]
                if queue > _FOLLOWS and start + queue >= 0:
                    until = ends[start + queue]
                    if until > now:
                        if chain == 0:
                            waited += until - now
                        now = until
                end = free[stream_of] + whole
                if now + reach > end:
                    end = now + reach
                free[stream_of] = end
                ends.append(end)
            host[chain] = now + length
        return waited
