"""What the fix of a finding changes in a graph: which waits go, which host time, which work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracer.analysis.intervals import Union, covered, union
from tracer.analysis.replay_graph import LAUNCH, WAIT, Graph
from tracer.analysis.replay_run import Costs
from tracer.trace import NONE, Bools, Floats, Ids, Ints, Kind, Spans, Trace

HOW = ("no_wait", "pinned_upload", "later_download", "drop", "no_alloc", "no_queue_wait", "loaded")
DOES_MORE = ("no_wait", "pinned_upload", "later_download", "drop")  # than to take a wait away

_TO_DEVICE, _TO_HOST = "HtoD", "DtoH"
_LINK_BYTES_PER_NS = 50.0  # PCIe 5 x16, where the trace has no copy from pinned memory to measure it
_MEASURABLE = 1 << 18
_SCALAR = 64  # bytes: what a read value has at most
_GONE = -(1 << 40)


@dataclass(frozen=True, slots=True, eq=False)
class Removal:
    """One finding's stalls and what its fix makes of them."""

    finding: int  # place in the caller's list
    calls: Ids  # -> spans: the calls that wait (or WAIT records without a call)
    ops: Ids  # -> spans: for each the outermost operator around it, NONE
    how: str  # a word of HOW


class Changes:
    """Makes the costs of a graph without some findings."""

    def __init__(self, trace: Trace, graph: Graph) -> None:
        self.trace, self.graph = trace, graph
        items, works = graph.items, graph.works
        self.launch_item = np.empty(len(works), np.int64)
        launches = np.flatnonzero(items.kind == LAUNCH)
        self.launch_item[items.work[launches]] = launches
        spans = trace.spans
        self.nbytes = np.where(works.copy, spans.nbytes[works.work], NONE)
        self.upload = works.copy & self._named(_TO_DEVICE)
        self.download = works.copy & self._named(_TO_HOST)
        self.link = {True: self._link(self.upload), False: self._link(self.download)}

    def without(self, costs: Costs, removals: Sequence[Removal], *, least: bool = False) -> Costs:
        """The costs without these findings; `least` takes away the waits and no more."""
        for removal in removals:
            costs = self._one(costs, removal, least)
        return costs

    def touches(self, removal: Removal) -> bool:
        """Whether any of a finding's calls lies in the window."""
        spans = self.trace.spans
        low, high = self.graph.window_ns
        return bool(np.any((_ends(spans, removal.calls) > low) & (spans.start_ns[removal.calls] < high)))

    def _one(self, costs: Costs, removal: Removal, least: bool) -> Costs:
        items, works = self.graph.items, self.graph.works
        inside = self._inside(removal)
        waits = costs.waits & ~((items.kind == WAIT) & (np.isin(items.row, removal.calls) | self._on_copy(inside)))
        stopped = costs.waits & ~waits
        own = costs.own_ns.copy()
        costs = replace(costs, waits=waits, own_ns=own)
        how = removal.how
        if how == "no_queue_wait":
            streams = np.unique(works.stream[np.isin(works.call, removal.calls)])
            return replace(costs, queued=costs.queued & ~np.isin(np.arange(len(costs.queued)), streams))
        if how == "no_alloc":
            return self._less_host(costs, removal.calls)
        if how == "loaded":
            late = np.isin(works.call, removal.calls)
            latency = np.where(late, np.minimum(costs.latency_ns, self.graph.latency_ns), costs.latency_ns)
            return self._less_host(replace(costs, latency_ns=latency), removal.calls, keep_ns=self.graph.launch_ns)
        if least:
            return costs
        rows = np.where(removal.ops != NONE, removal.ops, removal.calls)
        making, made = self._making(rows)
        if how == "drop" or (
            how == "pinned_upload" and len(made) and made.all()
        ):  # numbers of Python are made a tensor once, not uploaded faster
            return self._drop_works(self._less_host(costs, rows, making=making), inside)
        own[stopped] = 0
        if how == "no_wait":
            scalar = inside & self.download & (self.nbytes <= _SCALAR)
            own[self.launch_item[scalar]] = 0
            return self._drop_works(self._less_host(costs, self._mere_reads(removal, scalar)), scalar)
        copies = inside & (self.upload if how == "pinned_upload" else self.download)
        quick = (self.nbytes / self.link[how == "pinned_upload"] + 1_500).astype(np.int64)
        at = self.launch_item[copies]
        own[at] = np.minimum(np.maximum(own[at], self.graph.launch_ns), max(self.graph.launch_ns, 5_000))
        return replace(
            costs,
            dur_ns=np.where(copies, np.minimum(costs.dur_ns, quick), costs.dur_ns),
            latency_ns=np.where(copies, np.minimum(costs.latency_ns, self.graph.latency_ns), costs.latency_ns),
        )

    def _around(self, removal: Removal) -> Ids:
        """For each work the operator, of those around these calls, that launched it; NONE."""
        spans, works = self.trace.spans, self.graph.works
        found = np.full(len(works), NONE, np.int32)
        ops = np.unique(removal.ops[removal.ops != NONE])
        for track in np.unique(spans.track[ops]):
            mine = ops[spans.track[ops] == track]
            at = np.searchsorted(spans.start_ns[mine], works.launched_ns, "right") - 1
            around = mine[np.maximum(at, 0)]
            inside = (at >= 0) & (works.launched_ns < _ends(spans, around)) & (works.track == track)
            found[inside] = around[inside]
        return found

    def _mere_reads(self, removal: Removal, scalar: Bools) -> Ids:
        """Operators that do nothing but read a scalar (item, is_nonzero): without the read, nothing of them is left."""
        around = self._around(removal)
        ops = np.unique(removal.ops[removal.ops != NONE])
        reads, others = np.unique(around[scalar]), np.unique(around[~scalar])
        return ops[np.isin(ops, reads) & ~np.isin(ops, others)].astype(np.int32)

    def _inside(self, removal: Removal) -> Bools:
        """For each work, whether these calls, or the operators around them, launched it."""
        spans, works = self.trace.spans, self.graph.works
        found: Bools = np.isin(works.call, removal.calls) & (works.call != NONE)
        found |= self._around(removal) != NONE
        bare = removal.calls[removal.ops == NONE]
        if len(bare) and removal.how in ("pinned_upload", "later_download", "no_wait"):
            # Without an operator the copy is the last thing that the thread launched before it waited.
            at = np.searchsorted(works.launched_ns, spans.start_ns[bare]) - 1
            near = np.maximum(at, 0)
            same = (at >= 0) & works.copy[near] & (works.track[near] == spans.track[bare])
            found[near[same]] = True
        return found

    def _on_copy(self, inside: Bools) -> Bools:
        """For each item, whether it waits for a copy that its own call launched, among these works."""
        items, works = self.graph.items, self.graph.works
        target = items.target
        work = np.maximum(target, 0)
        own = (target >= 0) & (works.call[work] == items.row)
        return np.asarray(own & inside[work], np.bool_)

    def _drop_works(self, costs: Costs, works: Bools) -> Costs:
        return replace(
            costs,
            dur_ns=np.where(works, 0, costs.dur_ns),
            gap_ns=np.where(works, 0, costs.gap_ns),
            latency_ns=np.where(works, _GONE, costs.latency_ns),
        )

    def _making(self, rows: Ids | Ints) -> tuple[Union, Bools]:
        """For each span the time in which its thread made a tensor of Python numbers to upload, and whether it did.

        That is from `aten::empty` before it, over the numbers (in no operator), to `aten::lift_fresh` after it.
        """
        trace, spans = self.trace, self.trace.spans
        parent = spans.parent
        op = (spans.kind == Kind.OP) & ((parent == NONE) | (spans.kind[parent] != Kind.OP))
        starts, ends = spans.start_ns[rows].copy(), _ends(spans, rows)
        found = np.zeros(len(rows), np.bool_)
        empty, lift = trace.name_rows("aten::empty"), trace.name_rows("aten::lift_fresh", "aten::detach_")
        for track in np.unique(spans.track[rows]):
            tops = np.flatnonzero(op & (spans.track == track))
            mine = np.flatnonzero((spans.track[rows] == track) & op[rows])
            at = np.searchsorted(tops, rows[mine])
            before, after = tops[np.maximum(at - 1, 0)], tops[np.minimum(at + 1, len(tops) - 1)]
            last = tops[np.minimum(at + 2, len(tops) - 1)]
            made = empty[before] & lift[after] & (at > 0)
            found[mine] = made
            starts[mine[made]] = spans.start_ns[before[made]]
            ends[mine[made]] = _ends(spans, np.where(lift[last], last, after))[made]
        return (starts, ends), found

    def _less_host(self, costs: Costs, rows: Ids | Ints, *, keep_ns: int = 0, making: Union | None = None) -> Costs:
        """Without the host time of these spans (or with `keep_ns` of each), or without the times given."""
        spans, items = self.trace.spans, self.graph.items
        starts, ends = making or (spans.start_ns[rows] + keep_ns, _ends(spans, rows))
        chain = self.graph.chains[spans.track[rows]]
        before, own = costs.before_ns.copy(), costs.own_ns.copy()
        for number in np.unique(chain):
            gone = union(starts[chain == number], ends[chain == number])
            mine = items.chain == number
            left = 1 - _share(gone, items.start_ns - items.before_ns, items.start_ns)
            before[mine] = (before * left)[mine].astype(np.int64)
            opens = np.where(items.kind == WAIT, items.start_ns, items.end_ns - items.own_ns)
            left = 1 - _share(gone, opens, opens + items.own_ns)
            own[mine] = (own * left)[mine].astype(np.int64)
        return replace(costs, before_ns=before, own_ns=own)

    def _named(self, part: str) -> Bools:
        named = np.array([part in name for name in self.trace.names] or [False])
        return np.asarray(named[self.trace.spans.name[self.graph.works.work]], np.bool_)

    def _link(self, copies: Bools) -> float:
        """Bytes a nanosecond of the copies from and to pinned memory in this direction."""
        rows = copies & self._named("Pinned") & (self.nbytes >= _MEASURABLE)
        if not rows.any():
            return _LINK_BYTES_PER_NS
        return float(np.median(self.nbytes[rows] / np.maximum(self.graph.works.dur_ns[rows], 1)))


def _share(gone: Union, start: Ints, end: Ints) -> Floats:
    return np.asarray(covered(gone, start, end) / np.maximum(end - start, 1), np.float64)


def _ends(spans: Spans, rows: Ids | Ints) -> Ints:
    return np.asarray(spans.start_ns[rows] + spans.dur_ns[rows], np.int64)
