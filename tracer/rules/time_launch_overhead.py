"""The two events are launches themselves: around a kernel of some microseconds they measure how fast the host launches.

Bad:

    start.record(); y = x + 1; end.record()

Good:

    start.record()
    for _ in range(1000):
        y = x + 1
    end.record()                        # still launch-bound: compare with the kernel time
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._timers import judged

RULE = Rule(
    id="TIME007",
    kind="bench.launch_overhead",
    title="an event pair around tiny kernels measures the gap between launches",
    severity="warning",
    fix="time many calls in one pair, replay a CUDA graph, or read the kernel times of the trace",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Timers of the run with this verdict."""
    yield from judged(RULE, evidence.timers)
