"""The next batch is not ready when the GPU is.

Bad:

    for batch in DataLoader(data, batch_size=2): ...

Good:

    for batch in DataLoader(data, batch_size=2, num_workers=8, pin_memory=True): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracer.analysis.idle import named_parts
from tracer.analysis.intervals import covered, union
from tracer.results import Finding, Place
from tracer.rules import Evidence, Rule
from tracer.rules._holds import NOTHING, show_place
from tracer.rules._idles import by_place, idle_finding, idle_sum, rows_of
from tracer.trace import NONE, Ids, Ints
from tracer.units import show_ns

RULE = Rule(
    id="IDLE002",
    kind="input.bound",
    title="the GPU waits for the input pipeline",
    severity="warning",
    fix="more workers, prefetch_factor, persistent_workers; move slow transforms out of the loop",
)


_SHORT_NS = 100_000  # a batch that costs the GPU less came in time
_ASKED_NS = 2_000


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each loop over a loader that starved the GPU, at the line of the loop."""
    rows = rows_of(evidence, "input.bound")
    idle = evidence.idle
    if idle_sum(evidence, rows) < NOTHING * evidence.span_ns:
        return
    for track in np.unique(idle.track[rows]).tolist():
        mine = rows[idle.track[rows] == track]
        starts, ends = named_parts(evidence.trace, "input.bound", track)
        # The line that runs as the loader is asked is the loop's; what runs later may be the data set's own.
        stacks = evidence.places.frames_at(np.full(len(starts), track, np.int32), starts, starts + _ASKED_NS)
        loops = [evidence.places.place(stack) if stack != NONE else None for stack in stacks.tolist()]
        for loop in dict.fromkeys(loops):
            chosen = np.array([one == loop for one in loops])
            yield from _finding(evidence, track, mine, starts[chosen], ends[chosen], loop)


def _finding(
    evidence: Evidence, track: int, rows: Ids, starts: Ints, ends: Ints, loop: Place | None
) -> Iterator[Finding]:
    idle = evidence.idle
    low, high = idle.start_ns[rows], idle.start_ns[rows] + idle.dur_ns[rows]
    mine = rows[covered((starts, ends), low, high) > 0]
    starved = covered(union(low, high), starts, ends)
    hit = starved > _SHORT_NS
    if not hit.any():
        return
    number, held = int(hit.sum()), int((ends - starts)[hit].sum())
    text = (
        f"{RULE.title}{show_place(loop)}: {number} batches came late, {show_ns(held / number)} each, "
        f"and the GPU was idle {show_ns(idle_sum(evidence, mine))}"
    )
    inner = next((place for place, _, _ in by_place(evidence, mine) if place), None)
    found = idle_finding(evidence, RULE, mine, track, loop, op="next", count=number, stall_ns=held, text=text)
    if inner is not None and (loop is None or (inner.file, inner.line) != (loop.file, loop.line)):
        found = replace(found, notes=(f"most of it{show_place(inner)} in {inner.function}",))
    yield found
