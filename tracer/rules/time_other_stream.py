"""An event marks a point of one stream. Work on another stream is not between two of them.

Bad:

    start.record()
    with torch.cuda.stream(side):
        y = model(x)
    end.record()

Good:

    start.record(side)
    with torch.cuda.stream(side):
        y = model(x)
    end.record(side)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._timers import judged

RULE = Rule(
    id="TIME006",
    kind="bench.other_stream",
    title="the work ran on a stream that the events were not recorded on",
    severity="error",
    fix="record both events on the stream that does the work: start.record(stream)",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Timers of the run with this verdict."""
    yield from judged(RULE, evidence.timers)
