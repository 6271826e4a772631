""".item() inside torch.compile breaks the graph there, and still waits.

Bad:

    @torch.compile
    def f(x):
        return x / x.mean().item()

Good:

    @torch.compile
    def f(x):
        return x / x.mean()
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import scalar_word

RULE = Rule(
    id="SYNC038",
    kind="sync.item",
    title="a read splits a compiled function and waits",
    severity="warning",
    fix="move the read out of the compiled function, or keep the value a tensor",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Reads inside a compiled region."""
    inside = any("Torch-Compiled Region" in name for name in wait.around) or wait.inside("torch/_dynamo/eval_frame.py")
    return scalar_word(wait) if wait.is_wait and wait.reads_scalar and inside else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(
        evidence, RULE, notes=lambda waits: ("graph break: the compiled function is split at this line",)
    )
