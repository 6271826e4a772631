"""It indexes with a mask of the ranks that have samples, and that waits.

Bad:

    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)

Good:

    model = replace_with_group_norm(model)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC046",
    kind="sync.shape",
    title="SyncBatchNorm filters empty ranks in each forward pass",
    severity="warning",
    fix="known cost of SyncBatchNorm; capture it in a graph, or use another normalisation",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Waits below SyncBatchNorm."""
    return "syncbn" if wait.is_wait and wait.inside("nn/modules/_functions.py") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
