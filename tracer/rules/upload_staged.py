"""The driver takes a small pageable copy into its own buffer; the host pays for that, but does not wait.

Bad:

    x = row.to('cuda', non_blocking=True)

Good:

    x = pinned_row.to('cuda', non_blocking=True)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import COPYING, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC016",
    kind="copy.staged_h2d",
    title="a small pageable copy is staged by the driver",
    severity="info",
    fix="pin the source if the copy call takes long",
)
BAND = COPYING


def matches(wait: Wait) -> str | None:
    """An upload call that returned before its copy began."""
    return "to" if not wait.is_wait and wait.uploads and not wait.queue and wait.overtaken else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, accept=lambda waits: sum(wait.calls for wait in waits) > 2)
