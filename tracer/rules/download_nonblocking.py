"""A copy to pageable memory returns when it has landed, whatever non_blocking says.

Bad:

    host = x.to('cpu', non_blocking=True)      # older torch: pageable

Good:

    host.copy_(x, non_blocking=True)             # host is pinned
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import COPYING, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC018",
    kind="copy.pageable_d2h",
    title="a non_blocking copy into ordinary memory waits all the same",
    severity="warning",
    fix="copy into pinned memory, record an event, and read later",
)
BAND = COPYING


def matches(wait: Wait) -> str | None:
    """A download call that was held by itself."""
    return "to" if not wait.is_wait and wait.downloads and not wait.queue else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
