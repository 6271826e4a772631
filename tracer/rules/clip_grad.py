"""With error_if_nonfinite=True the norm is tested on the CPU in each step.

Bad:

    clip_grad_norm_(params, 1.0, error_if_nonfinite=True)

Good:

    norm = clip_grad_norm_(params, 1.0)      # look at norm every 100 steps
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import scalar_word

RULE = Rule(
    id="SYNC020",
    kind="sync.item",
    title="clip_grad_norm_ must raise on a bad norm, so it reads it",
    severity="warning",
    fix="leave error_if_nonfinite=False and check the norm every few steps",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Reads below torch.nn.utils.clip_grad."""
    return scalar_word(wait) if wait.is_wait and wait.inside("utils/clip_grad.py") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
