"""A tensor's value is read on the CPU, so the CPU waits for the GPU.

Bad:

    total += loss.item()

Good:

    total += loss.detach()      # stays on the GPU; call .item() once, at the end
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import GENERAL, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._waits import bursts
from tracer.rules._words import scalar_word

RULE = Rule(
    id="SYNC001",
    kind="sync.item",
    title="a tensor's value is read on the CPU",
    severity="warning",
    fix="keep the value on the GPU and read it rarely, after the loop, or one step late from pinned memory",
)
BAND = GENERAL
_MANY = 100


def matches(wait: Wait) -> str | None:
    """Any read of one value that no closer rule has taken."""
    return scalar_word(wait) if wait.is_wait and wait.reads_scalar else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE, notes=_many)


def _many(waits: list[Wait]) -> tuple[str, ...]:
    """What to do about many reads between two launches of anything else."""
    calls = sum(wait.calls for wait in waits)
    if calls < _MANY:
        return ()
    if calls >= _MANY * bursts(waits):
        return (f"{calls} separate reads: torch.stack(...).tolist() once makes it one wait",)
    return (f"{calls} reads in a loop: collect the values in one tensor and read that once",)
