"""dist.barrier() waits for the slowest rank, on the host.

Bad:

    dist.barrier()
    save(step)

Good:

    if rank == 0:
        save(step)      # no barrier
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import ENVIRONMENT, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC029",
    kind="collective.wait",
    title="a barrier holds the host until all ranks have come",
    severity="warning",
    fix="remove it; collectives order themselves. For debugging: monitored_barrier",
)
BAND = ENVIRONMENT


def matches(wait: Wait) -> str | None:
    """Waits below torch.distributed.barrier."""
    return "barrier" if wait.is_wait and "barrier" in wait.functions() and wait.inside("torch/distributed/") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
