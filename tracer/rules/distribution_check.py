"""Each constructor and log_prob tests its arguments with an `if` on GPU tensors.

Bad:

    d = Normal(mean, std)

Good:

    d = Normal(mean, std, validate_args=False)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import scalar_word

RULE = Rule(
    id="SYNC021",
    kind="sync.item",
    title="a distribution checks its arguments on the CPU",
    severity="warning",
    fix="pass validate_args=False",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """Reads below torch.distributions."""
    return scalar_word(wait) if wait.is_wait and wait.inside("torch/distributions/") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
