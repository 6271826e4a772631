"""What the clocks of a trace contradict: the host's and the GPU's, those of ranks, and stamps that lost digits."""

from __future__ import annotations

import numpy as np

from tracer.analysis.calls import Does
from tracer.analysis.launches import SKEW_NS, Launches, find_processes
from tracer.analysis.stalls import copies_before
from tracer.trace import NONE, Bytes, Ints, Kind, Trace
from tracer.units import show_ns

_COARSE_NS = 1_000_000
_RANKS_APART_NS = 100_000


def of_host_and_gpu(trace: Trace, launches: Launches, does: Bytes, limits: list[str]) -> int:
    """How far GPU times must move: forward where work starts before its launch, back where it outlasts its wait."""
    early = launches.delay_ns < 0
    shift = -int(launches.delay_ns.min(initial=0))
    late = _outlasts(trace, launches, does)
    if shift >= SKEW_NS:
        text = f"{int(early.sum())} of {len(launches)} pieces of GPU work start before their launch"
        how, given = "by at least", "launch delays and causes of idle time"
    elif len(late) and np.mean(late >= SKEW_NS) > 0.5:
        shift = -int(late.max())
        text = f"{int(np.sum(late > 0))} of {len(late)} waits of the host end before the work that they wait for"
        how, given = "back by at least", "launch delays"
    else:
        return 0
    limits.append(
        f"{text}: the clocks of host and GPU disagree, GPU times must move {how} {_us(abs(shift))}; "
        f"{given} are given after that correction"
    )
    return shift


def _outlasts(trace: Trace, launches: Launches, does: Bytes) -> Ints:
    """By how much copies to the host end after the wait for them, and a device's work after the wait for the device."""
    spans = trace.spans
    rows = np.flatnonzero(does == Does.STREAM_WAIT).astype(np.int32)
    copy = copies_before(trace, launches, does, rows)[0][1]
    down = np.array(["DtoH" in name for name in trace.names] or [False])
    known = (copy != NONE) & down[spans.name[np.maximum(copy, 0)]]
    late = [spans.end_ns[copy[known]] - spans.end_ns[rows[known]]]
    process = find_processes(trace)[spans.track]
    order = np.argsort(launches.call, kind="stable")
    for one in np.unique(process[does == Does.DEVICE_WAIT]).tolist():
        waits = np.flatnonzero((does == Does.DEVICE_WAIT) & (process == one))
        mine = order[process[launches.call[order]] == one]
        device = spans.track[launches.work[mine]]
        if len(mine) and len({trace.tracks[track].device for track in np.unique(device)}) == 1:
            reach = np.maximum.accumulate(spans.end_ns[launches.work[mine]])
            at = np.searchsorted(launches.call[mine], waits) - 1
            late.append(reach[at[at >= 0]] - spans.end_ns[waits[at >= 0]])
    return np.concatenate(late)


def of_ranks(trace: Trace, limits: list[str]) -> None:
    """The n-th collective of all ranks is the same one, and ends on all of them together."""
    spans = trace.spans
    of_track = np.array([track.rank for track in trace.tracks] or [0], np.int64)
    named = np.array(["nccl" in name.lower() or "rccl" in name.lower() for name in trace.names] or [False])
    rows = np.flatnonzero((spans.kind == Kind.KERNEL) & named[spans.name])
    ranks, counts = np.unique(of_track[spans.track[rows]], return_counts=True)
    if len(ranks) < 2:
        return
    if len(set(counts.tolist())) > 1:
        told = ", ".join(f"rank {rank}: {count}" for rank, count in zip(ranks.tolist(), counts.tolist(), strict=True))
        limits.append(
            f"ranks have different numbers of collectives ({told}): which rank waits for which cannot be told"
        )
        return
    ends = np.stack([spans.end_ns[rows[of_track[spans.track[rows]] == rank]] for rank in ranks])
    off = ends - ends[0]
    middle = np.median(off, axis=1).astype(np.int64)
    steady = np.median(np.abs(off - middle[:, None]), axis=1) < np.abs(middle) / 10
    for rank, ns in zip(ranks[steady].tolist(), middle[steady].tolist(), strict=True):
        if abs(ns) >= _RANKS_APART_NS:
            limits.append(
                f"the clock of rank {rank} is {show_ns(abs(ns))} {'ahead of' if ns > 0 else 'behind'} that of rank "
                f"{ranks[0]}, by the ends of their collectives: times of different ranks are compared without that "
                "correction"
            )


def of_stamps(trace: Trace, limits: list[str]) -> None:
    """Durations with more digits than starts: the stamps were too large for whoever wrote them."""
    starts, durations = trace.spans.start_ns, trace.spans.dur_ns
    if len(starts) < 10:
        return
    step, fine = int(np.gcd.reduce(starts - starts[0])), int(np.gcd.reduce(durations))
    if (step == 0 and fine) or (step >= _COARSE_NS and fine < step):
        limits.append(
            f"all events start {f'at multiples of {show_ns(step)}' if step else 'at the same moment'}: their stamps "
            "lost digits where the file was written, and times that are shorter mean nothing"
        )


def _us(ns: int) -> str:
    return f"{ns / 1000:.0f} us"
