"""The driver stages a large pageable copy through its own buffers and holds the host until that is done.

Torch's sync debug mode does not see this wait.

Bad:

    x = array.to('cuda', non_blocking=True)

Good:

    x = pinned.to('cuda', non_blocking=True)      # pinned = torch.empty(..., pin_memory=True)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import COPYING, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC015",
    kind="copy.pageable_h2d",
    title="non_blocking=True has no effect on ordinary memory: the host is held while the copy is staged",
    severity="warning",
    fix="pin the source first (in a worker thread, or DataLoader(pin_memory=True))",
)
BAND = COPYING


def matches(wait: Wait) -> str | None:
    """An upload call that was held by itself, without a synchronisation."""
    return "to" if not wait.is_wait and wait.uploads and not wait.queue and not wait.overtaken else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
