"""A synchronising call outside any torch operator.

Bad:

    ext.step()

Good:

    ext.step_async()
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FALLBACK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC044",
    kind="sync.extension",
    title="native code waits",
    severity="warning",
    fix="ask the owner of the extension",
)
BAND = FALLBACK


def matches(wait: Wait) -> str | None:
    """Any other wait."""
    return wait.call if wait.is_wait else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, confidence="medium")
