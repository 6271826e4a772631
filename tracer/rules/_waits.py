"""Stalls grouped by shape and place, so that a rule looks at each kind of wait once, however often it happened."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from tracer.analysis.calls import Does, captured
from tracer.analysis.places import Places
from tracer.analysis.stalls import Stalls
from tracer.results import Place
from tracer.rules._memory import retrying, taken_anew
from tracer.trace import NONE, Bools, Ids, Ints, Kind, Trace

BACKGROUND = re.compile(r"pin_memory_loop|^pt_(nccl|data_pin|tcpstore)|^cuda-EvtHandlr|QueueFeederThread")


@dataclass(frozen=True, slots=True, eq=False)
class Wait:
    """Stalls of one shape at one place on one thread."""

    rows: Ids  # -> Stalls
    call: str  # name of the call that waited
    does: Does
    ops: tuple[str, ...]  # operators around it, the innermost first, "aten::" left out
    around: tuple[str, ...]  # what is around those: annotations, autograd nodes, compiled regions, Python functions
    before: str  # the operator that ran just before the outermost, on the same thread
    after: tuple[str, str]  # the two outermost that ran next
    copy: str  # what it moves: "Memcpy DtoH (Device -> Pinned)", or ""
    nbytes: int  # the largest of the copies; NONE
    queue: bool  # held by a full launch queue
    load: bool  # held by loading a module
    overtaken: bool  # the call returned before its copy began: it was staged, and did not wait
    place: Place | None
    library: Place | None
    stack: tuple[Place, ...]
    callers: tuple[Place, ...]
    track: int
    thread: str
    moments: Ints  # for each row, how many launches came before it
    fresh: int  # rows that gave memory back or took it anew, after it had been freed
    calls: int  # outermost calls that these rows belong to
    captured: bool  # while a CUDA graph was being captured
    retried: bool  # memory was freed in the midst of taking it
    after_graph: bool  # the last launch of its thread was a graph

    @property
    def is_wait(self) -> bool:
        """Whether it waits for the GPU by a synchronisation."""
        return self.does in (Does.STREAM_WAIT, Does.DEVICE_WAIT, Does.EVENT_WAIT, Does.COPY_WAIT)

    @property
    def outermost(self) -> str:
        """The operator that Python called, or ""."""
        return self.ops[-1] if self.ops else ""

    @property
    def reads_scalar(self) -> bool:
        """Whether one element is read into a Python or C++ number."""
        if self.ops:
            return "_local_scalar_dense" in self.ops or "item" in self.ops
        return self.is_wait and self.downloads and 0 < self.nbytes <= 16

    @property
    def uploads(self) -> bool:
        """Whether it moves data from the host to the device."""
        return "HtoD" in self.copy or "Host -> Device" in self.copy or "H2D" in self.copy

    @property
    def downloads(self) -> bool:
        """Whether it moves data from the device to the host."""
        return "DtoH" in self.copy or "Device -> Host" in self.copy or "D2H" in self.copy

    @property
    def text(self) -> str:
        """The source of the call, or of its whole line, as far as it is known."""
        if self.place is None:
            return ""
        text = self.place.excerpt
        if self.place.columns and text:
            low, high = self.place.columns
            return text[low - 1 : high - 1] or text
        return text

    def has(self, *names: str) -> bool:
        """Whether one of these operators is around it; without operators, whether the source calls one."""
        if self.ops:
            return any(name in self.ops for name in names)
        return any(f"{name}(" in self.text for name in names)

    def inside(self, *parts: str) -> bool:
        """Whether a frame of its stack lies in a file whose path has one of these parts."""
        return any(part in place.file for place in self.stack for part in parts)

    def functions(self) -> tuple[str, ...]:
        """The functions of its stack, innermost first."""
        return tuple(place.function for place in self.stack)

    def says(self, *words: str) -> bool:
        """Whether its source text has one of these words."""
        return any(word in self.text for word in words)


def bursts(waits: list[Wait]) -> int:
    """How often these waits came back after other GPU work was launched."""
    return len(np.unique(np.concatenate([wait.moments for wait in waits])))


def find_waits(
    trace: Trace, stalls: Stalls, places: Places, counted: Bools
) -> tuple[tuple[Wait, ...], tuple[Wait, ...]]:
    """All stalls by shape and place: those of which one counts, and those that lie in the set-up alone.

    What also happens inside the steps is no set-up: the first step may begin before
    the first boundary that is known. Threads that poll and copy in the background (the
    DataLoader's, NCCL's) are left out with the set-up: the program does not wait for them.
    """
    rows = np.arange(len(stalls))
    if not len(rows):
        return (), ()
    spans = trace.spans
    calls = stalls.call[rows]
    copy = stalls.copy[rows]
    copy_name = np.where(copy != NONE, spans.name[np.maximum(copy, 0)], NONE)
    overtaken = (copy != NONE) & (spans.start_ns[np.maximum(copy, 0)] >= spans.end_ns[calls])
    place_of = places.frames_of(calls)
    before = _before(trace, stalls.op[rows])
    after = _after(trace, stalls.op[rows])
    in_capture = captured(trace)[calls]
    after_graph = _after_graph(trace, calls, stalls.track[rows])
    retried = np.isin(stalls.group[rows], retrying(stalls))
    shape = np.stack(
        [
            _chains(trace, calls),
            stalls.does[rows],
            copy_name,
            stalls.queue[rows],
            stalls.load[rows],
            stalls.track[rows],
            overtaken,
            place_of,
            spans.name[calls],
            before,
            after[0],
            after[1],
            in_capture,
            after_graph,
            retried,
        ],
        axis=1,
    ).astype(np.int64)
    _, group = np.unique(shape, axis=0, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group.ravel()[order])) + 1)
    anew = taken_anew(stalls)
    launched = np.sort(spans.start_ns[np.flatnonzero(_launching(trace))])
    found: list[Wait] = []
    inside: list[bool] = []
    for part in parts:
        thread = trace.tracks[stalls.track[rows[part[0]]]].name
        inside.append(bool(counted[rows[part]].any()) and not BACKGROUND.search(thread))
        mine = rows[part]
        one = int(part[0])
        row = int(calls[one])
        ops, around = _names_around(trace, row, int(stalls.op[mine[0]]))
        known = int(place_of[one])
        place = places.place(known)
        found.append(
            Wait(
                rows=mine.astype(np.int32),
                call=trace.names[spans.name[row]],
                does=Does(int(stalls.does[mine[0]])),
                ops=ops,
                around=around,
                before=_plain(trace, before[one]),
                after=(_plain(trace, after[0][one]), _plain(trace, after[1][one])),
                copy=trace.names[copy_name[one]] if copy_name[one] != NONE else "",
                nbytes=int(spans.nbytes[copy[part]].max()) if copy_name[one] != NONE else NONE,
                queue=bool(stalls.queue[mine[0]]),
                load=bool(stalls.load[mine[0]]),
                overtaken=bool(overtaken[one]),
                place=place if place is None or place.line else None,  # a file alone is no place
                library=places.library(known),
                stack=places.stack_of(known),
                callers=places.callers(known),
                track=int(stalls.track[mine[0]]),
                thread=trace.tracks[stalls.track[mine[0]]].name,
                moments=np.searchsorted(launched, stalls.start_ns[mine]),
                fresh=int(anew[mine].sum()),
                calls=len(np.unique(stalls.group[mine])),
                captured=bool(in_capture[one]),
                retried=bool(retried[one]),
                after_graph=bool(after_graph[one]),
            )
        )
    # The same line with another operator before it (as in the first step) is the same line.
    lines = {(w.place.file, w.place.line) for w, i in zip(found, inside, strict=True) if i and w.place}
    inside = [i or bool(w.place and (w.place.file, w.place.line) in lines) for w, i in zip(found, inside, strict=True)]
    counting = tuple(w for w, i in zip(found, inside, strict=True) if i)
    return counting, tuple(w for w, i in zip(found, inside, strict=True) if not i)


def _chains(trace: Trace, calls: Ids) -> Ints:
    """For each call a number for the names of the operators around it. A step's number makes no difference."""
    spans = trace.spans
    number = np.arange(1, len(trace.names) + 1, dtype=np.int64)
    number[[i for i, name in enumerate(trace.names) if name.startswith("ProfilerStep")]] = 0
    code = np.zeros(len(calls), np.int64)
    at = spans.parent[calls].astype(np.int64)
    open_rows = np.flatnonzero(at != NONE)
    depth = 0
    while len(open_rows) and depth < 64:
        code[open_rows] = code[open_rows] * 1_000_003 + number[spans.name[at[open_rows]]]
        at[open_rows] = spans.parent[at[open_rows]]
        open_rows = open_rows[at[open_rows] != NONE]
        depth += 1
    _, numbers = np.unique(code, return_inverse=True)
    return numbers.astype(np.int64)


def _names_around(trace: Trace, row: int, top: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    spans = trace.spans
    ops: list[str] = []
    around: list[str] = []
    at = int(spans.parent[row])
    into = ops if top != NONE else around
    while at != NONE:
        into.append(trace.names[spans.name[at]].removeprefix("aten::"))
        if at == top:
            into = around
        at = int(spans.parent[at])
    return tuple(ops), tuple(around)


def _before(trace: Trace, tops: Ids) -> Ids:
    """For each outermost operator the name of the operator before it on its thread."""
    spans = trace.spans
    ops = np.flatnonzero(spans.kind == Kind.OP)
    found = np.full(len(tops), NONE, np.int32)
    known = np.flatnonzero(tops != NONE)
    if not len(known):
        return found
    size = np.int64(len(spans))
    keys = np.sort(spans.track[ops] * size + ops)
    wanted = spans.track[tops[known]] * size + tops[known]
    at = np.searchsorted(keys, wanted) - 1
    row = (keys[np.maximum(at, 0)] % size).astype(np.int64)
    same = (at >= 0) & (spans.track[row] == spans.track[tops[known]])
    found[known[same]] = spans.name[row[same]]
    return found


def _after(trace: Trace, tops: Ids) -> tuple[Ids, Ids]:
    """For each outermost operator the names of the two operators that begin next after it on its thread."""
    spans = trace.spans
    ops = np.flatnonzero(spans.kind == Kind.OP)
    first = np.full(len(tops), NONE, np.int32)
    second = first.copy()
    known = np.flatnonzero(tops != NONE)
    if not len(known):
        return first, second
    size = np.int64(len(spans))
    keys = np.sort(spans.track[ops] * size + ops)
    after = spans.end_ns[tops[known]]
    for found in (first, second):
        start = np.searchsorted(spans.start_ns, after)
        at = np.searchsorted(keys, spans.track[tops[known]] * size + start)
        row = (keys[np.minimum(at, len(keys) - 1)] % size).astype(np.int64)
        same = (at < len(keys)) & (spans.track[row] == spans.track[tops[known]])
        found[known[same]] = spans.name[row[same]]
        known, after = known[same], spans.end_ns[row[same]]
    return first, second


def _plain(trace: Trace, name: int) -> str:
    return trace.names[name].removeprefix("aten::") if name != NONE else ""


def _launching(trace: Trace) -> Bools:
    """For each span, whether it is a call that launches kernels."""
    launches = np.array(["Launch" in name for name in trace.names] or [False])
    found: Bools = (trace.spans.kind == Kind.CALL) & launches[trace.spans.name]
    return found


def _after_graph(trace: Trace, calls: Ids, track: Ids) -> Bools:
    """For each call, whether the last launch before it on its thread was that of a CUDA graph."""
    spans = trace.spans
    launching = np.flatnonzero(_launching(trace))
    if not len(launching):
        return np.zeros(len(calls), np.bool_)
    size = np.int64(len(spans))
    keys = np.sort(spans.track[launching] * size + launching)
    at = np.searchsorted(keys, track * size + calls) - 1
    row = keys[np.maximum(at, 0)] % size
    graphs = np.array(["GraphLaunch" in name for name in trace.names])
    found: Bools = (at >= 0) & (spans.track[row] == track) & graphs[spans.name[row]]
    return found
