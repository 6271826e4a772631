"""torch.equal, allclose and `in` give a Python bool, so the CPU waits.

Bad:

    if torch.equal(a, b): ...

Good:

    same = (a == b).all()      # stays on the GPU
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC025",
    kind="sync.item",
    title="two GPU tensors are compared for a Python answer",
    severity="warning",
    fix="keep the answer on the GPU: (a == b).all()",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """Reads below equal and allclose."""
    return next((n for n in ("equal", "allclose", "is_same_size") if wait.is_wait and wait.outermost == n), None)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
