"""Finds the zero of a sampler's clock, with the interval in which it must lie, or says why it cannot.

Each sample that shows something whose times are known allows an interval of zeros. The
answer is where most of them agree; some are always wrong, because stamps come late.
When too many disagree, or two answers are as good, there is none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tracer.trace import NONE, Ints, Kind, Trace

_FEWEST = 3  # samples that must speak
_AGREE = 0.6  # part of the beacons that must agree
_ALLOWED = 0.05  # part of the functions' samples that may contradict
_MOST_COVERED = 0.9  # of the trace, by a function that can tell something
_NEARLY = 0.97  # of the best answer: as good
_PYTHON_NAME = re.compile(r"^(?P<file>.+?)\(\d+\): (?P<function>.+)$", re.DOTALL)
_MOST_STEPS = 4_000_000


@dataclass(frozen=True, slots=True)
class Zero:
    """unix time = the sampler's time + offset, within error; or why that is not known."""

    offset_ns: int = 0
    error_ns: int = 0
    why: str = ""
    pid: int = NONE
    lanes: dict[int, int] = field(default_factory=dict)  # the sampler's thread -> the trace's


class Sampled(Protocol):
    """What is needed of a sample."""

    @property
    def time_ns(self) -> int:
        """On the sampler's clock."""

    @property
    def thread(self) -> int:
        """The sampler's number."""

    @property
    def stack(self) -> tuple[tuple[str, str, int], ...]:
        """(function, file, line), outermost first."""


def by_beacons(taken: Sequence[Sampled], beacons: Sequence[tuple[str, int, int]]) -> Zero:
    """From functions of known names that noted when they came and went."""
    times = {name: (entry, end) for name, entry, end in beacons}
    first: dict[str, int] = {}
    for sample in taken:
        for name, _, _ in sample.stack:
            if name in times:
                # Only where it shows first: py-spy leaves the last stack of a thread that has ended open.
                first.setdefault(name, sample.time_ns)
    low = [times[name][0] - seen for name, seen in first.items()]
    high = [times[name][1] - seen for name, seen in first.items()]
    if len(low) < _FEWEST:
        return Zero(why=f"the samples show {len(low)} of {len(beacons)} clock beacons, too few to know their zero")
    # A stamp comes late, never early: the greatest entry bound holds, and the next end bound above it is the other
    # side. Should a garbled sample have made it too great, most of the others would lie below it.
    ends = np.sort(np.array(high, np.int64))
    for start in sorted(low, reverse=True)[: 1 + int(_ALLOWED * len(low))]:
        agreeing = ends[np.searchsorted(ends, start) :]
        if len(agreeing) >= _AGREE * len(ends):
            end = int(agreeing[0])
            break
    else:
        return Zero(why="the clock beacons contradict each other: no zero suits most of them")
    return Zero((start + end) // 2, (end - start + 1) // 2)


def by_functions(trace: Trace, taken: Sequence[Sampled]) -> Zero:
    """From Python functions that both the profiler and the sampler saw."""
    functions = _functions(trace)
    in_samples = Counter(key for sample in taken for key in {_key(file, name) for name, file, _ in sample.stack})
    telling = [key for key in functions if 0 < in_samples[key] < len(taken)]
    if not telling:
        return Zero(why="trace and samples have no Python function in common that comes and goes")
    telling.sort(key=lambda key: len(functions[key][0]))
    low, high, value = [], [], []
    speaking = steps = 0
    for key in telling:
        starts, ends = functions[key]
        steps += len(starts) * len(taken)
        if steps > _MOST_STEPS and speaking:
            break
        for sample in taken:
            shown = any(_key(file, name) == key for name, file, _ in sample.stack)
            speaking += shown
            low.append(starts - sample.time_ns)
            high.append(ends - sample.time_ns)
            value.append(np.full(len(starts), 1 if shown else -1, np.int64))
    edges, score = _depth(np.concatenate(low), np.concatenate(high), np.concatenate(value))
    best = int(score.max())
    if speaking < _FEWEST or best < (1 - 2 * _ALLOWED) * speaking:
        return Zero(why=f"trace and samples contradict each other: no zero makes more than {best} of {speaking} agree")
    start, end = _around(edges, score, best)
    good = np.flatnonzero(score >= _NEARLY * best)
    if len(good) and (edges[good].min() < start - (end - start) or edges[good].max() > end + (end - start)):
        return Zero(why="the samples fit the trace in more than one way")
    pid, lanes = _threads(trace, taken, (start + end) // 2)
    return Zero((start + end) // 2, (end - start + 1) // 2, pid=pid, lanes=lanes)


def _depth(low: Ints, high: Ints, value: Ints) -> tuple[Ints, Ints]:
    """Edges in order, and the sum of the values of all intervals that cover the stretch after each."""
    edges = np.concatenate((low, high))
    change = np.concatenate((value, -value))
    order = np.lexsort((-change, edges))
    edges, depth = edges[order], np.cumsum(change[order])
    last = np.concatenate((np.diff(edges) > 0, [True]))
    return edges[last], depth[last]


def _around(edges: Ints, depth: Ints, best: int) -> tuple[int, int]:
    """The stretch of nearly the best agreement around the first best one."""
    first = last = int(np.argmax(depth))
    while first > 0 and depth[first - 1] >= _NEARLY * best:
        first -= 1
    while last + 1 < len(depth) - 1 and depth[last + 1] >= _NEARLY * best:
        last += 1
    return int(edges[first]), int(edges[min(last + 1, len(edges) - 1)])


def _key(file: str, function: str) -> tuple[str, str]:
    """Profilers trim paths differently and name methods differently: the last part of both."""
    return file.replace("\\", "/").rpartition("/")[2], function.rpartition(".")[2]


def _functions(trace: Trace) -> dict[tuple[str, str], tuple[Ints, Ints]]:
    """When each recorded Python function ran: starts and ends of the unions."""
    spans = trace.spans
    rows = np.flatnonzero(spans.kind == Kind.PYTHON)
    whole = (int(spans.start_ns.min()), int(spans.end_ns.max())) if len(spans) else (0, 0)
    found: dict[tuple[str, str], list[int]] = {}
    for name in np.unique(spans.name[rows]).tolist():
        match = _PYTHON_NAME.match(trace.names[name])
        if match:
            found.setdefault(_key(match["file"], match["function"]), []).append(name)
    result = {}
    for key, names in found.items():
        ours = rows[np.isin(spans.name[rows], names)]
        starts, ends = spans.start_ns[ours], np.maximum.accumulate(spans.end_ns[ours])
        fresh = np.concatenate(([True], starts[1:] > ends[:-1]))
        last = np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(ours) - 1]))
        # What runs from the first to the last moment says nothing: the sampler began and ended elsewhere.
        if int((ends[last] - starts[fresh]).sum()) < _MOST_COVERED * (whole[1] - whole[0]):
            result[key] = (starts[fresh], ends[last])
    return result


def _threads(trace: Trace, taken: Sequence[Sampled], offset_ns: int) -> tuple[int, dict[int, int]]:
    """The process, and for each thread of the sampler the trace's thread that ran the same functions then."""
    spans = trace.spans
    rows = np.flatnonzero(spans.kind == Kind.PYTHON)
    names = {number: _PYTHON_NAME.match(trace.names[number]) for number in np.unique(spans.name[rows]).tolist()}
    votes: dict[int, Counter[int]] = {}
    for sample in taken[:: max(len(taken) // 500, 1)]:
        shown = {_key(file, name) for name, file, _ in sample.stack}
        time = sample.time_ns + offset_ns
        for row in rows[(spans.start_ns[rows] <= time) & (spans.end_ns[rows] > time)].tolist():
            match = names[int(spans.name[row])]
            if match and _key(match["file"], match["function"]) in shown:
                votes.setdefault(sample.thread, Counter())[int(spans.track[row])] += 1
    lanes, pid = {}, NONE
    for thread, counted in votes.items():
        track = trace.tracks[counted.most_common(1)[0][0]]
        lanes[thread], pid = track.lane, track.pid
    return pid, lanes
