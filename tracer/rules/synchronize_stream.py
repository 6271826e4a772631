"""stream.synchronize() holds the host until the stream is empty.

Bad:

    side.synchronize()

Good:

    torch.cuda.current_stream().wait_stream(side)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import EXPLICIT, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC027",
    kind="sync.explicit",
    title="the host waits for a stream",
    severity="warning",
    fix="let the other stream wait instead (wait_stream, wait_event)",
)
BAND = EXPLICIT


def matches(wait: Wait) -> str | None:
    """A stream synchronisation that no operator made."""
    return "synchronize" if wait.does == Does.STREAM_WAIT and not wait.ops and not wait.copy else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
