"""All stalls and idle time of a trace, row by row, with what the rules find in them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracer.analysis.calls import Does
from tracer.analysis.idle import Idle, find_idle, idle_of, window_of
from tracer.analysis.launches import find_launches
from tracer.analysis.places import Places
from tracer.analysis.stalls import Stalls, find_stalls
from tracer.analysis.steps import find_steps
from tracer.analysis.timer_verdicts import judge_timers
from tracer.analysis.timers import find_timings
from tracer.analysis.trust import find_trust
from tracer.analysis.work import is_blocking
from tracer.results import Finding
from tracer.rules import Evidence, assign, rule_modules, run_rules
from tracer.rules._waits import find_waits
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Steps, Table, Trace

_LOOKED_UP = 10_000  # idle stretches whose line is looked up
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
        idle_stack=_idle_stacks(trace, places, idle),
        places=places,
        steps=steps.take(np.zeros(0, np.int64)) if setup else steps,
        trust=trust,
        waits=waits,
        set_up=set_up,
        idle_ns=answers,
        span_ns=max(_span(trace, steps, setup), 1),
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


def _in_steps(steps: Steps, stalls: Stalls) -> Bools:
    """For each stall, whether it lies between the first and the last recorded step."""
    mine = steps.take(steps.traced)
    if not len(mine):
        return np.ones(len(stalls), np.bool_)
    low, high = mine.start_ns.min(), (mine.start_ns + mine.dur_ns).max()
    found: Bools = (stalls.start_ns < high) & (stalls.end_ns > low)
    return found


def _idle_stacks(trace: Trace, places: Places, idle: Idle) -> Ids:
    """What the host did during the longest idle stretches that no stall answers for."""
    stacks = np.full(len(idle), NONE, np.int32)
    if not (len(trace.lines) or len(trace.samples) or np.any(trace.spans.kind == Kind.PYTHON)):
        return stacks
    rows = np.flatnonzero((idle.stall == NONE) & (idle.track != NONE))
    rows = rows[np.argsort(-idle.dur_ns[rows], kind="stable")[:_LOOKED_UP]]
    ends = idle.start_ns + idle.dur_ns
    stacks[rows] = places.frames_at(idle.track[rows], idle.start_ns[rows], ends[rows])
    # An autograd or helper thread has no lines of its own: the main thread's line says who waits for it.
    owner = _main_threads(trace)[idle.track[rows]]
    rest = (stacks[rows] == NONE) & (owner != NONE) & (owner != idle.track[rows])
    rows, owner = rows[rest], owner[rest]
    stacks[rows] = places.frames_at(owner, idle.start_ns[rows], ends[rows])
    return stacks


def _main_threads(trace: Trace) -> Ids:
    """For each track the thread of its process that has most lines and samples; NONE if none has."""
    known = np.bincount(np.concatenate((trace.lines.track, trace.samples.track)), minlength=len(trace.tracks))
    best: dict[tuple[int, int], int] = {}
    for i in np.argsort(known, kind="stable").tolist():
        if known[i]:
            best[trace.tracks[i].rank, trace.tracks[i].pid] = i
    return np.array([best.get((t.rank, t.pid), NONE) for t in trace.tracks] or [NONE], np.int32)


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
