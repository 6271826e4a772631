"""torch.tensor(values, device='cuda') builds on the CPU, copies, and waits for the whole stream.

Bad:

    scale = torch.tensor(3.14, device='cuda')

Good:

    scale = torch.full((), 3.14, device='cuda')
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import FRAMEWORK, Evidence, Rule, Wait
from tracer.rules._holds import held_findings

RULE = Rule(
    id="SYNC012",
    kind="sync.h2d_pageable",
    title="a tensor is built from Python values on the GPU",
    severity="warning",
    fix="build it once before the loop, or on the device: torch.full, torch.arange, torch.ones",
)
BAND = FRAMEWORK


def matches(wait: Wait) -> str | None:
    """A small upload whose source line builds a tensor, or whose next operator ends such a building."""
    small = wait.is_wait and wait.uploads and "Pinned" not in wait.copy and wait.nbytes <= 65536
    if not small or wait.outermost not in ("to", "_to_copy", "copy_"):
        return None
    written = wait.says("torch.tensor(", "as_tensor(", "new_tensor(", "Tensor(")
    built = wait.after[0] == "lift_fresh" and not wait.after[1].startswith("index")
    return "tensor" if written or built else None


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line and thread."""
    yield from held_findings(evidence, RULE)
