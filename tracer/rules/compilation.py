"""The first calls of a compiled function, and calls with new shapes, compile while the GPU waits.

Bad:

    for batch in batches_of_any_size: compiled(batch)

Good:

    for batch in padded_batches: compiled(batch)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._idles import costly

RULE = Rule(
    id="IDLE006",
    kind="compile.jit",
    title="compilation and autotuning hold the host",
    severity="info",
    fix="exclude the first steps; keep shapes fixed; keep the caches between runs",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line that compiled."""
    yield from costly(evidence, RULE, "compile.jit", whole=not len(evidence.steps))
