"""Formatting or printing a GPU tensor reads it value by value; each read waits for the GPU.

Bad:

    print(f"loss {loss:.3f}")

Good:

    if step % 100 == 0:
        print(f"loss {loss.item():.3f}")      # once in a while, one wait
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import scalar_word

RULE = Rule(
    id="SYNC003",
    kind="sync.item",
    title="a GPU tensor is formatted or printed",
    severity="warning",
    fix="format a CPU copy, and only when it is shown: print(t.detach().cpu()) every few steps",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """Reads below Tensor.__format__ and Tensor.__repr__."""
    word = scalar_word(wait) if wait.is_wait and (wait.reads_scalar or wait.inside("_tensor_str.py")) else ""
    return word if word in ("format", "repr") else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
