"""A read right after a replay waits for all kernels of the graph.

Bad:

    g.replay()
    v = out.item()

Good:

    g.replay()
    v = previous.item()      # of the replay before
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import scalar_word

RULE = Rule(
    id="SYNC039",
    kind="sync.item",
    title="a read waits for a whole CUDA graph",
    severity="warning",
    fix="read one replay later",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Reads after a graph launch."""
    return scalar_word(wait) if wait.is_wait and wait.reads_scalar and wait.after_graph else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
