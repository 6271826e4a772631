"""What there is to draw: a trace and, where it was examined, what was found in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tracer.analysis.launches import Launches, find_launches
from tracer.analysis.steps import find_steps
from tracer.exports.arrows import Arrows
from tracer.exports.naming import short_name
from tracer.exports.rows import Strings
from tracer.exports.spans import Graphs, find_graphs
from tracer.results import Audit, Finding
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Steps, Trace
from tracer.units import NS_PER_US

DETAILS = ("low", "normal", "full")


class Examined(Protocol):
    """What is used of an auditor's Examination."""

    trace: Trace
    evidence: Any
    findings: tuple[Finding, ...]
    held: Any
    idle: Any


@dataclass(slots=True)
class Numbers:
    """Process and thread numbers that are unique in one file, as Perfetto wants them.

    Containers give the same pid to several ranks, and some profilers write thread
    ids that are longer than 31 bits; those are renumbered.
    """

    trace: Trace
    pids: dict[tuple[int, int], int] = field(default_factory=dict)
    tids: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        taken: set[int] = set()
        for track in self.trace.tracks:
            key = (track.rank, track.pid)
            if not track.on_gpu and key not in self.pids:
                self.pids[key] = self._free(track.pid, taken)
        lanes: dict[tuple[int, int], set[int]] = {}
        for track in self.trace.tracks:
            if not track.on_gpu:
                key = (track.rank, track.pid)
                own = lanes.setdefault(key, set())
                # The main thread of a renumbered process stays its main thread.
                lane = self.pids[key] if track.lane == track.pid else track.lane
                self.tids[(*key, track.lane)] = self._free(lane, own)

    @staticmethod
    def _free(wanted: int, taken: set[int]) -> int:
        number = wanted if 0 < wanted < 1 << 31 else 1_000_000_000
        while number in taken:
            number = number + 10_000_000 if number < 2_000_000_000 else number - 1_999_999_999
        taken.add(number)
        return number


@dataclass(slots=True, eq=False)
class Scene:
    """All that the rows are made from."""

    trace: Trace
    detail: str
    launches: Launches
    steps: Steps
    stalls: Any = None  # analysis.stalls.Stalls
    held: Any = None  # auditor.Held
    idle: Any = None  # analysis.idle.Idle
    causes: Sequence[str] = ()
    findings: tuple[Finding, ...] = ()
    audit: Audit | None = None
    strings: Strings = field(default_factory=Strings)
    arrows: Arrows = field(default_factory=Arrows)
    numbers: Numbers = None  # type: ignore[assignment]
    names: Ids = None  # type: ignore[assignment]  # Trace.names -> strings, as they are
    kernel_names: Ids = None  # type: ignore[assignment]  # Trace.names -> strings, short
    calls: Ids = None  # type: ignore[assignment]  # for each span the call that launched it, or NONE
    graphs: Graphs = None  # type: ignore[assignment]
    on_gpu: Bools = None  # type: ignore[assignment]
    _launched: dict[int, tuple[Ints, Ids]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trace = self.trace
        self.numbers = Numbers(trace)
        self.names = self.strings.ids(trace.names)
        used = np.zeros(len(trace.names), np.bool_)
        used[trace.spans.name[trace.spans.kind == Kind.KERNEL]] = True
        self.kernel_names = self.names.copy()
        for at in np.flatnonzero(used):
            self.kernel_names[at] = self.strings.id(short_name(trace.names[at]))
        self.calls = np.full(len(trace.spans), NONE, np.int32)
        self.calls[self.launches.work] = self.launches.call
        self.graphs = find_graphs(trace, self.launches)
        self.on_gpu = trace.on_gpu

    @property
    def many_ranks(self) -> bool:
        """Whether rows must say whose they are."""
        return len({track.rank for track in self.trace.tracks}) > 1

    def of_rank(self, rank: int) -> str:
        """What a heading adds where there are several ranks."""
        widest = max(track.rank for track in self.trace.tracks)
        return f" of rank {rank:0{len(str(widest))}}" if self.many_ranks else ""

    def finding(self, number: int) -> Finding | None:
        """A finding by its number in the examination."""
        return self.findings[number] if 0 <= number < len(self.findings) else None

    def launched_on(self, track: int) -> tuple[Ints, Ids]:
        """When the work of one stream was launched, in that order, and which work it is."""
        if track not in self._launched:
            spans, launches = self.trace.spans, self.launches
            mine = np.flatnonzero(spans.track[launches.work] == track)
            times, works = spans.start_ns[launches.call[mine]], launches.work[mine]
            order = np.argsort(times, kind="stable")
            self._launched[track] = (times[order], works[order])
        return self._launched[track]

    def text_ids(self, texts: Sequence[str]) -> Ids:
        """Numbers of texts that were made for one slice each."""
        return self.strings.ids(texts)


def set_scene(trace: Trace, audit: Audit | None, examined: Examined | None, detail: str) -> Scene:
    """Gather what the auditor found, or find the bare facts where nobody looked yet."""
    if examined is None:
        return Scene(trace, detail, find_launches(trace), find_steps(trace), audit=audit)
    from tracer.analysis.idle import CAUSES

    evidence = examined.evidence
    return Scene(
        trace,
        detail,
        evidence.launches,
        evidence.steps,
        stalls=evidence.stalls,
        held=examined.held,
        idle=examined.idle,
        causes=CAUSES,
        findings=audit.findings if audit is not None else examined.findings,
        audit=audit,
    )


def shown_durations(durations: Ints, strings: Strings) -> Ids:
    """Numbers of texts such as `1230 us`: three digits, so that few texts serve millions of slices.

    Always in microseconds: the UI colours by the name without its digits.
    """
    us = np.rint(np.maximum(durations, 0) / NS_PER_US).astype(np.int64)
    step = 10 ** np.maximum(np.floor(np.log10(np.maximum(us, 1))).astype(np.int64) - 2, 0)
    values, at = np.unique(us // step * step, return_inverse=True)
    return strings.ids([f"{value} us" for value in values.tolist()])[at]
