"""Work queued before the first read is charged to the first thing that is timed.

Bad:

    warm_up(x)
    t0 = time.perf_counter()            # the warm-up is still running
    y = model(x)
    torch.cuda.synchronize()
    t1 = time.perf_counter()

Good:

    warm_up(x)
    torch.cuda.synchronize()
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
    id="TIME002",
    kind="bench.dirty_start",
    title="a timer starts while older GPU work is still running",
    severity="warning",
    fix="call torch.cuda.synchronize() before the first read",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Timers of the run with this verdict."""
    yield from judged(RULE, evidence.timers)


def scan(source: Source) -> Iterator[Finding]:
    """Timers in the text that may have it."""
    for timer in source.timers:
        if timer.started_dirty and timer.start not in source.unwaited_ends and not source.blocking:
            message = "may start while older GPU work is running: nothing waits before it"
            yield suspected(RULE, source.file, timer, message, at_start=True)
