"""A synchronisation record without any runtime call: cuda-python, Triton, NVSHMEM, cuSOLVER and the like.

Bad:

    lib.run(x)      # waits inside

Good:

    lib.run(x, stream=s)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.calls import Does
from tracer.results import Finding
from tracer.rules import FALLBACK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC041",
    kind="sync.driver",
    title="a library waits through the driver",
    severity="warning",
    fix="find the library by its Python frame; ask it not to wait",
)
BAND = FALLBACK


def matches(wait: Wait) -> str | None:
    """Records without a call."""
    return wait.call if wait.does == Does.OTHER and wait.call.endswith(" Sync") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, confidence="medium")
