"""Indexing with a mask waits again in the backward pass, on the autograd thread.

Bad:

    loss = x[mask].sum()

Good:

    loss = torch.where(mask, x, 0).sum()
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC048",
    kind="sync.shape",
    title="the backward pass of a mask counts its True values",
    severity="warning",
    fix="use torch.where in the forward pass",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """nonzero below an autograd node."""
    backward = any("Backward" in name for name in wait.around)
    return "mask_backward" if wait.is_wait and backward and "nonzero" in wait.ops else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
