"""The section that waits gets the time of the section that worked, since that one's timer did not wait.

Bad:

    t0 = perf_counter(); y = model(x)
    t1 = perf_counter(); out = y.cpu()  # pays for the model
    t2 = perf_counter()

Good:

    start.record(); y = model(x); mid.record(); out = y.cpu(); end.record()
    end.synchronize()
    start.elapsed_time(mid), mid.elapsed_time(end)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.source_file import Source
from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._timers import judged, suspected

RULE = Rule(
    id="TIME003",
    kind="bench.misattributed",
    title="a section's timer is charged for the section before",
    severity="warning",
    fix="time sections with CUDA events on their stream, or synchronize between them (which slows the program)",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Timers of the run with this verdict."""
    yield from judged(RULE, evidence.timers)


def scan(source: Source) -> Iterator[Finding]:
    """Timers in the text that may have it."""
    for timer in source.timers:
        if timer.started_dirty and timer.start in source.unwaited_ends and not source.blocking:
            message = "may be charged for the section before, whose timer does not wait"
            yield suspected(RULE, source.file, timer, message)
