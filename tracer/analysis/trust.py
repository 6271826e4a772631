"""What a trace cannot show: dropped, skewed, overlapping, incomplete.

Each doubt is a sentence for the report, and holds back what would rest on it: idle time
is stated only where launches and their work are both there, gaps only between clocks
that agree, verdicts about speed only where recording did not change it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tracer.analysis import trust_clocks
from tracer.analysis.calls import WAITS, Does, captured, what_calls_do
from tracer.analysis.idle import named_parts, window_of
from tracer.analysis.intervals import length, union
from tracer.analysis.launches import Launches
from tracer.trace import NONE, Bools, Bytes, Ints, Kind, Trace
from tracer.units import show_ns

_FEW = 0.01  # share of orphans that is no reason for doubt
_FEW_SAMPLES = 30
_ENDS = 0.01  # of the window: where GPU work ends this close to its end, it goes on after it


@dataclass(frozen=True, slots=True)
class Trust:
    """How far a trace can be believed."""

    limits: tuple[str, ...] = ()
    complete: bool = True
    dropped: bool = False  # records of GPU work are missing
    has_gpu: bool = True
    orphans: int = 0  # launches without GPU work
    unlaunched: int = 0  # GPU work without a launch
    skew_ns: int = 0  # how far GPU times must be moved so that work lies after its launch, before the end of its wait
    window_ns: tuple[int, int] = (0, 0)  # where launches and their work are both there

    @property
    def whole(self) -> bool:
        """Whether confidence need not be lowered."""
        return not self.dropped and self.has_gpu and not self.skew_ns


def find_trust(trace: Trace, launches: Launches) -> Trust:
    """All doubts about a trace, most important first."""
    does = what_calls_do(trace)
    limits: list[str] = []
    complete = _of_reading(trace, limits)
    has_gpu = _of_gpu(trace, does, limits)
    window, orphans, whole = _of_launches(trace, launches, does, limits) if has_gpu else (window_of(trace), 0, True)
    skew = trust_clocks.of_host_and_gpu(trace, launches, does, limits)
    unlaunched = int(np.sum(trace.is_work)) - len(launches)
    strange = unlaunched - int(np.sum(_nameless(trace)))
    if has_gpu and strange and np.any(trace.spans.kind == Kind.CALL):
        one = strange == 1
        pieces = "1 piece of GPU work has" if one else f"{strange} pieces of GPU work have"
        limits.append(
            f"{pieces} no launching call in the trace: {'it was' if one else 'they were'} launched before the "
            "window or by a call that was not recorded"
        )
    _of_ranks(trace, limits)
    trust_clocks.of_ranks(trace, limits)
    trust_clocks.of_stamps(trace, limits)
    _of_streams(trace, limits)
    _of_syncs(trace, does, limits)
    _of_places(trace, limits)
    _of_compilation(trace, limits)
    _of_samples(trace, limits)
    return Trust(tuple(limits), complete and whole, not whole, has_gpu, orphans, unlaunched, skew, window)


def _of_reading(trace: Trace, limits: list[str]) -> bool:
    complete = trace.meta.get("complete", "true") != "false"
    if not complete:
        why = trace.meta.get("why", "")
        limits.append("the trace is incomplete" + (f": {why}" if why else ""))
    for loss in trace.losses:
        at = f", first at byte {loss.offset}" if loss.offset >= 0 else ""
        count = f" ({loss.count})" if loss.count > 1 else ""
        limits.append(f"while reading: {loss.what}{count}{at}")
    cleaned = trace.meta.get("names_cleaned", "0")
    if cleaned not in ("", "0"):
        limits.append(f"{cleaned} names held characters that cannot be shown and were cleaned")
    for key, text in trace.meta.items():
        if key.startswith("recorder.") and text.startswith("{"):
            told = json.loads(text)
            if isinstance(told, dict) and told.get("dropped"):
                limits.append(f"recorder {key.removeprefix('recorder.')}: {told['dropped']} entries dropped")
    return complete


def _of_gpu(trace: Trace, does: Bytes, limits: list[str]) -> bool:
    if np.any(trace.is_work):
        return True
    launched = int(np.sum(does == Does.LAUNCH))
    others = int(np.sum(trace.spans.kind == Kind.GPU_OTHER))
    if others:
        limits.append(
            f"{others} rows are of a device whose work we cannot tell from its bookkeeping: a viewer shows them, but "
            "nothing is said about that device, busy or idle"
        )
    elif launched:
        limits.append(
            f"no GPU activity was captured: {launched} launches have no GPU work in the trace, so nothing is said "
            "about the GPU, busy or idle"
        )
    else:
        limits.append("no GPU activity was captured: there is no async gap to see, and nothing is said about the GPU")
    return False


def _of_launches(trace: Trace, launches: Launches, does: Bytes, limits: list[str]) -> tuple[tuple[int, int], int, bool]:
    """Where launches have their work, how many have not, and whether that is nearly everywhere."""
    spans = trace.spans
    low, high = window_of(trace)
    rows = np.flatnonzero((does == Does.LAUNCH) & ~captured(trace))
    served = np.zeros(len(spans), np.bool_)
    served[launches.call] = True
    good = served[rows]
    nameless = _nameless(trace)
    if np.any(nameless):
        kernels = int(np.sum(nameless & (spans.kind == Kind.KERNEL)))
        count = int(nameless.sum())
        pieces = "1 piece of GPU work has" if count == 1 else f"{count} pieces of GPU work have"
        limits.append(
            f"{pieces} no correlation id (known of collectives on ROCm): which calls launched them cannot be told"
        )
        if np.sum(~good) <= kernels:
            return (low, high), int(np.sum(~good)), True
    last_work = int(spans.end_ns[np.flatnonzero(trace.is_work)].max())
    if high - last_work < _ENDS * (high - low):
        # The GPU works until the end: what was launched last still waits in its queue.
        waiting = _at_the_end(trace, launches, rows)
        if np.any(waiting):
            limits.append(f"{int(waiting.sum())} launches at the end of the window have their work after it")
            rows, good = rows[~waiting], good[~waiting]
    orphans = int(np.sum(~good))
    if not len(rows) or orphans <= _FEW * len(rows):
        return (low, high), orphans, True
    known = np.flatnonzero(good)
    text = f"trace incomplete: {orphans} of {len(rows)} launches have no kernel in it (records were dropped)"
    if not len(known):
        limits.append(text)
        return (low, high), orphans, False
    first, last = known[0], known[-1]
    if first > 0:
        low = int(spans.start_ns[rows[first]])
    if last < len(rows) - 1:
        text += f"; GPU records end {show_ns(high - last_work)} before the window does"
    inside = int(np.sum(good))
    text += f"; busy and idle are given only for the part with the other {inside} launches"
    if not good[first : last + 1].all():
        text += ", and idle time in which the missing work may have run has no cause"
    limits.append(text)
    return (min(low, last_work), last_work), orphans, False


def _nameless(trace: Trace) -> Bools:
    """For each span, whether it is GPU work that no call can be found for."""
    found: Bools = trace.is_work & (trace.spans.corr <= 0) & np.any(trace.spans.kind == Kind.CALL)
    return found


def _at_the_end(trace: Trace, launches: Launches, rows: Ints) -> Bools:
    """For each launch, whether nothing that its thread put into a queue from there on has its work in the trace."""
    tracks = trace.spans.track
    last = np.full(len(trace.tracks), NONE, np.int64)
    np.maximum.at(last, tracks[launches.call], launches.call)
    found: Bools = rows > last[tracks[rows]]
    return found


def _of_ranks(trace: Trace, limits: list[str]) -> None:
    """Ranks of one job run at the same time."""
    of_track = np.array([track.rank for track in trace.tracks], np.int64)
    windows = []
    for rank in np.unique(of_track).tolist() if len(trace.spans) else ():
        rows = np.flatnonzero(of_track[trace.spans.track] == rank)
        if len(rows):
            windows.append((int(trace.spans.start_ns[rows].min()), int(trace.spans.end_ns[rows].max()), rank))
    windows.sort()
    alone = [rank for (_, end, _), (start, _, rank) in pairwise(windows) if start > end]
    if alone and len(alone) == len(windows) - 1:
        ranks = ", ".join(str(rank) for *_, rank in windows)
        limits.append(
            "these files do not overlap in time: they are not ranks of one job, or their clocks differ (ranks "
            f"{ranks}); audit them one at a time, what is said of all together means nothing"
        )


def _of_streams(trace: Trace, limits: list[str]) -> None:
    spans = trace.spans
    work = np.flatnonzero(trace.is_work)
    order = work[np.lexsort((spans.start_ns[work], spans.track[work]))]
    if len(order) < 2:
        return
    same = spans.track[order[1:]] == spans.track[order[:-1]]
    over = same & (spans.start_ns[order[1:]] < spans.end_ns[order[:-1]])
    count = int(over.sum())
    if count:
        pieces = "1 piece of work overlaps" if count == 1 else f"{count} pieces of work overlap"
        limits.append(f"{pieces} the one before on the same stream; busy time is their union")
    for track in np.unique(spans.track[order[1:]][over]).tolist():
        _of_outlasting(trace, order[spans.track[order] == track], limits)


def _of_outlasting(trace: Trace, rows: Ints, limits: list[str]) -> None:
    """The longest work of one stream that outlasts work begun after it there. Branches of a graph may share a row."""
    spans = trace.spans
    branches = trace.work.span[trace.work.graph_node != NONE]
    rows = rows[~np.isin(rows, branches)]
    ends = spans.end_ns[rows]
    reach = np.maximum.accumulate(ends)
    holder = np.maximum.accumulate(np.where(ends == reach, np.arange(len(rows)), 0))
    outlasted = np.bincount(holder[:-1][ends[1:] < reach[:-1]], minlength=len(rows))
    if not outlasted.any():
        return
    longest = rows[np.argmax(np.where(outlasted > 0, spans.dur_ns[rows], 0))]
    count = int(outlasted[np.searchsorted(rows, longest)])
    name, took = trace.names[spans.name[longest]][:40], show_ns(int(spans.dur_ns[longest]))
    limits.append(
        f"{name} takes {took}, beyond the end of {count} {'piece' if count == 1 else 'pieces'} of work begun after it "
        "on its stream, which runs one at a time: its "
        "time is wrong, or its stream, and with it busy and idle"
    )


def _of_syncs(trace: Trace, does: Bytes, limits: list[str]) -> None:
    spans = trace.spans
    calls = np.isin(does, WAITS)
    if np.any(calls) and not np.any(spans.kind == Kind.WAIT):
        limits.append(
            "no synchronisation records (enable_cuda_sync_events was off, or this CUPTI has none): waits that a "
            "library makes through the driver cannot be seen"
        )
    device = np.any(does == Does.DEVICE_WAIT)
    if device and np.any(spans.kind == Kind.WAIT) and not np.any(trace.name_rows("Context Sync")):
        limits.append("this CUPTI gives no records of device synchronisation (known of CUDA 13.0)")


def _of_places(trace: Trace, limits: list[str]) -> None:
    if not len(trace.ledger) and not len(trace.lines) and not len(trace.samples):
        if np.any(trace.spans.kind == Kind.PYTHON):
            limits.append("lines are known only as far as the profiler's Python functions tell them")
        else:
            limits.append("lines of code are not known: the trace has neither stacks nor a ledger of synchronisations")


def _of_samples(trace: Trace, limits: list[str]) -> None:
    count = len(trace.samples)
    if 0 < count < _FEW_SAMPLES:
        limits.append(f"only {count} samples were taken: too few to give shares of time from them")
    error, offset = (trace.meta.get(f"recorder.samples.{key}", "") for key in ("clock_error_ns", "offset_ns"))
    if count and error.isdigit():
        how = (
            f" (their clock began {show_ns(abs(int(offset)))} {'after' if int(offset) >= 0 else 'before'} the trace's, "
            "by functions that both saw)"
            if offset
            else ""
        )
        limits.append(f"samples are placed to within {show_ns(int(error))}{how}")


def _of_compilation(trace: Trace, limits: list[str]) -> None:
    spent = length(union(*_all_compiling(trace)))
    low, high = window_of(trace)
    if spent > 0.02 * (high - low):
        limits.append(f"the window was hit by compilation ({show_ns(spent)}): its steps are not typical")


def _all_compiling(trace: Trace) -> tuple[Ints, Ints]:
    return named_parts(trace, "compile.jit")
