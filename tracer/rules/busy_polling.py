"""A loop asks again and again whether an event has passed, and burns a CPU meanwhile.

Bad:

    while not event.query():
        pass

Good:

    event.synchronize()                 # or, in asyncio: await asyncio.sleep(0.001) between queries
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.analysis.calls import Does, what_calls_do
from tracer.analysis.intervals import total
from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._holds import name_of, per_step, show_place, thread_name
from tracer.rules._waits import BACKGROUND
from tracer.trace import NONE, Ints
from tracer.units import show_ns

RULE = Rule(
    id="SYNC051",
    kind="sync.poll",
    title="the host asks in a loop whether the GPU has finished",
    severity="info",
    fix="event.synchronize(), or sleep (await) between two queries",
)
_APART_NS = 200_000  # queries further apart are no loop
_LONG_NS = 1_000_000
_MANY = 20


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread that polls for a millisecond or more."""
    trace = evidence.trace
    spans = trace.spans
    rows = np.flatnonzero(what_calls_do(trace) == Does.POLL)
    for track in np.unique(spans.track[rows]).tolist():
        if BACKGROUND.search(trace.tracks[track].name):
            continue
        mine = rows[spans.track[rows] == track]
        starts, ends = spans.start_ns[mine], spans.end_ns[mine]
        breaks = np.flatnonzero(starts[1:] - ends[:-1] > _APART_NS) + 1
        loops = [one for one in np.split(mine, breaks) if len(one) >= _MANY]
        loops = [one for one in loops if spans.end_ns[one[-1]] - spans.start_ns[one[0]] >= _LONG_NS]
        if not loops:
            continue
        stacks = evidence.places.frames_of(np.array([one[0] for one in loops], np.int32))
        for stack in np.unique(stacks).tolist():
            chosen = [one for one, at in zip(loops, stacks.tolist(), strict=True) if at == stack]
            yield _finding(evidence, track, chosen, stack)


def _finding(evidence: Evidence, track: int, loops: list[Ints], stack: int) -> Finding:
    spans, rank = evidence.trace.spans, evidence.trace.tracks[track].rank
    place = evidence.places.place(stack) if stack != NONE else None
    starts = np.array([spans.start_ns[one[0]] for one in loops])
    ends = np.array([spans.end_ns[one[-1]] for one in loops])
    held, queries = total(starts, ends), sum(len(one) for one in loops)
    longest = int(np.argmax(ends - starts))
    return Finding(
        id=name_of(evidence, RULE, place, "query", "query", thread_name(evidence, track), rank),
        rule=RULE.id,
        kind=RULE.kind,
        title=RULE.title,
        severity=RULE.severity,
        place=place,
        op="query",
        thread=thread_name(evidence, track),
        rank=rank,
        count=len(loops),
        waits=queries,
        stall_ns=held,
        per_step=per_step(evidence, len(loops), queries, held, 0, 0, rank),
        message=f"{RULE.title}{show_place(place)}: {queries} queries in {len(loops)} loops, {show_ns(held)}",
        fix=RULE.fix,
        first_ns=int(starts[longest]),
        first_dur_ns=int(ends[longest] - starts[longest]),
    )
