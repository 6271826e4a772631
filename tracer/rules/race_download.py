"""A copy to the CPU is read before it has landed: wrong numbers, no error.

Bad:

    host = x.to("cpu", non_blocking=True)
    if host.sum() > limit: ...                  # may read what was there before

Good:

    host = x.to("cpu", non_blocking=True)
    event.record()
    event.synchronize()                         # or one step later, when it is free
    if host.sum() > limit: ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tracer.analysis.calls import WAITS, Does, what_calls_do
from tracer.analysis.held import outermost_op
from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._holds import name_of, show_place, thread_name
from tracer.trace import NONE, Ids, Kind

RULE = Rule(
    id="RACE001",
    kind="race.d2h",
    title="a copy to the CPU is read before it has landed",
    severity="error",
    fix="record an event after the copy and synchronize it before reading, or copy without non_blocking",
)

_VIEW = re.compile(r"::(as_strided|view|_?reshape|select|slice|detach_?|empty\w*|resize_?|unsqueeze|squeeze|t|alias)$")


def find(evidence: Evidence) -> Iterator[Finding]:
    """For each pair of lines two findings: the copy, and the read that comes too early."""
    copies, reads = _pairs(evidence)
    for role, rows in (("copy", copies), ("early_read", reads)):
        stacks = evidence.places.frames_of(rows)
        for stack in np.unique(stacks).tolist():
            yield _finding(evidence, role, rows[stacks == stack], stack)


def _pairs(evidence: Evidence) -> tuple[Ids, Ids]:
    """Copy calls whose data may be read too early, and the operators that read.

    A pair is a copy into pinned memory and, on the same thread, an operator that reads a
    value on the CPU, with no wait and no launch in between. Operators on the CPU before
    that (a sum) have read the data already: the first of them is the read. Pairs at one
    place count if at least one read came before its copy had ended.
    """
    trace, launches = evidence.trace, evidence.launches
    spans = trace.spans
    into = np.array(["DtoH" in name and "Pinned" in name for name in trace.names] or [False])
    mine = into[spans.name[launches.work]]
    calls, work = launches.call[mine], launches.work[mine]
    reads = np.flatnonzero(
        (spans.kind == Kind.OP) & trace.name_rows("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero")
    )
    does = what_calls_do(trace)
    barriers = np.flatnonzero(np.isin(does, (*WAITS, Does.COPY_WAIT, Does.LAUNCH)))
    size = np.int64(len(spans))
    read_keys = np.sort(spans.track[reads] * size + reads)
    stop_keys = np.sort(spans.track[barriers] * size + barriers)
    own = spans.track[calls] * size + calls
    if not len(read_keys):
        return calls[:0], calls[:0]
    at = np.searchsorted(read_keys, own, "right")
    read = read_keys[np.minimum(at, len(read_keys) - 1)]
    follows = (at < len(read_keys)) & (read // size == spans.track[calls])
    read_rows = (read % size).astype(np.int32)
    stopped = np.searchsorted(stop_keys, read) > np.searchsorted(stop_keys, own, "right")
    # A read below the operator of the copy itself (a blocking copy's own) is none of the user's.
    top, own_op = outermost_op(trace, read_rows), outermost_op(trace, calls)
    pair = follows & ~stopped & ((top == NONE) | (top != own_op))
    calls, read_rows, work = calls[pair], read_rows[pair], work[pair]
    read_rows = _first_reads(evidence, calls, read_rows)
    early = spans.start_ns[read_rows] < spans.end_ns[work]
    stacks = evidence.places.frames_of(calls)
    racing = np.isin(stacks, stacks[early])
    return calls[racing], read_rows[racing]


def _first_reads(evidence: Evidence, calls: Ids, reads: Ids) -> Ids:
    """For each pair the first operator after the copy's own that computes on the CPU, at the latest the read."""
    trace = evidence.trace
    spans = trace.spans
    views = np.array([_VIEW.search(name) is not None for name in trace.names])
    launching = np.zeros(len(spans), np.bool_)
    inner = np.flatnonzero((spans.kind == Kind.CALL) & (spans.parent != NONE))
    launching[spans.parent[inner]] = True
    plain = np.flatnonzero((spans.kind == Kind.OP) & ~launching & ~views[spans.name])
    own_op = outermost_op(trace, calls)
    own = np.where(own_op == NONE, calls, own_op)
    after = spans.end_ns[own]
    size = np.int64(len(spans))
    keys = np.sort(spans.track[plain] * size + plain)
    # Rows are sorted by time, so the first row that starts after the copy's operator has ended comes first.
    start = np.searchsorted(spans.start_ns, after)
    at = np.searchsorted(keys, spans.track[calls] * size + start)
    first = (keys[np.minimum(at, len(keys) - 1)] % size).astype(np.int32)
    found: Ids = np.where((at < len(keys)) & (first < reads), first, reads).astype(np.int32)
    return found


def _finding(evidence: Evidence, role: str, rows: Ids, stack: int) -> Finding:
    spans = evidence.trace.spans
    track = int(spans.track[rows[0]])
    place = evidence.places.place(stack) if stack != NONE else None
    what = "copied here" if role == "copy" else "read here"
    return Finding(
        id=name_of(evidence, RULE, place, role, role, thread_name(evidence, track), evidence.trace.tracks[track].rank),
        rule=RULE.id,
        kind=RULE.kind,
        title=RULE.title,
        severity=RULE.severity,
        place=place,
        op=role,
        thread=thread_name(evidence, track),
        rank=evidence.trace.tracks[track].rank,
        confidence="low",
        count=len(rows),
        message=f"{RULE.title}: {what}{show_place(place)}, {len(rows)} times with nothing to wait for it in between",
        fix=RULE.fix,
        first_ns=int(spans.start_ns[rows[0]]),
        first_dur_ns=int(spans.dur_ns[rows[0]]),
    )
