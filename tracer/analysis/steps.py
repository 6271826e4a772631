"""The program's steps, from the best source that a trace has.

In order: steps that were recorded as such, `ProfilerStep#N` annotations, calls of
`Optimizer.step` (a step lasts from the end of one call to the end of the next), or none.
"""

from __future__ import annotations

import re

import numpy as np

from tracer.trace import Ints, Kind, Steps, Trace

_BY_TIME = "time"  # a window of seconds: the one annotation in it is our own profiler's, and no step of the program
_PROFILER_STEP = re.compile(r"ProfilerStep#?\s*(\d{1,18})$")  # as many digits as a column holds


def find_steps(trace: Trace) -> Steps:
    """The steps of a trace, sorted by start; empty if nothing tells them."""
    if len(trace.steps) or trace.meta.get("steps_from") == _BY_TIME:
        return trace.steps.take(np.argsort(trace.steps.start_ns, kind="stable"))
    numbers = np.full(len(trace.names), -1, np.int64)
    for i, name in enumerate(trace.names):
        found = _PROFILER_STEP.match(name)
        if found:
            numbers[i] = int(found[1])
    spans = trace.spans
    marks = np.flatnonzero((spans.kind == Kind.MARK) & (numbers[spans.name] >= 0)) if len(numbers) else np.empty(0, int)
    if len(marks):
        return Steps.of(
            start_ns=spans.start_ns[marks],
            dur_ns=spans.dur_ns[marks],
            number=numbers[spans.name[marks]],
            track=spans.track[marks],
            traced=np.ones(len(marks), bool),
        )
    return _between_optimizer_calls(trace)


def source_of(trace: Trace) -> str:
    """Where find_steps has the steps from, in words for a report."""
    if len(trace.steps) or trace.meta.get("steps_from") == _BY_TIME:
        return trace.meta.get("steps_from", "recording")
    if any(_PROFILER_STEP.match(name) for name in trace.names):
        return "annotations"
    return "optimizer" if len(_between_optimizer_calls(trace)) else ""


def _between_optimizer_calls(trace: Trace) -> Steps:
    """On each thread, the time between calls of the optimizer that stepped there first."""
    spans = trace.spans
    named = [i for i, name in enumerate(trace.names) if name.startswith("Optimizer.step#")]
    rows = np.flatnonzero(np.isin(spans.name, named) & np.isin(spans.kind, (Kind.MARK, Kind.OP)))
    parts = []
    for track in np.unique(spans.track[rows]):
        mine = rows[spans.track[rows] == track]
        ends: Ints = spans.end_ns[mine[spans.name[mine] == spans.name[mine[0]]]]
        count = len(ends) - 1
        if count > 0:
            columns = {"start_ns": ends[:-1], "dur_ns": np.diff(ends), "number": np.arange(count)}
            parts.append(Steps.of(**columns, track=np.full(count, track), traced=np.ones(count, bool)))
    steps = Steps.join(parts)
    return steps.take(np.argsort(steps.start_ns, kind="stable"))
