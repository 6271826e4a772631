"""What the GPU did most, and how far its work was from its launches: tables for a report."""

from __future__ import annotations

import numpy as np

from tracer.analysis.calls import Does, captured, what_calls_do
from tracer.analysis.held import outermost_op
from tracer.analysis.intervals import covered, length
from tracer.analysis.launches import Launches, busy, find_devices, lead, queue_depth
from tracer.analysis.trust import Trust
from tracer.results import Device, Hot, Launching, Spread
from tracer.trace import NONE, Ids, Ints, Kind, Trace


def find_devices_used(trace: Trace, low: int, high: int) -> tuple[Device, ...]:
    """Busy and idle of each GPU between two moments."""
    found = []
    for rank, device in find_devices(trace):
        worked = int(covered(busy(trace, rank, device), [low], [high])[0])
        tracks = [i for i, t in enumerate(trace.tracks) if t.rank == rank and t.device == device]
        spans = trace.spans
        kernels = int(np.sum((spans.kind == Kind.KERNEL) & np.isin(spans.track, tracks)))
        used = len(np.unique(spans.track[trace.is_work & np.isin(spans.track, tracks)]))
        name = trace.meta.get(f"device.{rank}.{device}", "")
        found.append(Device(device, rank, name, worked, high - low - worked, high - low, kernels, used))
    return tuple(found)


def spread(values: Ints) -> Spread | None:
    """Order statistics, None of nothing."""
    if not len(values):
        return None
    p50, p90, p99 = (float(x) for x in np.percentile(values, [50, 90, 99]))
    return Spread(len(values), float(values.mean()), p50, p90, p99, int(values.min()), int(values.max()))


def find_launching(trace: Trace, launches: Launches, trust: Trust) -> Launching:
    """The async gap as a whole. Where the clocks disagree, delays are given after the correction that trust names."""
    does = what_calls_do(trace)
    shift = trust.skew_ns
    rows = np.flatnonzero((does == Does.LAUNCH) & ~captured(trace))
    served = np.zeros(len(trace.spans), np.bool_)
    served[launches.call] = True
    # A graph launch with many kernels is one launch; its delay is that of its first kernel.
    first = np.unique(launches.call, return_index=True)[1]
    deepest = 0
    for track in np.unique(trace.spans.track[launches.work]).tolist():
        depth = queue_depth(trace, launches, track)[1]
        deepest = max(deepest, int(depth.max(initial=0)))
    ahead = [_mean_lead(*lead(trace, launches, *device)) for device in find_devices(trace)]
    return Launching(
        launches=len(first),
        works=len(launches),
        orphans=int(np.sum(~served[rows])),
        unlaunched=trust.unlaunched,
        from_call_start=spread(launches.delay_ns[first] + shift),
        from_call_end=spread(launches.gap_ns[first] + shift),
        before_call_start=int(np.sum(launches.delay_ns < 0)),
        max_queue_depth=deepest,
        mean_lead_ns=float(np.mean([mean for mean, _ in ahead])) if ahead else 0.0,
        max_lead_ns=max((most for _, most in ahead), default=0),
    )


def _mean_lead(times: Ints, ahead: Ints) -> tuple[float, int]:
    if len(times) < 2:
        return 0.0, 0
    widths = np.diff(times)
    return float(np.sum(ahead[:-1] * widths) / max(int(widths.sum()), 1)), int(ahead.max())


def hot_kernels(trace: Trace, top: int = 30) -> tuple[Hot, ...]:
    """Kernels by the GPU time they took."""
    rows = np.flatnonzero(trace.spans.kind == Kind.KERNEL)
    return _hot(trace, rows, trace.spans.name[rows], top)


def hot_ops(trace: Trace, launches: Launches, top: int = 30) -> tuple[Hot, ...]:
    """Operators, as Python called them, by the GPU time of what they launched."""
    op = outermost_op(trace, launches.call)
    known = op != NONE
    work = launches.work[known]
    kernels = trace.spans.kind[work] == Kind.KERNEL
    return _hot(trace, work[kernels], trace.spans.name[op[known][kernels]], top)


def hot_copies(trace: Trace) -> tuple[Hot, ...]:
    """Copies and fills by direction, with their bandwidth."""
    rows = np.flatnonzero(np.isin(trace.spans.kind, (Kind.COPY, Kind.FILL)))
    return _hot(trace, rows, trace.spans.name[rows], 30, sized=True)


def _hot(trace: Trace, rows: Ints, names: Ids, top: int, *, sized: bool = False) -> tuple[Hot, ...]:
    spans = trace.spans
    if not len(rows):
        return ()
    whole = sum(length(busy(trace, *device)) for device in find_devices(trace)) or 1
    ids, at = np.unique(names, return_inverse=True)
    totals = np.bincount(at, weights=spans.dur_ns[rows]).astype(np.int64)
    counts = np.bincount(at)
    nbytes = np.bincount(at, weights=np.maximum(spans.nbytes[rows], 0)).astype(np.int64)
    found = []
    for one in np.argsort(-totals, kind="stable")[:top].tolist():
        total, count = int(totals[one]), int(counts[one])
        rate = int(nbytes[one]) / total if sized and total and nbytes[one] else None
        moved = int(nbytes[one]) if sized else 0
        found.append(Hot(trace.names[ids[one]], count, total, total / count, total / whole, moved, rate))
    return tuple(found)


def is_blocking(trace: Trace, launches: Launches) -> bool:
    """Whether every launch waits for its kernel, as with CUDA_LAUNCH_BLOCKING=1."""
    spans = trace.spans
    kernels = spans.kind[launches.work] == Kind.KERNEL
    call, work = launches.call[kernels], launches.work[kernels]
    if len(call) < 20:
        return False
    # Where the GPU's clock is early, kernels end before their call without having been waited for.
    within = (spans.start_ns[call] <= spans.start_ns[work]) & (spans.end_ns[work] <= spans.end_ns[call])
    return bool(np.mean(within) > 0.9)
