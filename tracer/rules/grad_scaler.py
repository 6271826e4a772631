"""scaler.step() must know whether to skip the step, so it reads a flag from the GPU.

Bad:

    scaler.step(torch.optim.AdamW(params))

Good:

    scaler.step(torch.optim.AdamW(params, fused=True))
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC019",
    kind="sync.item",
    title="GradScaler looks for infinities on the CPU",
    severity="warning",
    fix="use a fused optimizer (fused=True reads nothing), or bfloat16 without a scaler",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Reads below torch.amp.GradScaler."""
    return "item" if wait.is_wait and wait.inside("amp/grad_scaler.py") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
