"""Indexing with a boolean mask counts the True values first, so the CPU waits for the GPU.

Bad:

    kept = scores[scores > 0.5]

Good:

    kept = torch.where(scores > 0.5, scores, 0.0)      # same shape, no wait
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC006",
    kind="sync.shape",
    title="a boolean mask selects elements, and their number must reach the CPU",
    severity="warning",
    fix="keep the shape: torch.where(mask, x, 0) or masked_fill; torch.where(mask, v, x) instead of x[mask] = v",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """nonzero below index or index_put_."""
    if not wait.is_wait:
        return None
    if "masked_select" in wait.ops:
        return "masked_select"
    if "nonzero" in wait.ops and any(name in wait.ops for name in ("index_put_", "_index_put_impl_", "index_put")):
        return "mask_assign"
    return "mask_index" if "nonzero" in wait.ops and "index" in wait.ops else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
