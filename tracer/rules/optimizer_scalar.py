"""Step counters (or a learning rate) that lie on the GPU are read once for each parameter and step.

Bad:

    state['step'] = state['step'].to('cuda')

Good:

    state['step'] = state['step'].cpu()
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import scalar_word

RULE = Rule(
    id="SYNC022",
    kind="sync.item",
    title="the optimizer reads scalars from the GPU for each parameter",
    severity="warning",
    fix="keep state['step'] on the CPU, or use capturable=True or fused=True; a Python float as learning rate",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Reads below torch.optim."""
    return scalar_word(wait) if wait.is_wait and wait.inside("torch/optim/") and wait.reads_scalar else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
