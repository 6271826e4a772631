"""From a Trace to all that we say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tracer.analysis.calls import Does
from tracer.analysis.figures import find_line_costs, find_pace, find_pictures, find_step_rows
from tracer.analysis.finish import finish
from tracer.analysis.idle import CAUSES, Idle, find_idle, idle_of, window_of
from tracer.analysis.intervals import union
from tracer.analysis.launches import find_launches
from tracer.analysis.places import Places
from tracer.analysis.replay import Prediction, Removal, predict
from tracer.analysis.stalls import Stalls, find_stalls
from tracer.analysis.steps import find_steps
from tracer.analysis.timer_verdicts import judge_timers
from tracer.analysis.timers import find_timings
from tracer.analysis.trust import find_trust
from tracer.analysis.work import (
    find_devices_used,
    find_launching,
    hot_copies,
    hot_kernels,
    hot_ops,
    is_blocking,
)
from tracer.readers import load
from tracer.results import SCHEMA, Audit, Finding, Gain, IdleRow, Timer, Verdict
from tracer.rules import Evidence, assign, price, rule_modules, run_rules
from tracer.rules._holds import HARMLESS_WORDS
from tracer.rules._waits import find_waits
from tracer.trace import NONE, Bools, Ids, Ints, Steps, Table, Trace
from tracer.units import show_ns

_WORTH = 0.03  # of the step: a gain from here on is worth having
_SLOWED = 1.3  # recording that slows the step beyond this makes verdicts about speed doubtful

# How the replay takes a finding away, by its kind; kinds that are not here are not replayed.
_HOW = {
    "sync.item": "no_wait",
    "sync.shape": "no_wait",
    "sync.check": "no_wait",
    "sync.event": "no_wait",
    "sync.in_op": "no_wait",
    "sync.driver": "no_wait",
    "sync.extension": "no_wait",
    "sync.h2d_pageable": "pinned_upload",
    "sync.h2d_pinned": "pinned_upload",
    "copy.pageable_h2d": "pinned_upload",
    "copy.sync_api": "pinned_upload",
    "sync.d2h": "later_download",
    "copy.pageable_d2h": "later_download",
    "sync.explicit": "drop",
    "collective.wait": "drop",
    "alloc.malloc": "no_alloc",
    "alloc.free": "drop",
    "alloc.pin": "no_alloc",
    "alloc.unpin": "no_alloc",
    "alloc.retry": "no_alloc",
    "launch.queue_full": "no_queue_wait",
    "load.lazy": "loaded",
}
_KIND_OF_CALL = {
    Does.MALLOC: "alloc.malloc",
    Does.FREE: "alloc.free",
    Does.PIN: "alloc.pin",
    Does.UNPIN: "alloc.unpin",
}


@dataclass(frozen=True, slots=True, eq=False)
class Held(Table):
    """One row for each stall, for a viewer to draw."""

    start_ns: Ints
    dur_ns: Ints
    track: Ids
    finding: Ids  # -> Examination.findings; NONE
    harmless: Bools
    last_work: Ids  # -> spans: what it waited for; NONE


@dataclass(frozen=True, slots=True, eq=False)
class FoundIdle(Idle):
    """Idle time with the finding that answers for it."""

    finding: Ids  # -> Examination.findings; NONE


@dataclass(frozen=True, slots=True, eq=False)
class Examination:
    """What an Audit is made from, row by row."""

    trace: Trace
    evidence: Evidence
    findings: tuple[Finding, ...]
    held: Held
    idle: FoundIdle
    kinds: tuple[str, ...]  # for each stall its class word


def examine(trace: Trace, *, setup: bool = False) -> Examination:
    """All stalls and idle time, with what the rules find. `setup`: what lies outside the steps, too."""
    launches = find_launches(trace)
    trust = find_trust(trace, launches)
    stalls = find_stalls(trace, launches)
    idle = find_idle(trace, launches, stalls, trust.window_ns if trust.has_gpu else None)
    steps = find_steps(trace)
    places = Places(trace)
    counted = np.ones(len(stalls), np.bool_) if setup else _in_steps(steps, stalls)
    answers = idle_of(stalls, idle)
    stalls = replace(stalls, idle_ns=answers)
    waits, set_up = find_waits(trace, stalls, places, counted)
    evidence = Evidence(
        trace=trace,
        launches=launches,
        stalls=stalls,
        idle=idle,
        places=places,
        steps=steps.take(np.zeros(0, np.int64)) if setup else steps,
        trust=trust,
        waits=waits,
        set_up=set_up,
        idle_ns=answers,
        span_ns=_span(trace, steps, setup),
        timers=judge_timers(trace, find_timings(trace, launches), blocking=is_blocking(trace, launches)),
    )
    findings, rows = run_rules(evidence)
    owner = np.full(len(stalls), NONE, np.int32)
    for number, mine in enumerate(rows):
        owner[mine] = number
    harmless = np.array([f.harmless for f in findings] or [False])
    held = Held.of(
        start_ns=stalls.start_ns,
        dur_ns=stalls.dur_ns,
        track=stalls.track,
        finding=owner,
        harmless=(owner != NONE) & harmless[owner],
        last_work=stalls.last_work,
    )
    return Examination(trace, evidence, findings, held, _with_findings(evidence, findings, owner), _kinds(evidence))


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
    prediction, findings = _with_gains(found, steps)
    pace = find_pace(trace, steps)
    owner = {
        row: (found.findings[number].id, found.findings[number].harmless)
        for row, number in enumerate(found.held.finding.tolist())
        if number != NONE
    }
    empty = union(found.idle.start_ns, found.idle.start_ns + found.idle.dur_ns)
    return finish(
        Audit(
            schema=SCHEMA,
            source=source,
            window_ns=high - low,
            steps=find_step_rows(trace, steps, evidence.stalls),
            pace=pace,
            devices=find_devices_used(trace, low, high) if trust.has_gpu else (),
            findings=findings,
            idle=_idle_by_cause(found),
            idle_rows=_idle_rows(found),
            lines=find_line_costs(trace, findings, empty),
            timers=evidence.timers,
            launching=find_launching(trace, evidence.launches, trust),
            kernels=hot_kernels(trace),
            ops=hot_ops(trace, evidence.launches),
            copies=hot_copies(trace),
            verdicts=_verdicts(found, prediction),
            limits=(*trust.limits, *_of_pace(pace.ratio), *prediction.limits),
            replay=prediction.replay,
            pictures=find_pictures(trace, evidence.launches, evidence.stalls, steps, owner),
            sources=_sources(trace, findings, evidence.timers),
            meta=dict(trace.meta),
            complete=trust.complete,
        ),
        budget,
    )


def _in_steps(steps: Steps, stalls: Stalls) -> Bools:
    """For each stall, whether it lies between the first and the last recorded step."""
    mine = steps.take(steps.traced)
    if not len(mine):
        return np.ones(len(stalls), np.bool_)
    low, high = mine.start_ns.min(), (mine.start_ns + mine.dur_ns).max()
    found: Bools = (stalls.start_ns < high) & (stalls.end_ns > low)
    return found


def _sources(trace: Trace, findings: tuple[Finding, ...], timers: tuple[Timer, ...]) -> dict[str, str]:
    """The files that the report speaks of, and those that accept findings."""
    places = [place for f in findings for place in (f.place, *f.callers)]
    places += [place for timer in timers for place in (timer.start, timer.end)]
    named = {place.file for place in places if place}
    return {file: text for file, text in trace.sources.items() if file in named or "tracer: ok" in text}


def _span(trace: Trace, steps: Steps, setup: bool) -> int:
    """How long the steps last; without steps, the time from the first to the last GPU work."""
    mine = steps.take(steps.traced)
    if len(mine) and not setup:
        return int((mine.start_ns + mine.dur_ns).max() - mine.start_ns.min())
    work = np.flatnonzero(trace.is_work)
    if not len(work):
        low, high = window_of(trace)
        return high - low
    return int(trace.spans.end_ns[work].max() - trace.spans.start_ns[work].min())


def _with_findings(evidence: Evidence, findings: tuple[Finding, ...], owner: Ids) -> FoundIdle:
    idle = evidence.idle
    finding = np.where(idle.stall != NONE, owner[idle.stall] if len(owner) else NONE, NONE)
    for number, one in enumerate(findings):
        rows = evidence.idle_rows.get(one.id)
        if rows is not None:
            finding[rows] = number
    columns = {name: getattr(idle, name) for name in Idle.columns()}
    return FoundIdle.of(**columns, finding=finding)


def _kinds(evidence: Evidence) -> tuple[str, ...]:
    """The class word of each stall, counted or not."""
    stalls = evidence.stalls
    kinds = [_KIND_OF_CALL.get(Does(does), "sync.other") for does in stalls.does.tolist()]
    words = {module.RULE.id: module.RULE.kind for module in rule_modules()}
    for waits in (evidence.waits, evidence.set_up):
        for rule, taken in assign(waits).items():
            for wait, _ in taken:
                for row in wait.rows.tolist():
                    kinds[row] = words[rule]
    return tuple(kinds)


def _words_of_idle(found: Examination) -> list[str]:
    """For each row of idle time the class word of its cause."""
    words = [CAUSES[cause] for cause in found.idle.cause.tolist()]
    for row in np.flatnonzero(found.idle.stall != NONE).tolist():
        words[row] = found.kinds[found.idle.stall[row]]
    return words


def _idle_by_cause(found: Examination) -> dict[str, int]:
    sums: dict[str, int] = {}
    for word, ns in zip(_words_of_idle(found), found.idle.dur_ns.tolist(), strict=True):
        sums[word] = sums.get(word, 0) + ns
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _idle_rows(found: Examination) -> tuple[IdleRow, ...]:
    idle = found.idle
    sums: dict[tuple[str, int, int, int], list[int]] = {}
    columns = (idle.finding.tolist(), idle.device.tolist(), idle.rank.tolist(), idle.dur_ns.tolist())
    for word, number, device, rank, ns in zip(_words_of_idle(found), *columns, strict=True):
        row = sums.setdefault((word, number, device, rank), [0, 0])
        row[0] += ns
        row[1] += 1
    whole = int(idle.dur_ns.sum()) or 1
    rows = []
    for (word, number, device, rank), (ns, count) in sums.items():
        finding = found.findings[number] if number != NONE else None
        rule, place = (finding.rule, finding.place) if finding else ("", None)
        rows.append(IdleRow(word, rule, ns, count, ns / whole, place, device, rank))
    return tuple(sorted(rows, key=lambda row: -row.ns))


def _with_gains(found: Examination, steps: Steps) -> tuple[Prediction, tuple[Finding, ...]]:
    """What removing each finding would save, and the findings with it."""
    evidence = found.evidence
    removals = []
    for number, finding in enumerate(found.findings):
        rows = evidence.rows.get(finding.id)
        how = "drop" if finding.op == "tensor" else _HOW.get(finding.kind)
        if rows is not None and how is not None and len(rows):
            removals.append(Removal(number, evidence.stalls.call[rows], evidence.stalls.op[rows], how))
    prediction = predict(found.trace, evidence.launches, evidence.stalls, steps, removals)
    findings = list(found.findings)
    for removal, gain in zip(removals, prediction.gains, strict=True):
        findings[removal.finding] = _priced(findings[removal.finding], gain)
    return prediction, tuple(sorted(findings, key=price))


def _priced(finding: Finding, gain: Gain | None) -> Finding:
    """The finding with its gain. What the replay says would go faster is not harmless, however busy the GPU was."""
    if gain is None or gain.share < _WORTH or not finding.harmless:
        return replace(finding, gain_ns=gain)
    rule = next(module.RULE for module in rule_modules() if module.RULE.id == finding.rule)
    message = finding.message.partition(HARMLESS_WORDS)[0] + f"; without it a step would save {show_ns(gain.likely_ns)}"
    return replace(finding, gain_ns=gain, harmless=False, severity=rule.severity, message=message)


def _verdicts(found: Examination, prediction: Prediction) -> tuple[Verdict, ...]:
    if not found.evidence.trust.has_gpu:
        return (Verdict("no_gpu", "there is no GPU work in this trace, so no async gap to see"),)
    verdicts = list(prediction.verdicts)
    waited = int(found.idle.dur_ns[found.idle.cause == CAUSES.index("input.bound")].sum())
    share = waited / max(found.evidence.span_ns, 1)
    if share > 0.1:
        text = f"the GPU waits for input {show_ns(waited)}, {100 * share:.0f} % of the time"
        verdicts.append(Verdict("input_bound", text, share, "traced"))
    return tuple(verdicts)


def _of_pace(ratio: float | None) -> tuple[str, ...]:
    if ratio is None or ratio <= _SLOWED:
        return ()
    return (f"recording made the step {ratio:.2f} times as long: idle time and launch overhead are smaller without it",)
