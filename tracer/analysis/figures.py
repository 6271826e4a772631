"""Steps, lines, pace and pictures of a window, as the report shows them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracer.analysis.intervals import Union, clip, covered, gaps, union
from tracer.analysis.launches import Launches, busy, find_devices, lead_at, queue_depth
from tracer.analysis.own_pace import find_own_pace, steps_outside
from tracer.analysis.sampled_lines import sampled_lines
from tracer.analysis.stalls import Stalls
from tracer.analysis.steps import source_of
from tracer.results import Curve, Finding, LineCost, Pace, Picture, Step
from tracer.trace import Ints, Steps, Trace

_POINTS = 400  # of a curve
_SHAPES = 2_000  # intervals in a picture


def find_pace(trace: Trace, steps: Steps) -> tuple[Pace, str]:
    """The median step inside the window and outside of it; if there is none outside, why."""
    traced, untraced = steps.dur_ns[steps.traced], steps_outside(steps)
    inside_ns = int(np.median(traced)) if len(traced) else None
    outside_ns, why = find_own_pace(untraced, inside_ns)
    ratio = inside_ns / outside_ns if inside_ns is not None and outside_ns else None
    return Pace(source_of(trace), outside_ns, inside_ns, ratio, len(untraced), len(traced)), why


def find_step_rows(trace: Trace, steps: Steps, stalls: Stalls) -> tuple[Step, ...]:
    """Each recorded step on each device: wall, GPU busy and idle, and how long its thread was held."""
    mine = steps.take(steps.traced)
    if not len(mine):
        return ()
    ends = mine.start_ns + mine.dur_ns
    ranks = np.array([t.rank for t in trace.tracks])[mine.track]
    held = np.zeros(len(mine), np.int64)
    for track in np.unique(mine.track):
        rows = stalls.track == track
        waiting = union(stalls.start_ns[rows], stalls.end_ns[rows])
        chosen = mine.track == track
        held[chosen] = covered(waiting, mine.start_ns[chosen], ends[chosen])
    devices = find_devices(trace)
    found = []
    for rank in np.unique(ranks).tolist():
        chosen = np.flatnonzero(ranks == rank)
        worked = [covered(busy(trace, *d), mine.start_ns[chosen], ends[chosen]) for d in devices if d[0] == rank]
        # A program with several GPUs has one row a step: of the device that works most.
        most = max(worked, key=lambda w: int(w.sum())) if worked else np.zeros(len(chosen), np.int64)
        for at, row in enumerate(chosen.tolist()):
            wall, work = int(mine.dur_ns[row]), int(most[at])
            found.append(
                Step(int(mine.number[row]), rank, int(mine.start_ns[row]), wall, work, wall - work, int(held[row]))
            )
    return tuple(found)


def find_line_costs(trace: Trace, findings: Iterable[Finding], idle: Union) -> tuple[LineCost, ...]:
    """What each line of the user's code cost, dearest first, with the samples taken there while the GPU was idle."""
    costs: dict[tuple[str, int], list[int]] = {}
    for finding in findings:
        if finding.place is not None and finding.place.line:
            row = costs.setdefault((finding.place.file, finding.place.line), [0, 0, 0, 0])
            row[0] += finding.count
            row[1] += finding.stall_ns
            row[2] += finding.idle_ns
    for (file, line, _), count in sampled_lines(trace, idle).items():
        costs.setdefault((file, line), [0, 0, 0, 0])[3] += count
    rows = [LineCost(file, line, *numbers) for (file, line), numbers in costs.items()]
    return tuple(sorted(rows, key=lambda row: (-row.idle_ns, -row.held_ns, -row.samples, row.file, row.line)))


def find_pictures(
    trace: Trace, launches: Launches, stalls: Stalls, steps: Steps, owner: dict[int, tuple[str, bool]]
) -> tuple[Picture, ...]:
    """A typical and the worst step. `owner` says which finding a stall belongs to, and whether it is harmless."""
    mine = steps.take(steps.traced)
    devices = find_devices(trace)
    if not len(mine) or not devices:
        return ()
    order = np.argsort(mine.dur_ns, kind="stable")
    chosen = {"typical step": int(order[len(order) // 2]), "worst step": int(order[-1])}
    if mine.dur_ns[chosen["worst step"]] < 1.05 * mine.dur_ns[chosen["typical step"]]:
        del chosen["worst step"]
    found = []
    for title, row in chosen.items():
        rank = trace.tracks[mine.track[row]].rank
        device = next((d for d in devices if d[0] == rank), devices[0])
        low, wall = int(mine.start_ns[row]), int(mine.dur_ns[row])
        found.append(_picture(trace, launches, stalls, owner, device, title, int(mine.number[row]), low, wall))
    return tuple(found)


def _picture(
    trace: Trace,
    launches: Launches,
    stalls: Stalls,
    owner: dict[int, tuple[str, bool]],
    device: tuple[int, int],
    title: str,
    number: int,
    low: int,
    wall: int,
) -> Picture:
    times = np.linspace(low, low + wall, _POINTS).astype(np.int64)
    ahead = np.maximum(lead_at(trace, launches, *device, times), 0)
    curves = (
        _curve("lead", "ns", times, ahead),
        _curve("depth", "launches", times, _depth_at(trace, launches, device, times)),
    )
    starts, ends = clip(busy(trace, *device), low, low + wall)
    if len(starts) > _SHAPES:  # join the closest neighbours
        wide = np.sort(starts[1:] - ends[:-1])[-_SHAPES]
        holes = gaps(starts, ends, low, low + wall)
        big = holes[1] - holes[0] >= wide
        starts, ends = gaps(holes[0][big], holes[1][big], low, low + wall)
    rows = np.flatnonzero((stalls.start_ns < low + wall) & (stalls.end_ns > low))
    rows = rows[np.argsort(-stalls.dur_ns[rows], kind="stable")[:_SHAPES]]
    held = tuple(
        (int(stalls.start_ns[row]), int(stalls.dur_ns[row]), *owner[row])
        for row in sorted(rows.tolist())
        if row in owner
    )
    work = tuple(zip(starts.tolist(), (ends - starts).tolist(), strict=True))
    return Picture(title, number, low, wall, curves, work, held)


def _depth_at(trace: Trace, launches: Launches, device: tuple[int, int], times: Ints) -> Ints:
    total = np.zeros(len(times), np.int64)
    for track in np.unique(trace.spans.track[launches.work]).tolist():
        if (trace.tracks[track].rank, trace.tracks[track].device) == device:
            moments, depth = queue_depth(trace, launches, track)
            at = np.searchsorted(moments, times, "right") - 1
            total += np.where(at >= 0, depth[np.maximum(at, 0)], 0)
    return total


def _curve(name: str, unit: str, times: Ints, values: Ints) -> Curve:
    return Curve(name, unit, tuple(times.tolist()), tuple(float(v) for v in values))
