"""From a Trace to all that we say about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracer.analysis.figures import find_line_costs, find_pace, find_pictures, find_step_rows
from tracer.analysis.finish import finish
from tracer.analysis.idle import window_of
from tracer.analysis.intervals import union
from tracer.analysis.steps import find_steps
from tracer.analysis.work import find_devices_used, find_launching, hot_copies, hot_kernels, hot_ops
from tracer.auditor.budgets import judge, read_budget
from tracer.auditor.examination import Examination, FoundIdle, Held, examine
from tracer.auditor.gains import find_verdicts, with_gains
from tracer.auditor.idle_table import idle_by_cause, idle_rows
from tracer.readers import load
from tracer.results import SCHEMA, Audit, Finding, Pace, Timer
from tracer.trace import NONE, Trace

__all__ = ["Examination", "FoundIdle", "Held", "audit", "audit_of", "examine"]

_SLOWED = 1.3  # recording that slows the step beyond this makes verdicts about speed doubtful


def audit(
    trace: Trace | str | Path,
    *,
    source: str = "",
    budget: Mapping[str, Any] | None = None,
    source_root: str | Path | None = None,
    samples: str | Path | None = None,
    setup: bool = False,
) -> Audit:
    """Everything that we say about a trace, or about the trace in a file or folder."""
    if not isinstance(trace, Trace):
        source = source or str(trace)
        trace = load(trace, source_root=source_root, samples=samples)
    return audit_of(examine(trace, setup=setup), source=source, budget=budget)


def audit_of(found: Examination, *, source: str = "", budget: Mapping[str, Any] | None = None) -> Audit:
    """The Audit of what was examined."""
    trace, evidence = found.trace, found.evidence
    trust, steps = evidence.trust, find_steps(trace)
    low, high = trust.window_ns if trust.has_gpu else window_of(trace)
    prediction, findings = with_gains(found, steps)
    pace, no_pace = find_pace(trace, steps)
    harmless = {finding.id: finding.harmless for finding in findings}
    owner = {
        row: (found.findings[number].id, harmless[found.findings[number].id])
        for row, number in enumerate(found.held.finding.tolist())
        if number != NONE
    }
    empty = union(found.idle.start_ns, found.idle.start_ns + found.idle.dur_ns)
    audit = finish(
        Audit(
            schema=SCHEMA,
            source=source,
            window_ns=high - low,
            steps=find_step_rows(trace, steps, evidence.stalls),
            pace=pace,
            devices=find_devices_used(trace, low, high) if trust.has_gpu else (),
            findings=findings,
            idle=idle_by_cause(found),
            idle_rows=idle_rows(found),
            lines=find_line_costs(trace, findings, empty),
            timers=evidence.timers,
            launching=find_launching(trace, evidence.launches, trust),
            kernels=hot_kernels(trace),
            ops=hot_ops(trace, evidence.launches),
            copies=hot_copies(trace),
            verdicts=find_verdicts(found, prediction),
            limits=(*trust.limits, *_of_pace(pace, no_pace, prediction.limits), *prediction.limits),
            replay=prediction.replay,
            pictures=find_pictures(trace, evidence.launches, evidence.stalls, steps, owner),
            sources=_sources(trace, findings, evidence.timers),
            meta=dict(trace.meta),
            complete=trust.complete,
        )
    )
    return judge(audit, read_budget(budget), trace) if budget else audit


def _sources(trace: Trace, findings: tuple[Finding, ...], timers: tuple[Timer, ...]) -> dict[str, str]:
    """The files that the report speaks of, and those that accept findings."""
    places = [place for f in findings for place in (f.place, *f.callers)]
    places += [place for timer in timers for place in (timer.start, timer.end)]
    named = {place.file for place in places if place}
    return {file: text for file, text in trace.sources.items() if file in named or "tracer: ok" in text}


def _of_pace(pace: Pace, why: str, said: tuple[str, ...]) -> tuple[str, ...]:
    """What the pace says against the recording, or why there is none although steps were seen outside."""
    if pace.ratio is not None and pace.ratio > _SLOWED:
        slower = f"recording made the step {pace.ratio:.2f} times as long"
        return (f"{slower}: idle time and launch overhead are smaller without it",)
    if why and pace.untraced_count and not any(why in limit for limit in said):
        return (f"the program's own pace is not known ({why})",)
    return ()
