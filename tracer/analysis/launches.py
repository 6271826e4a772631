"""The async gap: how long GPU work waited between its launch and its start.

- The join goes from the work to its call, since a CUDA graph launch owns many
  kernels under one correlation id.
- Ids that count anew within a process (two recordings in one file) name several
  calls: the work is of the last of them that began before it.
- Correlation ids count anew in each process, so a call and its work must also
  agree in rank and process. A device row that does not know its process takes
  the one that made the calls of its rank.
- A negative gap is a clock that is off, and stays in the table as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analysis.intervals import Union, distinct, union
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Table, Trace

SKEW_NS = 10_000  # clocks of host and GPU that differ by less are taken as equal
_FEEDS = 0.1  # of a device's GPU time


@dataclass(frozen=True, slots=True, eq=False)
class Launches(Table):
    """One row for each piece of GPU work whose launching call is in the trace, sorted by work."""

    call: Ids  # row of Trace.spans, on the CPU
    work: Ids  # row of Trace.spans, on the GPU
    gap_ns: Ints  # from the end of the call to the start of the work
    delay_ns: Ints  # from the start of the call to the start of the work


def find_launches(trace: Trace) -> Launches:
    """Pair calls with the GPU work that they launched."""
    spans = trace.spans
    known = spans.corr > 0
    calls = np.flatnonzero((spans.kind == Kind.CALL) & known)
    work = np.flatnonzero(trace.is_work & known)
    if not len(calls) or not len(work):
        return Launches.empty()
    keys = process_keys(trace, np.concatenate((calls, work)))
    call_keys, work_keys = keys[: len(calls)], keys[len(calls) :]
    if np.any(call_keys[1:] < call_keys[:-1]):
        order = np.argsort(call_keys, kind="stable")
        calls, call_keys = calls[order], call_keys[order]
    at = np.minimum(np.searchsorted(call_keys, work_keys), len(calls) - 1)
    found = call_keys[at] == work_keys
    if np.any(call_keys[1:] == call_keys[:-1]):
        at = _last_begun(spans.start_ns[calls], call_keys, spans.start_ns[work], work_keys, at)
    call, work = calls[at[found]], work[found]
    delay = spans.start_ns[work] - spans.start_ns[call]
    return Launches.of(call=call, work=work, gap_ns=delay - spans.dur_ns[call], delay_ns=delay)


def _last_begun(call_ns: Ints, call_keys: Ints, work_ns: Ints, work_keys: Ints, first: Ints) -> Ints:
    """For each work, the last call of its key that began no later; the first of them if none did."""
    keys, times = np.concatenate((call_keys, work_keys)), np.concatenate((call_ns, work_ns))
    is_call = np.arange(len(keys)) < len(call_keys)
    order = np.lexsort((~is_call, times, keys))
    seen = np.where(is_call[order], order, NONE)
    before = np.empty(len(keys), np.int64)
    before[order] = np.maximum.accumulate(seen)  # calls lie in the order of key and time
    return np.maximum(before[len(call_keys) :], first)


def queue_depth(trace: Trace, launches: Launches, track: int) -> tuple[Ints, Ints]:
    """How much work of one stream is launched and not finished: (time, depth from then on).

    Work counts from the start of its call, since a short kernel may be over before the call is.
    """
    spans = trace.spans
    mine = spans.track[launches.work] == track
    call, work = launches.call[mine], launches.work[mine]
    opens = np.minimum(spans.start_ns[call], spans.start_ns[work])
    times = np.concatenate((opens, spans.end_ns[work]))
    steps = np.repeat(np.array([1, -1], np.int64), len(work))
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(steps[order])
    last = np.concatenate((times[1:] > times[:-1], [True]))[: len(times)]
    return times[last], depth[last]


def lead(trace: Trace, launches: Launches, rank: int, device: int) -> tuple[Ints, Ints]:
    """By how much GPU work the host is ahead of one device: (time, nanoseconds queued and not yet executed).

    Between two of the times returned the lead falls in a straight line as work is
    executed. It jumps where a call ends; the value is the one after the jump.
    """
    spans = trace.spans
    mine = device_tracks(trace, rank, device)[spans.track[launches.work]]
    call, work = launches.call[mine], launches.work[mine]
    starts, ends = (column[work] + early_by(trace, launches, rank, device) for column in (spans.start_ns, spans.end_ns))
    times = distinct(np.concatenate((np.minimum(spans.end_ns[call], starts), starts, ends)))
    return times, lead_at(trace, launches, rank, device, times)


def lead_at(trace: Trace, launches: Launches, rank: int, device: int, time_ns: Ints) -> Ints:
    """The lead at any moments of the host's clock."""
    spans = trace.spans
    mine = device_tracks(trace, rank, device)[spans.track[launches.work]]
    call, work = launches.call[mine], launches.work[mine]
    early = early_by(trace, launches, rank, device)
    queued = np.minimum(spans.end_ns[call], spans.start_ns[work] + early)
    order = np.argsort(queued, kind="stable")
    added = np.concatenate(([0], np.cumsum(spans.dur_ns[work][order])))
    launched = added[np.searchsorted(queued[order], time_ns, "right")]
    starts, ends = np.sort(spans.start_ns[work]) + early, np.sort(spans.end_ns[work]) + early
    ahead: Ints = launched - (_elapsed(starts, time_ns) - _elapsed(ends, time_ns))
    return ahead


def early_by(trace: Trace, launches: Launches, rank: int, device: int) -> int:
    """By how much a device's clock is early, at least: no work starts before its launch."""
    delays = launches.delay_ns[device_tracks(trace, rank, device)[trace.spans.track[launches.work]]]
    early = -int(delays.min(initial=0))
    return early if early >= SKEW_NS else 0


def busy(trace: Trace, rank: int, device: int) -> Union:
    """When a device worked: the union of its kernels, copies and fills."""
    spans = trace.spans
    mine = np.flatnonzero(trace.is_work & device_tracks(trace, rank, device)[spans.track])
    return union(spans.start_ns[mine], spans.end_ns[mine])


def device_tracks(trace: Trace, rank: int, device: int) -> Bools:
    """For each track, whether it is a stream of this device."""
    return np.array([t.rank == rank and t.device == device for t in trace.tracks] or [False], np.bool_)


def find_devices(trace: Trace) -> list[tuple[int, int]]:
    """(rank, device) of every device that worked, sorted."""
    used = np.unique(trace.spans.track[trace.is_work])
    return sorted({(trace.tracks[i].rank, trace.tracks[i].device) for i in used})


def feeding_threads(trace: Trace, launches: Launches, rank: int, device: int) -> tuple[Bools, int]:
    """For each track, whether it launches a tenth or more of a device's GPU time; and the one that launches most.

    What a thread beside those launches (a metric, a copy) is not what keeps the device busy.
    """
    spans = trace.spans
    mine = device_tracks(trace, rank, device)[spans.track[launches.work]]
    caller, took = spans.track[launches.call[mine]], spans.dur_ns[launches.work[mine]]
    times = np.bincount(caller, weights=took, minlength=len(trace.tracks))
    if not times.any():
        return np.zeros(len(trace.tracks), np.bool_), NONE
    return times >= _FEEDS * times.sum(), int(times.argmax())


def find_processes(trace: Trace) -> Ids:
    """For each track, a number for its (rank, process); NONE for a device row whose process is not known."""
    calls = np.bincount(trace.spans.track[trace.spans.kind == Kind.CALL], minlength=len(trace.tracks))
    callers: dict[int, dict[int, int]] = {}
    for index, track in enumerate(trace.tracks):
        if not track.on_gpu:
            by_pid = callers.setdefault(track.rank, {})
            by_pid[track.pid] = by_pid.get(track.pid, 0) + int(calls[index])
    numbers: dict[tuple[int, int], int] = {}
    found = np.full(len(trace.tracks), NONE, np.int32)
    for index, track in enumerate(trace.tracks):
        pids = callers.get(track.rank, {})
        pid = track.pid
        if track.on_gpu and pid not in pids and pids:
            pid = max(pids, key=lambda known: pids[known])
        found[index] = numbers.setdefault((track.rank, pid), len(numbers))
    return found


def process_keys(trace: Trace, rows: Ints) -> Ints:
    """One number for each (process, correlation) of these spans."""
    corr = trace.spans.corr[rows]
    process = find_processes(trace)[trace.spans.track[rows]].astype(np.int64)
    if not np.any(process != process[:1]):
        return corr
    _, corr = np.unique(corr, return_inverse=True)
    return process * (len(rows) + 1) + corr


def _elapsed(moments: Ints, times: Ints) -> Ints:
    """For each time, the sum of the time since each earlier moment."""
    count = np.searchsorted(moments, times, "right")
    sums = np.concatenate(([0], np.cumsum(moments)))
    return count * times - sums[count]
