"""Pinned memory alone does not make a copy asynchronous.

Bad:

    x = pinned.to('cuda')

Good:

    x = pinned.to('cuda', non_blocking=True)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import COPYING, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC014",
    kind="sync.h2d_pinned",
    title="data is copied from pinned memory, and the copy waits all the same",
    severity="warning",
    fix="add non_blocking=True",
)
BAND = COPYING


def matches(wait: Wait) -> str | None:
    """An upload from pinned memory with a synchronisation."""
    return "to" if wait.is_wait and wait.uploads and "Pinned" in wait.copy else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
