"""Real data comes from memory; a buffer that was touched a moment ago comes from the cache.

Bad:

    for _ in range(200):
        torch.add(a, 1.0, out=b)        # 32 MB, always the same

Good:

    for i in range(200):
        torch.add(inputs[i % len(inputs)], 1.0, out=outputs[i % len(outputs)])
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._timers import judged

RULE = Rule(
    id="TIME008",
    kind="bench.l2_hot",
    title="the same small buffers are timed again and again and stay in the L2 cache",
    severity="info",
    fix="rotate among inputs larger than the L2 cache together, or flush it between runs (tracer.bench: rotate, flush)",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Timers of the run with this verdict."""
    yield from judged(RULE, evidence.timers)
