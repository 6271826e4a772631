"""Some operators (sparse, sorting and solver libraries) synchronise in their own code.

Bad:

    y = torch.mode(x)

Good:

    y = x.max(dim=0)      # if that serves
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FALLBACK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC043",
    kind="sync.in_op",
    title="an operator waits inside",
    severity="warning",
    fix="look for a variant of the operator that does not",
)
BAND = FALLBACK


def matches(wait: Wait) -> str | None:
    """Any other wait below an operator."""
    return wait.outermost if wait.is_wait and wait.ops else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, confidence="medium")
