"""Object collectives pickle through the GPU and read lengths back before they go on.

Bad:

    dist.all_gather_object(out, metrics)

Good:

    dist.all_gather_into_tensor(out, metrics_tensor)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import ENVIRONMENT, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC030",
    kind="sync.item",
    title="an object collective reads sizes from the GPU",
    severity="warning",
    fix="send tensors, or use a gloo group for objects",
)
BAND = ENVIRONMENT


def matches(wait: Wait) -> str | None:
    """Waits below broadcast_object_list and its like."""
    named = any(name.endswith(("_object", "_object_list")) for name in wait.functions())
    return "object" if wait.is_wait and named and wait.inside("torch/distributed/") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
