"""The next batch is not ready when the GPU is.

Bad:

    for batch in DataLoader(data, batch_size=2): ...

Good:

    for batch in DataLoader(data, batch_size=2, num_workers=8, pin_memory=True): ...
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.idle import named_parts
from tracer.analysis.intervals import covered, union
from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._holds import NOTHING as _NOTHING
from tracer.rules._holds import show_place
from tracer.rules._idles import by_place, idle_finding, idle_sum, rows_of
from tracer.units import show_ns

RULE = Rule(
    id="IDLE002",
    kind="input.bound",
    title="the GPU waits for the input pipeline",
    severity="warning",
    fix="more workers, prefetch_factor, persistent_workers; move slow transforms out of the loop",
)


_SHORT_NS = 100_000


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each loop over a loader that starved the GPU."""
    rows = rows_of(evidence, "input.bound")
    idle = evidence.idle
    if idle_sum(evidence, rows) < _NOTHING * evidence.span_ns:
        return
    for place, track, mine in by_place(evidence, rows):
        starts, ends = named_parts(evidence.trace, "input.bound", track)
        empty = union(idle.start_ns[mine], idle.start_ns[mine] + idle.dur_ns[mine])
        starved = covered(empty, starts, ends)
        hit = starved > _SHORT_NS
        if not hit.any():
            continue
        held = int((ends - starts)[hit].sum())
        text = (
            f"{RULE.title}{show_place(place)}: {int(hit.sum())} batches came late, "
            f"{show_ns(held / int(hit.sum()))} each, and the GPU was idle {show_ns(idle_sum(evidence, mine))}"
        )
        yield idle_finding(
            evidence, RULE, mine, track, place, op="next", count=int(hit.sum()), stall_ns=held, text=text
        )
