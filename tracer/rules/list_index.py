"""The index is copied to the GPU from ordinary memory, and the copy waits.

Bad:

    y = x[[0, 1, 5]]

Good:

    y = x[index]      # a GPU tensor made before the loop
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC013",
    kind="sync.h2d_pageable",
    title="a Python list or CPU tensor indexes a GPU tensor",
    severity="warning",
    fix="build the index once on the GPU",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """An upload below an indexing operator."""
    indexing = ("index", "index_put_", "_index_put_impl_", "index_select", "index_put")
    if not (wait.is_wait and wait.uploads):
        return None
    built = wait.after[0] == "lift_fresh" and wait.after[1] in indexing
    return "index" if built or any(name in wait.ops for name in indexing) else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
