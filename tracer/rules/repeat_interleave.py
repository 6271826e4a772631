"""The sum of the repeats is the size of the result, so the CPU waits for it.

Bad:

    y = torch.repeat_interleave(x, counts)

Good:

    y = torch.repeat_interleave(x, counts, output_size=total)      # total is known on the CPU
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC007",
    kind="sync.shape",
    title="repeat_interleave must read the length of its result",
    severity="warning",
    fix="give the length: torch.repeat_interleave(x, counts, output_size=n)",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """Reads below repeat_interleave."""
    return "repeat_interleave" if wait.is_wait and wait.has("repeat_interleave") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
