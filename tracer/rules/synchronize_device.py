"""torch.cuda.synchronize() waits for every stream, and the host loses its lead.

Bad:

    torch.cuda.synchronize()
    t0 = time.perf_counter()

Good:

    start.record()      # a CUDA event; read the time steps later
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import EXPLICIT, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC026",
    kind="sync.explicit",
    title="the host waits for the whole device",
    severity="warning",
    fix="remove it; to time, use CUDA events or tracer.bench; to order streams, use wait_stream",
)
BAND = EXPLICIT


def matches(wait: Wait) -> str | None:
    """A device synchronisation that no operator made."""
    return "synchronize" if wait.does == Does.DEVICE_WAIT and not wait.ops else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
