"""FSDP lets only a few all-gathers be in flight; the wait is intended.

Bad:

    FSDP(model)

Good:

    FSDP(model, limit_all_gathers=False)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import ENVIRONMENT, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC049",
    kind="sync.event",
    title="FSDP holds the host back on purpose (rate limiter)",
    severity="info",
    fix="limit_all_gathers=False, only if memory allows it",
)
BAND = ENVIRONMENT


def matches(wait: Wait) -> str | None:
    """Waits inside the annotation of the rate limiter."""
    return "rate_limiter" if wait.is_wait and any("rate_limiter" in name for name in wait.around) else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
