"""The first matrix product or convolution creates handles, workspaces and loads code; the GPU waits.

Bad:

    t0 = time.time(); model(x)

Good:

    model(x)      # warm-up
    t0 = time.time(); model(x)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._idles import costly

RULE = Rule(
    id="IDLE007",
    kind="load.library",
    title="libraries set themselves up at their first use",
    severity="info",
    fix="warm up before you measure",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for all first uses on a thread."""
    yield from costly(evidence, RULE, "load.library", whole=True)
