"""bincount checks that no value is negative and sizes its result by the largest: two waits.

Bad:

    counts = torch.bincount(owner, minlength=8)

Good:

    counts = torch.zeros(8, device=d).scatter_add_(0, owner, ones)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC008",
    kind="sync.shape",
    title="bincount reads the smallest and the largest value",
    severity="warning",
    fix="add into a tensor of known size: zeros(n).scatter_add_(0, idx, ones)",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """Reads below bincount and histc without a range."""
    return next((name for name in ("bincount", "histc", "histogram") if wait.is_wait and wait.has(name)), None)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
