"""`elapsed_time` raises while the GPU has not reached the end event.

Bad:

    end.record()
    ms = start.elapsed_time(end)

Good:

    end.record()
    end.synchronize()
    ms = start.elapsed_time(end)
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.source_file import Source
from tracer.results import Finding
from tracer.rules import Evidence, Rule
from tracer.rules._timers import judged, suspected

RULE = Rule(
    id="TIME005",
    kind="bench.event_not_ready",
    title="the time between two events is asked for before they happened",
    severity="error",
    fix="call end.synchronize() before start.elapsed_time(end)",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """Timers of the run with this verdict."""
    yield from judged(RULE, evidence.timers)


def scan(source: Source) -> Iterator[Finding]:
    """Timers in the text that may have it."""
    for timer in source.timers:
        if timer.events and timer.launches and not timer.waited:
            yield suspected(RULE, source.file, timer, "may ask before the end event has happened: it would raise")
