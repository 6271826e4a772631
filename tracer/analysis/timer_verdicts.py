"""Which timers lie, in which way, and by how much.

A verdict is given to a timer (all uses of one pair of places on one thread), from
medians over its uses. It names the rule; `honest` has none. The order matters: a
timer that does not wait at its end is that first, however dirty its start.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from tracer.analysis.timers import Timings
from tracer.results import Place, Timer
from tracer.trace import NONE, Ints, Trace
from tracer.units import show_ns

# A kernel that runs a little past the second read (a callback, a logging copy) is no lie.
_SMALL_NS = 20_000
_LIE = 1.2  # true over claimed, or claimed over true, from which a timer is called wrong
_PART = 0.2  # of the claimed time that came in from before the start
_COLD = 3.0  # first use over the median of the others
_EXPLICIT = re.compile("(Device|Stream|Event)Synchronize$")
_MAY_WAIT = re.compile("ynchronize|Memcpy|EventQuery|Free")
_GAPS = 2.0  # claimed over true for event pairs: they measure gaps between launches
_GAPS_NS = 100_000  # and by at most this much: longer ones are measuring a slow program, rightly

RULES = {
    "bench.no_sync": "TIME001",
    "bench.dirty_start": "TIME002",
    "bench.misattributed": "TIME003",
    "bench.no_warmup": "TIME004",
    "bench.event_not_ready": "TIME005",
    "bench.other_stream": "TIME006",
    "bench.launch_overhead": "TIME007",
    "bench.l2_hot": "TIME008",
    "bench.launch_blocking": "TIME009",
}


def judge_timers(trace: Trace, timings: Timings, *, blocking: bool = False) -> tuple[Timer, ...]:
    """One Timer for each group of timings; `blocking` says that CUDA_LAUNCH_BLOCKING was on."""
    groups = [np.flatnonzero(timings.group == group) for group in np.unique(timings.group)]
    verdicts = [_verdict(trace, timings, rows, blocking) for rows in groups]
    unsynced_ends = {
        int(timings.end_frame[rows[0]])
        for rows, verdict in zip(groups, verdicts, strict=True)
        if verdict == "bench.no_sync"
    }
    timers = []
    for rows, verdict in zip(groups, verdicts, strict=True):
        if verdict == "bench.dirty_start" and int(timings.start_frame[rows[0]]) in unsynced_ends:
            # The section before ended without waiting: its work is charged to this one.
            verdict = "bench.misattributed"
        timers.append(_timer(trace, timings, rows, verdict, _calls(trace, timings, rows, _EXPLICIT, outermost=True)))
    return tuple(timers)


def _verdict(trace: Trace, timings: Timings, rows: Ints, blocking: bool) -> str:
    claimed_all = timings.claimed_ns[rows]
    if np.any(claimed_all == NONE):
        return "bench.event_not_ready"
    claimed, true, still, ran_in = (
        float(np.median(column[rows]))
        for column in (timings.claimed_ns, timings.true_ns, timings.still_running_ns, timings.ran_in_ns)
    )
    launched = int(timings.launched[rows].sum())
    if timings.is_event[rows[0]]:
        return _event_verdict(timings, rows, claimed, true)
    if blocking and launched:
        return "bench.launch_blocking"
    # A timer that is read once in each turn of a loop hands on at its end what it was handed at its start.
    late = still - ran_in
    if launched and still > max(_SMALL_NS, 0.1 * claimed) and max(true, claimed + late) > _LIE * claimed:
        return "bench.no_sync"
    ran_late = claimed and -late > max(_SMALL_NS, _PART * claimed) and claimed > _LIE * true
    if ran_late and _calls(trace, timings, rows, _MAY_WAIT):  # else the host worked while the GPU did
        return "bench.dirty_start"
    if launched and _is_cold(timings, rows):
        return "bench.no_warmup"
    return "honest"


def _event_verdict(timings: Timings, rows: Ints, claimed: float, true: float) -> str:
    other = float(np.median(timings.other_stream_ns[rows]))
    if true and other > 0.5 * true:
        return "bench.other_stream"
    if true and claimed > _GAPS * true and claimed - true < _GAPS_NS:
        return "bench.launch_overhead"
    return "bench.no_warmup" if _is_cold(timings, rows) else "honest"


def _is_cold(timings: Timings, rows: Ints) -> bool:
    """Whether the first use took several times as long as the others, and is counted among them."""
    if not timings.collected[rows[0]]:
        return False
    times = timings.claimed_ns[rows].astype(float)
    return len(times) >= 3 and times[0] > _COLD * max(float(np.median(times[1:])), 1.0)


def _calls(trace: Trace, timings: Timings, rows: Ints, names: re.Pattern[str], *, outermost: bool = False) -> int:
    """How often the thread made a call of such a name between the two reads, over all uses."""
    spans = trace.spans
    mine = trace.name_rows(*filter(names.search, trace.names)) & (spans.track == timings.track[rows[0]])
    starts = np.sort(spans.start_ns[mine & (spans.parent == NONE) if outermost else mine])
    between = np.searchsorted(starts, timings.end_ns[rows]) - np.searchsorted(starts, timings.start_ns[rows])
    return int(between.sum())


def _timer(trace: Trace, timings: Timings, rows: Ints, verdict: str, waits: int) -> Timer:
    row = int(rows[0])
    real = timings.claimed_ns[rows] != NONE
    claimed = float(np.median(timings.claimed_ns[rows][real])) if np.any(real) else 0.0
    true = float(np.median(timings.true_ns[rows]))
    clock = int(timings.clock[row])
    timer = Timer(
        start=_place(trace, int(timings.start_frame[row])),
        end=_place(trace, int(timings.end_frame[row])),
        clock=trace.names[clock] if clock != NONE else "cuda.Event",
        count=len(rows),
        claimed_ns=claimed,
        true_ns=true if np.any(timings.launched[rows]) else None,
        ratio=_ratio(timings, rows, verdict, claimed, true),
        still_running_ns=float(np.median(timings.still_running_ns[rows])),
        ran_in_ns=float(np.median(timings.ran_in_ns[rows])),
        verdict=verdict,
        rule=RULES.get(verdict, ""),
        first_over_median=_first_over_median(timings, rows),
    )
    message = _message(timer)
    if verdict == "honest" and waits and timer.true_ns is not None and not timings.is_event[row]:
        # True, and it changes what is measured: the launches behind it no longer hide.
        message += f"; honest, but its {waits} synchronisations stop the pipeline: CUDA events would not"
    return replace(timer, message=message)


def _ratio(timings: Timings, rows: Ints, verdict: str, claimed: float, true: float) -> float | None:
    """True over claimed; where the host was slower than the GPU, the time until the work was over counts as true."""
    if not claimed or not np.any(timings.launched[rows]):
        return None
    if verdict == "bench.no_sync" and true < _LIE * claimed:
        return (claimed + float(np.median(timings.still_running_ns[rows]))) / claimed
    return true / claimed


def _first_over_median(timings: Timings, rows: Ints) -> float | None:
    times = timings.claimed_ns[rows].astype(float)
    return float(times[0] / np.median(times[1:])) if len(times) >= 3 and np.median(times[1:]) > 0 else None


def _message(timer: Timer) -> str:
    claimed, true = show_ns(timer.claimed_ns), show_ns(timer.true_ns or 0)
    ratio = timer.ratio or 0.0
    texts = {
        "bench.no_sync": f"claims {claimed}, the GPU work took {true}: {ratio:.3g} times too fast; "
        f"{show_ns(timer.still_running_ns)} of it were still to run when the clock was read",
        "bench.dirty_start": f"claims {claimed}, of which {show_ns(timer.ran_in_ns)} are older work "
        f"that was still running at the start; the work itself took {true}",
        "bench.misattributed": f"claims {claimed}, of which {show_ns(timer.ran_in_ns)} belong to the section before, "
        f"whose timer did not wait; the work launched here took {true}",
        "bench.no_warmup": f"the first of {timer.count} runs took {timer.first_over_median or 0:.3g} times the median "
        f"of the others ({claimed})",
        "bench.event_not_ready": "asked for the time before the end event had happened: it raises",
        "bench.other_stream": f"claims {claimed}, but the work in between ({true}) ran on a stream "
        "that the events were not recorded on",
        "bench.launch_overhead": f"claims {claimed}, the kernels took {true}: "
        "the events measure the gap between launches",
        "bench.l2_hot": f"claims {claimed} on buffers that fit into the GPU's L2 cache",
        "bench.launch_blocking": f"claims {claimed} with CUDA_LAUNCH_BLOCKING on; the GPU work took {true}",
    }
    return texts.get(timer.verdict, f"claims {claimed}, the GPU work took {true}")


def _place(trace: Trace, frame: int) -> Place | None:
    if frame == NONE:
        return None
    frames = trace.frames
    file, line = trace.names[frames.file[frame]], int(frames.line[frame])
    columns = (int(frames.column[frame]), int(frames.end_column[frame])) if frames.column[frame] > 0 else None
    lines = trace.sources.get(file, "").splitlines()
    excerpt = lines[line - 1] if 0 < line <= len(lines) else ""
    return Place(file, line, trace.names[frames.function[frame]], columns, "clocks", True, excerpt)
