"""A copy to the CPU waits for all work before it in the stream.

Bad:

    logits = model(x).cpu()

Good:

    host.copy_(model(x), non_blocking=True)      # host is pinned
    event.record()                              # event.synchronize() before reading
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import COPYING, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import written

RULE = Rule(
    id="SYNC017",
    kind="sync.d2h",
    title="data is copied to the CPU, and the copy waits",
    severity="warning",
    fix="copy into pinned memory with non_blocking=True, record an event, and read one step later",
)
BAND = COPYING


def matches(wait: Wait) -> str | None:
    """A download with a synchronisation."""
    return (written(wait, ("cpu", "numpy")) or wait.outermost or "copy") if wait.is_wait and wait.downloads else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
