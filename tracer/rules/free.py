"""cudaFree waits for all work on the device.

Bad:

    torch.cuda.empty_cache()      # in every step

Good:

    pass                          # the allocator reuses its memory by itself
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import ALLOCATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._waits import bursts

RULE = Rule(
    id="SYNC032",
    kind="alloc.free",
    title="memory is given back to the driver, and that waits for the device",
    severity="warning",
    fix="remove torch.cuda.empty_cache() from the loop",
)
BAND = ALLOCATOR


def _often(waits: list[Wait]) -> bool:
    """Whether it comes back: one tidying up at the start or end is no finding."""
    return sum(wait.calls for wait in waits) > 1 and bursts(waits) > 1


def matches(wait: Wait) -> str | None:
    """Frees of memory that had been in use."""
    return ("empty_cache" if not wait.ops else wait.outermost) if wait.does == Does.FREE and wait.fresh else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, accept=_often)
