"""The host works on something else than launching, and the GPU has nothing to do meanwhile.

Bad:

    noise = torch.randn(10_000_000)      # on the CPU, in each step

Good:

    noise = torch.randn(10_000_000, device='cuda')
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._idles import costly

RULE = Rule(
    id="IDLE004",
    kind="host.hot",
    title="CPU work on this line starves the GPU",
    severity="warning",
    fix="move the work off the loop (a worker, the GPU, or once before), or make it faster",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line whose CPU work cost the GPU time."""
    yield from costly(evidence, RULE, "host.hot", also="host.late", need_place=True, share=0.05, often=True)
