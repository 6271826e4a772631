"""The shape of the result depends on the data, so the CPU waits for the count.

Bad:

    rows = (scores > 0.9).nonzero()

Good:

    rows = torch.nonzero_static(scores > 0.9, size=limit)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC005",
    kind="sync.shape",
    title="the number of non-zero elements must reach the CPU",
    severity="warning",
    fix="use torch.where with three arguments, or torch.nonzero_static(size=...)",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """nonzero, argwhere and one-argument where."""
    masked = wait.has("index", "index_put_", "_index_put_impl_", "index_put", "masked_select")
    if not wait.is_wait or masked or not wait.has("nonzero", "nonzero_numpy", "argwhere"):
        return None
    return wait.outermost if wait.outermost in ("where", "argwhere") else "nonzero"


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
