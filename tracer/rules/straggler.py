"""A rank waits inside a collective for a slower one.

Bad:

    if rank == 1: expensive_logging()      # all other ranks wait in the next all-reduce
    loss.backward()

Good:

    loss.backward()                        # the same work on every rank; log on a thread
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._holds import name_of, per_step
from tracer.trace import Bools, Ids, Kind
from tracer.units import show_ns

RULE = Rule(
    id="IDLE009",
    kind="collective.wait",
    title="ranks wait for a slower one in collectives",
    severity="warning",
    fix="balance the work between ranks; look at what the slow rank does before the collective",
)
_WORTH = 0.02  # of the steps


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each rank that waits, naming the rank waited for most."""
    trace = evidence.trace
    spans = trace.spans
    ranks = np.array([t.rank for t in trace.tracks] or [0])
    rows = np.flatnonzero(_is_collective(trace.names)[spans.name] & (spans.kind == Kind.KERNEL)).astype(np.int32)
    mine = ranks[spans.track[rows]]
    members = np.unique(mine)
    counts = [int(np.sum(mine == rank)) for rank in members]
    if len(members) < 2 or min(counts) == 0 or len(set(counts)) != 1:
        return
    # The n-th collective of each rank is the same one: they start at different times and end together. By their ends,
    # the clocks of the ranks are brought together.
    groups = np.stack([rows[mine == rank] for rank in members])
    ends = spans.start_ns[groups] + spans.dur_ns[groups]
    ahead = np.median(ends - ends[0], axis=1, keepdims=True).astype(np.int64)
    starts = spans.start_ns[groups] - ahead
    last = starts.max(axis=0)
    slowest = members[starts.argmax(axis=0)]
    for at, rank in enumerate(members.tolist()):
        waited = np.minimum(last - starts[at], spans.dur_ns[groups[at]])
        total = int(waited.sum())
        late = slowest[waited > 0]
        if total < _WORTH * evidence.span_ns or not len(late):
            continue
        named = int(np.bincount(late).argmax())
        yield _finding(evidence, rank, named, total, groups[at], waited)


def _is_collective(names: tuple[str, ...]) -> Bools:
    wanted = ("nccl", "rccl")
    plain = [any(word in name.lower() for word in wanted) for name in names]
    return np.array(plain or [False])


def _finding(evidence: Evidence, rank: int, named: int, total: int, rows: Ids, waited: Ids) -> Finding:
    spans = evidence.trace.spans
    longest = int(rows[int(np.argmax(waited))])
    count = int(np.sum(waited > 0))
    text = f"rank {rank} waited {show_ns(total)} in {count} collectives, mostly for rank {named}"
    return Finding(
        id=name_of(evidence, RULE, None, "collective", f"rank {named}", "", rank),
        rule=RULE.id,
        kind=RULE.kind,
        title=RULE.title,
        severity=RULE.severity,
        place=None,
        op="collective",
        rank=rank,
        device=evidence.trace.tracks[spans.track[longest]].device,
        confidence="medium",
        count=count,
        stall_ns=0,
        per_step=per_step(evidence, count, 0, 0, 0, 0, rank),
        message=f"{text}: its GPU was busy waiting",
        fix=RULE.fix,
        notes=(text,),
        first_ns=int(spans.start_ns[longest]),
        first_dur_ns=int(spans.dur_ns[longest]),
        details={"waited_ns": total, "straggler": named, "kernel": evidence.trace.names[spans.name[longest]]},
    )
