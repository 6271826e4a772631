"""A parameter really was unused, so DDP reads the map of used ones back in each backward pass.

Bad:

    DDP(model, find_unused_parameters=True)

Good:

    DDP(model, static_graph=True)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC050",
    kind="sync.d2h",
    title="DDP reads which parameters were used",
    severity="warning",
    fix="find_unused_parameters=False, or static_graph=True",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Downloads by DDP on the autograd thread."""
    return (
        "used_map"
        if wait.is_wait
        and wait.downloads
        and any("DistributedDataParallel" in n for n in wait.around)
        and any("autograd" in n for n in wait.around)
        else None
    )


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
