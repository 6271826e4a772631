"""Slices that may overlap, on as many lanes as they need; and graph launches as slices over their kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.launches import Launches
from tracer.exports._lanes import free_lanes, nested_lanes
from tracer.exports._rows import Row, Slices
from tracer.trace import Ids, Ints, Kind, Table, Trace


@dataclass(frozen=True, slots=True, eq=False)
class Graphs(Table):
    """One row for each call whose work on one stream is more than one piece: a CUDA graph."""

    call: Ids  # -> spans
    track: Ids
    start_ns: Ints
    dur_ns: Ints
    count: Ids  # pieces of work
    corr: Ints


def find_graphs(trace: Trace, launches: Launches) -> Graphs:
    """Calls that launched several kernels on one stream."""
    spans = trace.spans
    kernels = spans.kind[launches.work] == Kind.KERNEL
    call, work = launches.call[kernels], launches.work[kernels]
    repeated = np.bincount(call, minlength=len(spans))[call] > 1
    call, work = call[repeated], work[repeated]
    if not len(call):
        return Graphs.empty()
    keys = call.astype(np.int64) * len(trace.tracks) + spans.track[work]
    order = np.lexsort((work, keys))
    call, work, keys = call[order], work[order], keys[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    start = np.minimum.reduceat(spans.start_ns[work], first)
    end = np.maximum.reduceat(spans.end_ns[work], first)
    count = np.diff(np.append(first, len(work)))
    whole = count > 1
    rows = first[whole]
    return Graphs.of(
        call=call[rows],
        track=spans.track[work[rows]],
        start_ns=start[whole],
        dur_ns=(end - start)[whole],
        count=count[whole],
        corr=spans.corr[work[rows]],
    )


def lane_rows(
    key: str,
    name: str,
    parent: str,
    rank: int,
    description: str,
    parts: Sequence[Slices],
    *,
    flat: bool = False,
) -> Iterator[Row]:
    """Rows of one name that take all slices, whether they nest or not; `flat`: none above another."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return
    start = np.concatenate([part.start_ns for part in parts])
    dur = np.concatenate([part.dur_ns for part in parts])
    order = np.lexsort((-dur, start))
    lanes = np.empty(len(order), np.int32)
    sorted_start, sorted_dur = start[order], dur[order]
    lanes[order] = (
        free_lanes(sorted_start, sorted_start + sorted_dur) if flat else nested_lanes(sorted_start, sorted_dur)
    )
    for lane in range(int(lanes.max()) + 1):
        at, chosen = 0, []
        for part in parts:
            mine = np.flatnonzero(lanes[at : at + len(part)] == lane)
            at += len(part)
            if len(mine):
                chosen.append(part.take(slice(None) if len(mine) == len(part) else mine))
        yield Row(f"{key} {lane}", name, parent, rank, description, tuple(chosen))
