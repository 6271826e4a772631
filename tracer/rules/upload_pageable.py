"""A blocking copy from pageable memory waits for all work before it in the stream.

Bad:

    x = batch.to('cuda')

Good:

    x = batch.to('cuda', non_blocking=True)      # batch is pinned
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import COPYING, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import written

RULE = Rule(
    id="SYNC011",
    kind="sync.h2d_pageable",
    title="data from ordinary memory is copied to the GPU, and the copy waits",
    severity="warning",
    fix="pin the source (DataLoader(pin_memory=True)) and copy with non_blocking=True",
)
BAND = COPYING


def matches(wait: Wait) -> str | None:
    """An upload from pageable memory with a synchronisation."""
    return (written(wait, ("cuda",)) or "to") if wait.is_wait and wait.uploads and "Pinned" not in wait.copy else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
