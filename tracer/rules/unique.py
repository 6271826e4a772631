"""How many distinct values there are decides the shape, so the CPU waits.

Bad:

    ids = torch.unique(labels)

Good:

    ids, first = labels.sort()      # same size; mark the first of each run
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC009",
    kind="sync.shape",
    title="unique must read how many values there are",
    severity="warning",
    fix="precompute it outside the loop, or keep sorted values with a mask",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """Reads below the unique family."""
    names = ("unique", "_unique", "_unique2", "unique_consecutive", "unique_dim")
    return "unique" if wait.is_wait and any(name in wait.ops for name in names) else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
