"""A fresh cudaMalloc costs the host a call into the driver; in a steady loop there should be none.

Bad:

    buf = torch.empty(n, device='cuda'); del buf; torch.cuda.empty_cache()

Good:

    buf = torch.empty(n, device='cuda')      # once, before the loop
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import ALLOCATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC031",
    kind="alloc.malloc",
    title="memory that was freed is taken from the driver again",
    severity="warning",
    fix="do not empty the cache in the loop; allocate once and reuse; fixed shapes",
)
BAND = ALLOCATOR


def matches(wait: Wait) -> str | None:
    """Allocations of memory that had been given back: growing once is no finding."""
    return wait.outermost or "malloc" if wait.does == Does.MALLOC and wait.fresh else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, accept=lambda waits: sum(wait.fresh for wait in waits) > 2)
