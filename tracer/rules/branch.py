"""An `if`, `while` or `assert` on a GPU tensor must know its value, so the CPU waits for the GPU.

Bad:

    if grad.isnan().any():
        skip = True

Good:

    bad = bad | grad.isnan().any()      # stays on the GPU; look at it every 100 steps
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC002",
    kind="sync.item",
    title="Python branches on a GPU tensor",
    severity="warning",
    fix="decide on the GPU (torch.where, masks, torch._assert_async), or test only every few steps",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """A value read for its truth by the user's own line."""
    return (
        "bool"
        if wait.is_wait and "is_nonzero" in wait.ops and wait.outermost == "is_nonzero" and not wait.library
        else None
    )


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
