"""About a thousand launches fit into a stream's queue; then each launch waits for one to finish.

Bad:

    for _ in range(3000):
        h = h @ w      # each launch is held, and nothing is wrong

Good:

    for _ in range(3000):
        h = h @ w      # faster only with fewer or faster kernels
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import LABELLED, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC036",
    kind="launch.queue_full",
    title="the launch queue is full: the host is far ahead of the GPU",
    severity="info",
    fix="nothing: the GPU is the bottleneck here. Launch less often (fuse, CUDA graphs) if latency matters",
)
BAND = LABELLED


def matches(wait: Wait) -> str | None:
    """Launches held by a full queue."""
    return "launch" if wait.queue else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, by_op=False)
