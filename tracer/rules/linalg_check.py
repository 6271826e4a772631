"""torch.linalg raises on singular input, so each call waits for the GPU's answer.

Bad:

    x = torch.linalg.solve(a, b)

Good:

    x, info = torch.linalg.solve_ex(a, b)      # look at info later
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC024",
    kind="sync.check",
    title="a linear algebra routine checks its error code on the CPU",
    severity="warning",
    fix="use the _ex variant: torch.linalg.inv_ex(a, check_errors=False)",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Reads below _linalg_check_errors."""
    return wait.outermost or "linalg" if wait.is_wait and "_linalg_check_errors" in wait.ops else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
