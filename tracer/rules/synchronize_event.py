"""event.synchronize() holds the host until the GPU has passed the event.

Bad:

    event.record()
    event.synchronize()

Good:

    events[step - 1].synchronize()      # one step late: the GPU stays busy
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import EXPLICIT, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC028",
    kind="sync.event",
    title="the host waits for an event",
    severity="warning",
    fix="wait for an older event (one step late), or let the GPU wait: stream.wait_event(event)",
)
BAND = EXPLICIT


def matches(wait: Wait) -> str | None:
    """An event synchronisation that no operator made."""
    return "synchronize" if wait.does == Does.EVENT_WAIT and not wait.ops else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
