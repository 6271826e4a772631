"""CUDA_LAUNCH_BLOCKING makes every launch wait for its kernel.

Bad:

    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"      # left over from looking for an error

Good:

    # unset; `tracer locate` finds the launch that an error came from without it
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.analysis.intervals import total
from tracer.analysis.source_file import read_any
from tracer.analysis.work import is_blocking
from tracer.results import Finding, Place
from tracer.rules import Evidence, Rule
from tracer.rules._holds import name_of, thread_name
from tracer.trace import Kind
from tracer.units import show_ns

RULE = Rule(
    id="SYNC045",
    kind="bench.launch_blocking",
    title="every launch waits for its kernel (CUDA_LAUNCH_BLOCKING is on)",
    severity="error",
    fix="unset CUDA_LAUNCH_BLOCKING",
)


def find(evidence: Evidence) -> Iterator[Finding]:
    """One finding for the whole process."""
    trace, launches = evidence.trace, evidence.launches
    if not is_blocking(trace, launches):
        return
    spans = trace.spans
    calls = np.unique(launches.call[spans.kind[launches.work] == Kind.KERNEL])
    track = int(np.bincount(spans.track[calls]).argmax())
    mine = calls[spans.track[calls] == track]
    held = total(spans.start_ns[mine], spans.end_ns[mine])
    place = _switch(evidence)
    yield Finding(
        id=name_of(evidence, RULE, place, "launch", "launch", thread_name(evidence, track), trace.tracks[track].rank),
        rule=RULE.id,
        kind=RULE.kind,
        title=RULE.title,
        severity=RULE.severity,
        place=place,
        op="launch",
        thread=thread_name(evidence, track),
        rank=trace.tracks[track].rank,
        count=len(mine),
        waits=len(mine),
        stall_ns=held,
        message=f"{RULE.title}: {len(mine)} launches, the host was held {show_ns(held)}",
        fix=RULE.fix,
        first_ns=int(spans.start_ns[mine[0]]),
        first_dur_ns=int(spans.dur_ns[mine[0]]),
    )


def _switch(evidence: Evidence) -> Place | None:
    """Where the program's own text switches it on."""
    for file, text in evidence.trace.sources.items():
        if "CUDA_LAUNCH_BLOCKING" in text:
            source = read_any(file, text)
            for switch in source.blocking if source else ():
                line = text.splitlines()[switch.line - 1]
                return Place(file, switch.line, "", (switch.column, switch.end_column), "source", True, line)
    return None
