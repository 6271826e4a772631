"""Nothing may wait during capture; the error shows up at the end of the `with` block, not at the read.

Bad:

    with torch.cuda.graph(g):
        if h[0, 0] > 1: h = h * 0

Good:

    with torch.cuda.graph(g):
        h = torch.where(h[0, 0] > 1, 0, h)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import ENVIRONMENT, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import scalar_word

RULE = Rule(
    id="SYNC040",
    kind="capture.sync",
    title="a value is read while a CUDA graph is captured: the capture fails",
    severity="error",
    fix="decide on the GPU (torch.where), or read before the capture",
)
BAND = ENVIRONMENT


def matches(wait: Wait) -> str | None:
    """A wait while a stream is being captured."""
    return scalar_word(wait) if wait.captured and wait.is_wait else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
