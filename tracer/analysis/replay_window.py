"""What to replay: the recorded steps; without steps the longest run of one wait that comes again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.launches import Launches
from tracer.analysis.own_pace import find_own_pace, steps_outside
from tracer.analysis.stalls import Stalls
from tracer.trace import NONE, Ints, Kind, Steps, Trace

_REPEATS = 4  # a wait that comes less often makes no loop
_ENOUGH = 5  # steps that tell a pace
_SLOW, _RARE = 1.15, 2.0  # a first step of more than so many medians was slowed; any other of more is an accident
_EVEN, _UNEVEN = (
    2,
    5,
)  # times of more than so many times the median are no repetitions of one thing; the second if need be


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of one rank's stepping thread, and how many times the program repeats itself in it."""

    rank: int
    track: int
    low_ns: int
    high_ns: int
    steps: int  # 0: nothing repeats, the stretch is taken as a whole
    untraced_ns: int | None = None  # the program's own step, outside the recording
    no_pace: str = "it is not in the trace"  # why the program's own step is not known
    repeats: str = ""  # without steps: the call that came again and again


def find_window(trace: Trace, launches: Launches, stalls: Stalls, steps: Steps, rank: int) -> Window | None:
    """The stretch of one rank to replay; None if it launched nothing."""
    mine = np.array([track.rank == rank for track in trace.tracks] or [False])
    launches = launches.take(mine[trace.spans.track[launches.call]])
    stalls, steps = stalls.take(mine[stalls.track]), steps.take(mine[steps.track])
    if not len(launches):
        return None
    return _of_steps(trace, launches, steps) or _of_repeats(trace, launches, stalls) or _whole(trace, launches)


def _of_steps(trace: Trace, launches: Launches, steps: Steps) -> Window | None:
    traced = np.flatnonzero(steps.traced)
    by_time = trace.meta.get("steps_from") == "time"  # one "step" is then all that was recorded, set-up included
    if not len(traced) or (by_time and len(traced) == 1):
        return None
    track = int(steps.track[traced[0]])
    mine = traced[steps.track[traced] == track]
    mine = mine[_ordinary(steps.dur_ns[mine])]
    low, high = int(steps.start_ns[mine].min()), int((steps.start_ns + steps.dur_ns)[mine].max())
    starts = trace.spans.start_ns[launches.call]
    if not np.any((starts >= low) & (starts < high)):
        return None
    outside = steps_outside(steps.take(steps.track == track))
    untraced, why = find_own_pace(outside, float(np.median(steps.dur_ns[mine])))
    return Window(trace.tracks[track].rank, track, low, high, len(mine), untraced, no_pace=why)


def _ordinary(dur_ns: Ints) -> slice:
    """Which recorded steps to replay: no first one that the opening of the window slowed, no rare accident.

    The longest row without one is taken. Steps that are longer now and then by the program's own doing stay: an
    accident is rare, and far longer than the others.
    """
    if len(dur_ns) < _ENOUGH:
        return slice(None)
    median = np.median(dur_ns)
    begin = int(dur_ns[0] > _SLOW * median)
    rare = np.flatnonzero(dur_ns[begin:] > _RARE * median) + begin
    if not len(rare) or len(rare) > len(dur_ns) // 5:
        return slice(begin, None)
    starts, stops = np.append(begin, rare + 1), np.append(rare, len(dur_ns))
    longest = int(np.argmax(stops - starts))
    return slice(int(starts[longest]), int(stops[longest]))


def _of_repeats(trace: Trace, launches: Launches, stalls: Stalls) -> Window | None:
    """From the end of one wait to the end of its last repetition: the longest such run."""
    spans = trace.spans
    label = np.where(stalls.op != NONE, spans.name[stalls.op], spans.name[stalls.call]).astype(np.int64)
    key = stalls.track * np.int64(len(trace.names)) + label
    best: Window | None = None
    for one in np.unique(key):
        mine = np.flatnonzero(key == one)
        _, last = np.unique(stalls.group[mine][::-1], return_index=True)
        mine = np.sort(mine[len(mine) - 1 - last])
        run = _steady_run(stalls.end_ns[mine])
        if run is None:
            continue
        low, high = int(stalls.end_ns[mine[run[0]]]), int(stalls.end_ns[mine[run[1]]])
        if best is None or high - low > best.high_ns - best.low_ns:
            track = int(stalls.track[mine[0]])
            name = trace.names[int(label[mine[0]])]
            best = Window(trace.tracks[track].rank, track, low, high, run[2], repeats=name)
    if best is None:
        return None
    starts = spans.start_ns[launches.call]
    inside = np.any((starts >= best.low_ns) & (starts < best.high_ns))
    return best if inside else None


def _steady_run(ends: Ints) -> tuple[int, int, int] | None:
    """First and last of the longest run of moments that follow in about equal times, and how many times that are.

    Moments may come in bursts, as reads in an inner loop do: then the bursts are what follows each other.
    """
    best: tuple[int, int, int] | None = None
    rows = np.arange(len(ends))
    while len(rows) >= _REPEATS:
        times = np.diff(ends[rows])
        run = _longest(times, _EVEN)
        if run is None or run[1] - run[0] < len(times) // 2:
            run = _longest(times, _UNEVEN)
        if run is not None:
            low, high = int(rows[run[0]]), int(rows[run[1]])
            if best is None or ends[high] - ends[low] > ends[best[1]] - ends[best[0]]:
                best = (low, high, run[1] - run[0])
        apart = times > _UNEVEN * np.median(times)
        if not apart.any():
            break
        rows = rows[np.append(apart, True)]  # the last of each burst
    return best


def _longest(times: Ints, factor: int) -> tuple[int, int] | None:
    """The longest stretch, in time, of times that are at most so many times the median."""
    steady = times <= factor * np.median(times)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], steady.astype(np.int8), [0]))))
    starts, stops = edges[::2], edges[1::2]
    sums = np.concatenate(([0], np.cumsum(times)))
    longest = int(np.argmax(sums[stops] - sums[starts]))
    found = int(starts[longest]), int(stops[longest])
    return found if found[1] - found[0] >= _REPEATS - 1 else None


def _whole(trace: Trace, launches: Launches) -> Window:
    """From the first launch of the thread that launches most to its last call."""
    spans = trace.spans
    tracks, counts = np.unique(spans.track[launches.call], return_counts=True)
    track = int(tracks[counts.argmax()])
    host = np.flatnonzero((spans.track == track) & np.isin(spans.kind, (Kind.OP, Kind.CALL)))
    low = int(spans.start_ns[launches.call[spans.track[launches.call] == track]].min())
    return Window(trace.tracks[track].rank, track, low, int(spans.end_ns[host].max()), 0)
