"""Kernels are shorter than the time it takes to launch them, so the GPU runs dry between them.

Bad:

    for t in range(2000):
        h = a[t] * h + b[t]      # two tiny kernels a line

Good:

    step = torch.compile(step)      # or capture the loop in a CUDA graph
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._idles import by_place, idle_finding, idle_sum, rows_of
from tracer.trace import Kind

RULE = Rule(
    id="IDLE001",
    kind="launch.bound",
    title="the GPU waits for Python and torch to launch small kernels",
    severity="warning",
    fix="torch.compile, CUDA graphs, larger batches, fused operators",
)


_SHARE = 0.25  # of the steps: less idle time than this does not make a program launch-bound
_WAITS = 0.1  # waits for each launch, from which on waiting is the cause and not launching
_PART = 0.2  # of that idle time: a line is named from here on


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for each line that launches too slowly, if launching is what the GPU waits for."""
    rows = rows_of(evidence, "launch.bound")
    whole = idle_sum(evidence, rows)
    if not evidence.trust.has_gpu or whole < _SHARE * evidence.span_ns or _waits_often(evidence):
        return
    spans = evidence.trace.spans
    kernels = spans.kind == Kind.KERNEL
    details: dict[str, float | int | str] = {
        "share": whole / evidence.span_ns,
        "kernels_per_s": float(kernels.sum()) / evidence.span_ns * 1e9,
        "mean_kernel_ns": float(spans.dur_ns[kernels].mean()) if kernels.any() else 0.0,
    }
    places = by_place(evidence, rows)
    named = [one for one in places if one[0] and idle_sum(evidence, one[2]) >= _PART * whole]
    for place, track, mine in named or places[:1]:
        yield idle_finding(evidence, RULE, mine, track, place, op="launch", details=details)


def _waits_often(evidence: Evidence) -> bool:
    """Whether a wait comes with every few launches: then the host never gets ahead, and launching is not the cause."""
    waits = sum(wait.calls for wait in evidence.waits if wait.is_wait)
    return waits > _WAITS * len(np.unique(evidence.launches.call))
