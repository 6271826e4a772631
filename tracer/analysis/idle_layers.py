"""What a host thread did that can explain idle time of the GPU, one layer over the other. See idle.py for the order."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tracer.analysis.gil import held_by_others
from tracer.analysis.intervals import Union, gaps, subtract, union
from tracer.analysis.stalls import Stalls
from tracer.trace import NONE, Ids, Ints, Kind, Trace

_EFFECT = 10  # a stall answers for idle time up to this many times the lead that it lost
_ALONE_NS = 100_000  # a stretch on the host without operator or call that is a cause of its own
_NAMED = {
    "input.bound": re.compile(
        r"enumerate\(DataLoader\)|DataLoader.*__next__|train_dataloader_next|val_dataloader_next"
    ),
    "host.gc": re.compile(r"Python GC|^gc\.collect|<built-in (function|method) collect\b"),
    "compile.jit": re.compile(
        r"dynamo_timed|^_compile\.|compile_fx|OutputGraph\.call_user_compiler|create_aot_dispatcher_function|"
        r"async_compile|CachingAutotuner|GraphLowering|PyCodeCache|triton.*compile|bytecode_tracing|inductor_compile"
    ),
}
_SETUP_NS = 500_000
_OVERHEAD = ("Buffer Flush", "Activity Buffer Request", "Instrumentation", "Resource", "Profiler off")


@dataclass(frozen=True, slots=True)
class Layer:
    """Intervals with one cause, disjoint and sorted, and what each of them is."""

    cause: str
    starts: Ints
    ends: Ints
    stall: Ids | None = None


def window_of(trace: Trace) -> tuple[int, int]:
    """What was recorded: the stated window, else from the first to the last span."""
    if trace.window_ns is not None:
        return trace.window_ns
    if not len(trace.spans):
        return 0, 0
    return int(trace.spans.start_ns.min()), int(trace.spans.end_ns.max())


def find_layers(
    trace: Trace, stalls: Stalls, idle: Union, rebuilt: Ints, threads: list[int], device: int
) -> list[tuple[int, Layer]]:
    """What can explain idle time, in order of precedence, with the thread that each is on."""
    spans = trace.spans
    overhead = np.flatnonzero((spans.kind == Kind.OVERHEAD) & trace.name_rows(*_OVERHEAD))
    layers = [(NONE, Layer("profiler", *union(spans.start_ns[overhead], spans.end_ns[overhead])))]
    track = threads[0]
    for one in threads:
        layers.append((one, _stall_layer(stalls, one)))
    for one in threads:
        layers.extend((one, Layer(cause, *named_parts(trace, cause, one))) for cause in _NAMED)
    silent = _silent(trace, threads)
    layers.extend((one, Layer("host.gil", *part)) for one, part in held_by_others(trace, silent, track, _ALONE_NS))
    for one in threads:
        layers.append((one, _effect_layer(stalls, idle, rebuilt, one, device)))
    working = subtract(_long_ops(trace, track), _launching(trace, track))
    layers.append((track, Layer("host.hot", *working)))
    layers.append((track, Layer("load.library", *_first_uses(trace, track))))
    layers.append((track, Layer("host.late", *silent)))
    return layers


def _stall_layer(stalls: Stalls, track: int) -> Layer:
    mine = np.flatnonzero(stalls.track == track)
    starts, ends = stalls.start_ns[mine], stalls.end_ns[mine]
    reach = np.maximum.accumulate(ends) if len(ends) else ends
    starts = np.maximum(starts, np.concatenate((starts[:1], reach[:-1])))
    real = ends > starts
    return Layer("stall", starts[real], ends[real], mine[real].astype(np.int32))


def _effect_layer(stalls: Stalls, idle: Union, rebuilt: Ints, track: int, device: int) -> Layer:
    """From the end of each wait that lost lead until its effect is over."""
    mine = np.flatnonzero(stalls.track == track)
    if not len(mine):
        nothing = np.empty(0, np.int64)
        return Layer("stall", nothing, nothing, np.empty(0, np.int32))
    ends = np.maximum.accumulate(stalls.end_ns[mine])
    stop = np.concatenate((stalls.start_ns[mine][1:], [np.iinfo(np.int64).max]))
    if len(rebuilt):
        at = np.searchsorted(rebuilt, ends)
        stop = np.where(at < len(rebuilt), np.minimum(stop, rebuilt[np.minimum(at, len(rebuilt) - 1)]), stop)
    lost = np.where(stalls.device[mine] == device, stalls.lead_ns[mine], 0)
    stop = np.minimum(stop, _after_idle(idle, ends, _EFFECT * lost))
    real = (stop > ends) & (lost > 0)
    return Layer("stall", ends[real], stop[real], mine[real].astype(np.int32))


def _after_idle(idle: Union, start_ns: Ints, budget_ns: Ints) -> Ints:
    """For each start, the moment until which this much idle time has passed."""
    starts, ends = idle
    sums = np.concatenate(([0], np.cumsum(ends - starts)))
    at = np.maximum(np.searchsorted(starts, start_ns, "right") - 1, 0)
    before = sums[at] + np.clip(start_ns - starts[at], 0, ends[at] - starts[at])
    target = before + budget_ns
    reach = np.clip(np.searchsorted(sums, target, "left") - 1, 0, len(starts) - 1)
    return np.where(budget_ns > 0, starts[reach] + (target - sums[reach]), start_ns)


def named_parts(trace: Trace, cause: str, track: int = NONE) -> Union:
    """When annotations, operators or functions whose names mean this cause ran, on one thread or on any."""
    spans = trace.spans
    ids = [i for i, name in enumerate(trace.names) if _NAMED[cause].search(name)]
    if not ids:
        nothing = np.empty(0, np.int64)
        return nothing, nothing
    rows = np.isin(spans.name, ids) & np.isin(spans.kind, (Kind.MARK, Kind.OP, Kind.PYTHON))
    if track != NONE:
        rows &= spans.track == track
    return union(spans.start_ns[rows], spans.end_ns[rows])


def _long_ops(trace: Trace, track: int) -> Union:
    """Operators of a thread that take long."""
    spans = trace.spans
    rows = np.flatnonzero((spans.kind == Kind.OP) & (spans.track == track) & (spans.dur_ns >= _ALONE_NS))
    # Only the innermost of nested operators works by itself.
    has_op = np.zeros(len(spans), np.bool_)
    ops = np.flatnonzero((spans.kind == Kind.OP) & (spans.parent != NONE) & (spans.dur_ns >= _ALONE_NS))
    has_op[spans.parent[ops]] = True
    rows = rows[~has_op[rows]]
    return union(spans.start_ns[rows], spans.end_ns[rows])


def _launching(trace: Trace, track: int) -> Union:
    """Innermost operators of a thread that make runtime calls: these launch, they do not work on the CPU."""
    spans = trace.spans
    calls = np.flatnonzero((spans.kind == Kind.CALL) & (spans.track == track) & (spans.parent != NONE))
    holds = np.zeros(len(spans), np.bool_)
    holds[spans.parent[calls]] = True
    rows = np.flatnonzero(holds & (spans.kind == Kind.OP))
    return union(spans.start_ns[rows], spans.end_ns[rows])


def _first_uses(trace: Trace, track: int) -> Union:
    """In the first operator of each name on a thread, long stretches without call or inner operator."""
    spans = trace.spans
    ops = np.flatnonzero((spans.kind == Kind.OP) & (spans.track == track))
    by_name = np.full(len(trace.names), NONE, np.int64)
    by_name[spans.name[ops][::-1]] = ops[::-1]
    first = np.sort(by_name[by_name != NONE])
    first = first[spans.dur_ns[first] >= _SETUP_NS]
    inner = np.flatnonzero(np.isin(spans.kind, (Kind.OP, Kind.CALL)) & (spans.track == track))
    inner = inner[~np.isin(inner, first)]
    starts, ends = subtract(
        union(spans.start_ns[first], spans.end_ns[first]), union(spans.start_ns[inner], spans.end_ns[inner])
    )
    long = ends - starts >= _SETUP_NS
    return starts[long], ends[long]


def _silent(trace: Trace, threads: list[int]) -> Union:
    """Long stretches in which none of the threads runs an operator or call."""
    spans = trace.spans
    rows = np.flatnonzero(np.isin(spans.kind, (Kind.OP, Kind.CALL)) & np.isin(spans.track, threads))
    low, high = window_of(trace)
    starts, ends = gaps(spans.start_ns[rows], spans.end_ns[rows], low, high)
    long = ends - starts >= _ALONE_NS
    return starts[long], ends[long]
