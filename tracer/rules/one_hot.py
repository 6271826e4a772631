"""Without num_classes the largest value decides the shape, so the CPU waits.

Bad:

    y = F.one_hot(labels)

Good:

    y = F.one_hot(labels, num_classes=10)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC010",
    kind="sync.shape",
    title="one_hot reads the largest class",
    severity="warning",
    fix="give num_classes",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """Reads below one_hot."""
    return "one_hot" if wait.is_wait and wait.has("one_hot") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
