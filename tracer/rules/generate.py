"""The stop test runs once for each token, and waits for the GPU each time.

Bad:

    out = model.generate(ids, max_new_tokens=256)

Good:

    out = model.generate(ids, max_new_tokens=256, cache_implementation='static')
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import scalar_word

RULE = Rule(
    id="SYNC023",
    kind="sync.item",
    title="generate() asks on the CPU whether all sequences have ended",
    severity="warning",
    fix="test for the end every few tokens, or use a static cache with a compiled loop; no streamer",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Reads below the transformers library."""
    if not (wait.is_wait and wait.inside("transformers/")) or wait.uploads:
        return None
    return scalar_word(wait) if wait.reads_scalar or wait.downloads else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
