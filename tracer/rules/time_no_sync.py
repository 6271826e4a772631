"""A clock is read while the GPU work to be timed is still running, so it measures the launch.

Bad:

    t0 = time.perf_counter()
    y = model(x)
    t1 = time.perf_counter()            # the kernels have only been queued

Good:

    t0 = time.perf_counter()
    y = model(x)
    torch.cuda.synchronize()
    t1 = time.perf_counter()
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.source_file import Source
from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._timers import judged, suspected

RULE = Rule(
    id="TIME001",
    kind="bench.no_sync",
    title="a timer stops while the GPU is still working",
    severity="error",
    fix="call torch.cuda.synchronize() before the second read, or time with CUDA events or tracer.bench",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Timers of the run with this verdict."""
    yield from judged(RULE, evidence.timers)


def scan(source: Source) -> Iterator[Finding]:
    """Timers in the text that may have it."""
    for timer in source.timers:
        if timer.stopped_early and not source.blocking:
            yield suspected(RULE, source.file, timer, "may stop before the GPU has finished: nothing waits on the way")
