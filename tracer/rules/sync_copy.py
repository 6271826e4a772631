"""Torch never uses plain cudaMemcpy for tensors: an extension does.

Bad:

    ext.upload(array)

Good:

    tensor = torch.from_numpy(array).pin_memory().to('cuda', non_blocking=True)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import FALLBACK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC042",
    kind="copy.sync_api",
    title="a library uses the synchronous copy call",
    severity="warning",
    fix="ask the library for an asynchronous copy",
)
BAND = FALLBACK


def matches(wait: Wait) -> str | None:
    """Copies that wait by themselves, if nothing else is known."""
    return "memcpy" if wait.does == Does.COPY_WAIT else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
