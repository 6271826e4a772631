"""Giving page-locked memory back can wait for the device.

Bad:

    del pinned

Good:

    pinned = pinned      # keep it for the next step
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import ALLOCATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC035",
    kind="alloc.unpin",
    title="page-locked memory is given back",
    severity="info",
    fix="keep the buffers",
)
BAND = ALLOCATOR


def matches(wait: Wait) -> str | None:
    """cudaFreeHost and cudaHostUnregister."""
    return "unpin" if wait.does == Does.UNPIN else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, accept=lambda waits: sum(wait.calls for wait in waits) > 2)
