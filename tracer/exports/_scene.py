"""What there is to draw: a trace and, where it was examined, what was found in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tracer.analysis.idle import CAUSES
from tracer.analysis.launches import Launches, find_launches
from tracer.analysis.steps import find_steps
from tracer.exports._arrows import Arrows
from tracer.exports._naming import short_name
from tracer.exports._rows import Strings
from tracer.exports._spans import Graphs, find_graphs
from tracer.results import Audit, Finding
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Steps, Table, Trace
from tracer.units import NS_PER_US

DETAILS = ("low", "normal", "full")


class Examined(Protocol):
    """What is used of an auditor's Examination."""

    @property
    def trace(self) -> Trace:
        """What was examined."""

    @property
    def evidence(self) -> Any:
        """The tables that the rules saw."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found."""

    @property
    def held(self) -> Any:
        """Each time that the host was held."""

    @property
    def idle(self) -> Any:
        """Each time that a GPU was idle."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The class word of each stall."""


@dataclass(frozen=True, slots=True, eq=False)
class Stalled(Table):
    """One row for each time that the host was held."""

    start_ns: Ints
    dur_ns: Ints
    track: Ids
    finding: Ids  # -> Scene.findings; NONE
    harmless: Bools
    last_work: Ids  # -> spans; NONE
    kind: Ids  # -> strings: the class word


@dataclass(frozen=True, slots=True, eq=False)
class Idled(Table):
    """One row for each stretch of a device's idle time with one cause."""

    start_ns: Ints
    dur_ns: Ints
    rank: Ids
    device: Ids
    cause: Ids  # -> strings
    kind: Ids  # -> strings: the class word of the stall behind it, else the cause
    finding: Ids  # -> Scene.findings; NONE
    next_work: Ids  # -> spans; NONE


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
    stalled: Stalled = field(default_factory=Stalled.empty)
    idled: Idled = field(default_factory=Idled.empty)
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
    _by_track: Ids = None  # type: ignore[assignment]
    _counts: Ints = None  # type: ignore[assignment]
    _ends: Ints = None  # type: ignore[assignment]
    _launched: dict[int, tuple[Ints, Ids]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        trace = self.trace
        self.numbers = Numbers(trace)
        track = trace.spans.track
        self._counts = np.bincount(track, minlength=len(trace.tracks))
        self._ends = np.cumsum(self._counts)
        narrow = track.astype(np.int16) if len(trace.tracks) < 1 << 15 else track  # sorts much faster
        self._by_track = np.argsort(narrow, kind="stable").astype(np.int32)
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
    def dearest(self) -> tuple[Finding, ...]:
        """The findings, dearest first."""
        return self.audit.findings if self.audit is not None else self.findings

    @property
    def many_ranks(self) -> bool:
        """Whether rows must say whose they are."""
        return len({track.rank for track in self.trace.tracks}) > 1

    def of_rank(self, rank: int) -> str:
        """What a heading adds where there are several ranks."""
        widest = max(track.rank for track in self.trace.tracks)
        return f" of rank {rank:0{len(str(widest))}}" if self.many_ranks else ""

    def rows_of(self, track: int, *kinds: Kind) -> Ids:
        """The spans of one track and these kinds, in order."""
        rows = self._by_track[self._ends[track] - self._counts[track] : self._ends[track]]
        wanted = np.zeros(len(Kind), np.bool_)
        wanted[list(kinds)] = True
        return rows[wanted[self.trace.spans.kind[rows]]]

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

    def in_rank(self, rank: int) -> str:
        """What a row of the host adds to its name where there are several ranks."""
        return f" ({self.of_rank(rank).removeprefix(' of ')})" if self.many_ranks else ""

    def of_gpu(self, rank: int, device: int) -> str:
        """What a row adds to its name where there are several GPUs, so that it can be told apart when pinned."""
        devices = {(track.rank, track.device) for track in self.trace.tracks if track.on_gpu}
        return f" (GPU {device}{self.of_rank(rank)})" if len(devices) > 1 else ""

    def text_ids(self, texts: Sequence[str]) -> Ids:
        """Numbers of texts that were made for one slice each."""
        return self.strings.ids(texts)


def set_scene(trace: Trace, audit: Audit | None, examined: Examined | None, detail: str) -> Scene:
    """Gather what the auditor found, or find the bare facts where nobody looked yet."""
    if examined is None:
        return Scene(trace, detail, find_launches(trace), find_steps(trace), audit=audit)
    evidence = examined.evidence
    # The audit prices the findings anew and sorts them; rows count in the examination's order.
    priced = {finding.id: finding for finding in audit.findings} if audit is not None else {}
    findings = tuple(priced.get(finding.id, finding) for finding in examined.findings)
    strings = Strings()
    kinds = strings.ids(examined.kinds or ("",))
    causes, stall = strings.ids(CAUSES)[examined.idle.cause], examined.idle.stall
    harmless = np.array([finding.harmless for finding in findings] or [False])
    held, idle = examined.held, examined.idle
    return Scene(
        trace,
        detail,
        evidence.launches,
        evidence.steps,
        stalled=Stalled.of(
            start_ns=held.start_ns,
            dur_ns=held.dur_ns,
            track=held.track,
            finding=held.finding,
            harmless=(held.finding != NONE) & harmless[held.finding],
            last_work=held.last_work,
            kind=kinds[: len(held)],
        ),
        idled=Idled.of(
            start_ns=idle.start_ns,
            dur_ns=idle.dur_ns,
            rank=idle.rank,
            device=idle.device,
            cause=causes,
            kind=np.where(stall != NONE, kinds[stall], causes),
            finding=idle.finding,
            next_work=idle.next_work,
        ),
        findings=findings,
        audit=audit,
        strings=strings,
    )


def shown_durations(durations: Ints, strings: Strings) -> Ids:
    """Numbers of texts such as `1230 us` and `42 ms`: three digits, so that few texts serve millions of slices.

    Whole numbers of two units: the UI colours by the name without its digits.
    """
    us = np.rint(np.maximum(durations, 0) / NS_PER_US).astype(np.int64)
    step = 10 ** np.maximum(np.floor(np.log10(np.maximum(us, 1))).astype(np.int64) - 2, 0)
    values, at = np.unique(us // step * step, return_inverse=True)
    texts = [f"{value} us" if value < 10_000 else f"{round(value / 1_000)} ms" for value in values.tolist()]
    return strings.ids(texts)[at]
