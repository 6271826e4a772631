"""Python's collector walks all objects while the GPU waits for the next launch.

Bad:

    for batch in data:
        step(batch)

Good:

    gc.freeze(); gc.disable()
    for i, batch in enumerate(data):
        step(batch)
        if i % 500 == 0: gc.collect()
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._idles import costly

RULE = Rule(
    id="IDLE003",
    kind="host.gc",
    title="garbage collection starves the GPU",
    severity="warning",
    fix="gc.freeze() after set-up, gc.disable() in the loop and gc.collect() every few hundred steps",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each place where the collector ran while the GPU was idle."""
    yield from costly(evidence, RULE, "host.gc")
