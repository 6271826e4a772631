"""The rows of a rank that say what was found: steps, host stalls, findings, timers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.analysis.intervals import covered, union
from tracer.analysis.launches import busy
from tracer.analysis.timers import Timings, find_timings
from tracer.exports import _colours as colours
from tracer.exports._arrows import STALL
from tracer.exports._host_rows import overhead_rows
from tracer.exports._naming import short_place
from tracer.exports._rows import Arg, Row, Slices
from tracer.exports._scene import Scene
from tracer.exports._spans import lane_rows
from tracer.results import Finding, Timer
from tracer.trace import NONE, Ids, Ints
from tracer.units import NS_PER_MS, show_ns


def finding_rows(scene: Scene, rank: int) -> Iterator[Row]:
    """The heading of one rank and what was found there."""
    rows = [
        *_step_rows(scene, rank, "steps"),
        *_stall_rows(scene, rank, "stalls"),
        *_finding_track(scene, rank, "findings"),
        *_timer_rows(scene, rank, "timers"),
        *overhead_rows(scene, rank, _key(rank), 9),
    ]
    if rows:
        yield Row(_key(rank), f"Host{scene.of_rank(rank)}: steps, stalls and findings", heading=True)
        yield from rows


def _key(rank: int) -> str:
    return f"host {rank}"


def _step_rows(scene: Scene, rank: int, key: str) -> Iterator[Row]:
    trace, steps = scene.trace, scene.steps
    ranks = np.array([track.rank for track in trace.tracks] or [0])
    rows = np.flatnonzero(steps.traced & (ranks[steps.track] == rank)) if len(steps) else np.empty(0, np.int64)
    if not len(rows):
        return
    steps = steps.take(rows)
    start, end = steps.start_ns, steps.start_ns + steps.dur_ns
    devices = sorted({track.device for track in trace.tracks if track.on_gpu and track.rank == rank})
    args = [Arg("wall_ms", _ms(steps.dur_ns))]
    for device in devices:
        suffix = f"_gpu{device}" if len(devices) > 1 else ""
        args.append(Arg(f"busy_ms{suffix}", _ms(covered(busy(trace, rank, device), start, end))))
    stalls = scene.stalled
    if len(stalls):
        on_rank = ranks[stalls.track] == rank
        held = union(stalls.start_ns[on_rank], (stalls.start_ns + stalls.dur_ns)[on_rank])
        args.append(Arg("stalled_ms", _ms(covered(held, start, end))))
    names = scene.text_ids([f"step {number}" for number in steps.number.tolist()])
    part = Slices(start, steps.dur_ns, names, "step", tuple(args))
    text = "The steps of the program, with wall time, GPU busy time and the time the host was held in each."
    yield from lane_rows(f"{key} {rank}", f"Steps{scene.in_rank(rank)}", _key(rank), 1, text, [part], flat=True)


def _ms(ns: Ints) -> np.ndarray:
    return np.round(ns / NS_PER_MS, 4)


def _stall_rows(scene: Scene, rank: int, key: str) -> Iterator[Row]:
    held = scene.stalled
    if not len(held):
        return
    ranks = np.array([track.rank for track in scene.trace.tracks])
    mine = np.flatnonzero(ranks[held.track] == rank)
    parts = []
    for harmless, colour in ((False, colours.COSTLY), (True, colours.HARMLESS)):
        same = mine[held.harmless[mine] == harmless]
        for at, leaving, arriving in scene.arrows.split(STALL, same):
            some = same[at]
            names, args = _described(scene, held.finding[some])
            names = np.where(held.finding[some] != NONE, names, held.kind[some])
            spans = scene.trace.spans
            work = held.last_work[some]
            waited = np.where(work != NONE, scene.kernel_names[spans.name[work]], scene.strings.id("-"))
            costs = scene.text_ids(["held behind a busy GPU: no throughput lost" if harmless else "yes"])
            args = (
                Arg("costs_time", np.repeat(costs, len(some)), text=True),
                Arg("waited_for", waited, text=True),
                *args,
            )
            start, dur = held.start_ns[some], held.dur_ns[some]
            parts.append(Slices(start, dur, names, "stall", args, leaving, arriving, colour))
    text = (
        "When the host was held in a call. Red: the GPU ran dry meanwhile or soon after, so it cost time. "
        "Orange: held behind a busy GPU, harmless. The arrow ends at the last GPU work that it waited for."
    )
    yield from lane_rows(f"{key} {rank}", f"Host stalls{scene.in_rank(rank)}", _key(rank), 2, text, parts, flat=True)


def _described(scene: Scene, findings: Ids) -> tuple[Ids, tuple[Arg, ...]]:
    """Names and arguments of slices that belong to findings."""
    used, at = np.unique(findings, return_inverse=True)
    known = [scene.finding(int(number)) for number in used]
    names = scene.text_ids([title_of(finding) for finding in known])[at]
    columns = [_texts_of(scene, finding) for finding in known]
    args = tuple(
        Arg(name, scene.text_ids([column[name] for column in columns])[at], text=True) for name in (columns[0] or ())
    )
    return names, args


def title_of(finding: Finding | None) -> str:
    """`item train.py:31`: what is called and where."""
    if finding is None:
        return "wait"
    what = finding.op or finding.kind
    return f"{what} {short_place(finding.place)}".strip()


def _texts_of(scene: Scene, finding: Finding | None) -> dict[str, str]:
    """What the panel of a slice says about a finding."""
    if finding is None:
        return dict.fromkeys(("finding", "rule", "line", "code", "cost", "gain", "fix"), "-")
    place, step = finding.place, finding.per_step
    stall, idle = (step.stall_ns, step.idle_ns) if step else (finding.stall_ns, finding.idle_ns)
    of = "a step" if step else "in all"
    gain = finding.gain_ns
    return {
        "finding": finding.id,
        "rule": f"{finding.rule} {finding.title}",
        "line": f"{place.file}:{place.line}" if place else "-",
        "code": place.excerpt.strip() if place and place.excerpt else "-",
        "cost": f"{show_ns(stall)} held and {show_ns(idle)} of GPU idle time {of}",
        "gain": f"{show_ns(gain.likely_ns)} a step, at least {show_ns(gain.low_ns)}" if gain else "not predicted",
        "fix": finding.fix or "-",
    }


def _finding_track(scene: Scene, rank: int, key: str) -> Iterator[Row]:
    found = [i for i, finding in enumerate(scene.findings) if finding.rank == rank]
    if not found:
        return
    parts = []
    for harmless, colour in ((False, colours.FINDING), (True, colours.HARMLESS)):
        same = [i for i in found if scene.findings[i].harmless == harmless]
        if same:
            parts.append(_finding_slices(scene, same, colour))
    text = "Each finding once, at its dearest stall: what it is, what it costs, what fixing it would gain, and how."
    yield from lane_rows(f"{key} {rank}", f"Findings{scene.in_rank(rank)}", _key(rank), 3, text, parts, flat=True)


def _finding_slices(scene: Scene, found: list[int], colour: str) -> Slices:
    findings = [scene.findings[i] for i in found]
    _, args = _described(scene, np.array(found, np.int32))
    names = scene.text_ids([f"{f.rule} {title_of(f)}" for f in findings])
    extra = (
        Arg("severity", scene.text_ids([f.severity for f in findings]), text=True),
        Arg("message", scene.text_ids([f.message or f.title for f in findings]), text=True),
        Arg("count", np.array([f.count for f in findings], np.int64)),
    )
    start = np.array([f.first_ns for f in findings], np.int64)
    dur = np.array([f.first_dur_ns for f in findings], np.int64)
    return Slices(start, dur, names, "finding", (*args, *extra), colour=colour)


def _timer_rows(scene: Scene, rank: int, key: str) -> Iterator[Row]:
    trace = scene.trace
    if scene.detail == "low":
        return
    ranks = np.array([track.rank for track in trace.tracks] or [0])
    timings = find_timings(trace, scene.launches)
    timings = timings.take(ranks[timings.track] == rank) if len(timings) else timings
    if len(timings):
        verdicts = _verdicts(scene)
        keys = list(zip(timings.start_frame.tolist(), timings.end_frame.tolist(), timings.clock.tolist()))
        words = [verdicts.get((_line_of(scene, a), _line_of(scene, b), trace.names[c]), "") for a, b, c in keys]
        honest = np.array([word in ("honest", "") for word in words])
        parts = []
        for colour, rows in ((colours.HONEST, np.flatnonzero(honest)), (colours.LYING, np.flatnonzero(~honest))):
            parts.append(_timer_slices(scene, timings.take(rows), [words[i] for i in rows], colour))
        text = "What the program times with its own clocks: what it claims, and how long the GPU work really took."
        yield from lane_rows(f"{key} {rank}", f"Timers{scene.in_rank(rank)}", _key(rank), 4, text, parts)
    reads = trace.reads
    rows = np.flatnonzero(ranks[reads.track] == rank) if len(reads) else np.empty(0, np.int64)
    if len(rows):
        names = scene.names[reads.clock[rows]]
        places = scene.text_ids([_line_of(scene, frame) or "-" for frame in reads.frame[rows].tolist()])
        args = (Arg("line", places, text=True),)
        part = Slices(reads.time_ns[rows], np.zeros(len(rows), np.int64), names, "clock read", args)
        text = "Each time that the program read a clock."
        yield from lane_rows(f"{key} reads {rank}", f"Clock reads{scene.in_rank(rank)}", _key(rank), 5, text, [part])


def _timer_slices(scene: Scene, timings: Timings, words: list[str], colour: str) -> Slices:
    frames = {*timings.start_frame.tolist(), *timings.end_frame.tolist()}
    lines = {frame: _line_of(scene, frame) or "-" for frame in frames}
    names = [
        f"claims {show_ns(claimed)}" + (f", true {show_ns(true)}" if true > 0 else "") if claimed != NONE else "no time"
        for claimed, true in zip(timings.claimed_ns.tolist(), timings.true_ns.tolist())
    ]
    args = (
        Arg("verdict", scene.text_ids([word or "not judged" for word in words]), text=True),
        Arg("clock", scene.names[timings.clock], text=True),
        Arg("claimed_ns", timings.claimed_ns),
        Arg("true_ns", timings.true_ns),
        Arg("still_running_ns", timings.still_running_ns),
        Arg("started_line", scene.text_ids([lines[f] for f in timings.start_frame.tolist()]), text=True),
        Arg("ended_line", scene.text_ids([lines[f] for f in timings.end_frame.tolist()]), text=True),
    )
    dur = timings.end_ns - timings.start_ns
    return Slices(timings.start_ns, dur, scene.text_ids(names), "timer", args, colour=colour)


def _verdicts(scene: Scene) -> dict[tuple[str, str, str], str]:
    timers: tuple[Timer, ...] = scene.audit.timers if scene.audit else ()
    return {
        (
            f"{t.start.file}:{t.start.line}" if t.start else "",
            f"{t.end.file}:{t.end.line}" if t.end else "",
            t.clock,
        ): t.verdict
        for t in timers
    }


def _line_of(scene: Scene, frame: int) -> str:
    frames, names = scene.trace.frames, scene.trace.names
    return f"{names[frames.file[frame]]}:{frames.line[frame]}" if frame != NONE else ""
