"""Page-locking is slow (milliseconds for 100 MB); each new size class pays for it.

Bad:

    x = batch.pin_memory().to('cuda', non_blocking=True)

Good:

    buffer.copy_(batch)      # pinned once
    x = buffer.to('cuda', non_blocking=True)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import ALLOCATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._waits import bursts

RULE = Rule(
    id="SYNC034",
    kind="alloc.pin",
    title="host memory is page-locked in the loop",
    severity="warning",
    fix="pin once and reuse the buffer, or pin in the DataLoader's thread (pin_memory=True)",
)
BAND = ALLOCATOR


def matches(wait: Wait) -> str | None:
    """Page-locking that comes back while the GPU works."""
    return "pin_memory" if wait.does == Does.PIN else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(
        evidence,
        RULE,
        accept=lambda waits: sum(wait.calls for wait in waits) > 2 and bursts(waits) > 2,
    )
