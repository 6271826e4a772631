"""Writing a number into one element builds a CPU tensor and uploads it, and the copy waits.

Bad:

    counts[3] = 0

Good:

    counts[3].fill_(0)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC047",
    kind="sync.h2d_pageable",
    title="a Python number is written into a GPU tensor",
    severity="warning",
    fix="x[i].fill_(v) or x[i:i+1] = v: no copy, no wait",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """An upload of one element by an assignment."""
    one = wait.is_wait and wait.uploads and 0 < wait.nbytes <= 8 and wait.outermost in ("copy_", "index_put_")
    return "setitem" if one and (wait.outermost == "index_put_" or wait.before in ("select", "slice")) else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
