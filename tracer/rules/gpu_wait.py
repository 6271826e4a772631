"""Work is in the queue and the device does not run it: it waits for another stream, an event, a peer or a process.

Bad:

    side.wait_stream(main)      # serialises what could overlap

Good:

    side.wait_event(only_what_is_needed)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._idles import costly

RULE = Rule(
    id="IDLE008",
    kind="gpu.wait",
    title="launched work waits on the GPU for something else",
    severity="info",
    fix="look at events between streams, peer copies, host functions, and other processes on the device",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each device."""
    yield from costly(evidence, RULE, "gpu.wait", whole=True)
