"""Stretches in which the thread that launches runs no torch operator and no CUDA call.

Bad:

    heavy_python(batch)      # not in the trace

Good:

    tracer run -- python train.py      # records lines and samples too
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._idles import costly

RULE = Rule(
    id="IDLE005",
    kind="host.late",
    title="the host does something else, and the trace does not say what",
    severity="info",
    fix="record with samples or lines, to see the line",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each thread that was busy elsewhere."""
    yield from costly(evidence, RULE, "host.late", need_place=False, share=0.05)
