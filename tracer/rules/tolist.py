"""A list needs every value on the CPU, so the CPU waits for the GPU.

Bad:

    send, recv = a.tolist(), b.tolist()

Good:

    send, recv = torch.stack([a, b]).tolist()      # one wait instead of two
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import OPERATOR, Evidence, Rule, Wait
from tracer.rules._holds import held_findings
from tracer.rules._words import written

RULE = Rule(
    id="SYNC004",
    kind="sync.item",
    title="a GPU tensor is turned into a Python list",
    severity="warning",
    fix="copy once: stack what you need and call .tolist() once, or keep the sizes on the GPU",
)
BAND = OPERATOR


def matches(wait: Wait) -> str | None:
    """A download that torch makes for Tensor.tolist()."""
    if not (wait.is_wait and wait.downloads):
        return None
    listed = wait.before == "resolve_neg" and wait.outermost in ("to", "_to_copy", "copy_")
    return "tolist" if listed or written(wait, ("tolist",)) else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
