"""When cudaMalloc fails, torch waits for outstanding work, frees its cache and tries again.

Bad:

    x = model(batch_of_any_size)

Good:

    x = model(padded_batch)      # few shapes, and room below the limit
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import ENVIRONMENT, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC033",
    kind="alloc.retry",
    title="GPU memory was full: the allocator waited, freed its cache and tried again",
    severity="error",
    fix="use less memory at the peak; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; fixed shapes",
)
BAND = ENVIRONMENT


def matches(wait: Wait) -> str | None:
    """Allocation, wait and free within one operator."""
    waited = wait.mates & {Does.EVENT_WAIT, Does.STREAM_WAIT, Does.DEVICE_WAIT}
    retried = waited and {Does.MALLOC, Does.FREE} <= wait.mates
    return wait.outermost if retried and wait.ops else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
