"""Events become columns, batch by batch: what a row is, its category says, never its process or arguments.

A synchronisation record or a Triton call with a `stream` is not GPU work, and a Python
thread can be process 0. Which track a row belongs to is settled at the end (`_tracks.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
import numpy as np

from tracer.building import TraceBuilder
from tracer.readers import _args
from tracer.readers._args import decode_args
from tracer.readers._details import DetailColumns
from tracer.readers._growing import GrowingColumns, Ids32
from tracer.readers._stamps import integer, integers, ns_of
from tracer.trace import NONE, Counters, Ints, Kind, Loss

KINDS = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.MARK,
    "gpu_user_annotation": Kind.GPU_MARK,
    "python_function": Kind.PYTHON,
    "python": Kind.PYTHON,
    "cuda_runtime": Kind.CALL,
    "cuda_driver": Kind.CALL,
    "runtime": Kind.CALL,
    "driver": Kind.CALL,
    "xpu_runtime": Kind.CALL,
    "xpu_driver": Kind.CALL,
    "mtia_runtime": Kind.CALL,
    "glow_runtime": Kind.CALL,
    "privateuse1_runtime": Kind.CALL,
    "privateuse1_driver": Kind.CALL,
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "memcpy": Kind.COPY,
    "gpu_memset": Kind.FILL,
    "memset": Kind.FILL,
    "cuda_sync": Kind.WAIT,
    "xpu_sync": Kind.WAIT,
    "overhead": Kind.OVERHEAD,
    "hpu_op": Kind.GPU_OTHER,
    "mtia_ccp_events": Kind.GPU_OTHER,
    "mtia_insight": Kind.GPU_OTHER,
    "collective_comm": Kind.GPU_OTHER,
    "cuda_event": Kind.GPU_OTHER,
    "cuda_profiler_range": Kind.GPU_OTHER,
    "xpu_scope_profiler": Kind.GPU_OTHER,
}
UNKNOWN = -1  # kind of a row of another category: its process's label decides at the end
WINDOW = -2  # the profiler's own span over the whole window, category "Trace"
WORK = (Kind.KERNEL, Kind.COPY, Kind.FILL)
ON_DEVICE = (*WORK, Kind.GPU_MARK, Kind.GPU_OTHER)
SPANS_AND_FLOWS = frozenset({"X", "s", "t", "f"})  # flows say the same as correlation ids
MOST_NS = 2**61  # of a stamp or duration, so that their sums fit
_phase_of = attrgetter("ph")
_thread_of = attrgetter("pid", "tid")


class EventColumns:
    """The events of one file."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.builder = builder
        self.rows = 0
        self.losses: Counter[str] = Counter()
        self.window: list[int] = []  # stamps of the profiler's own spans and end marks
        self.sessions: list[tuple[int, int]] = []  # its own spans
        self.places = Ids32()  # (process, thread) as they stand in the file, or ("device", process, device, stream)
        self.thread_names: dict[tuple[int, int], str] = {}
        self.process_names: dict[Any, str] = {}
        self.process_labels: dict[Any, str] = {}
        self._kinds = Ids32(_kind_of)
        self._names = Ids32(lambda name: builder.name("" if name is None else str(name)))
        self._copies = Ids32(lambda name: builder.name(_copy_name(name)))
        self._details = DetailColumns(builder, self._names)
        self._spans = GrowingColumns(
            start_ns=np.int64,
            dur_ns=np.int64,
            kind=np.int8,
            name=np.int32,
            place=np.int32,
            corr=np.int64,
            nesting=np.int32,
        )
        self._sized = GrowingColumns(row=np.int32, nbytes=np.int64)  # of copies and fills
        self._counters: list[tuple[int, int, int, float]] = []  # time, name, device, value
        self._halves: list[tuple[int, Any]] = []  # time and event of type B or E

    def add(self, events: list[Any]) -> bool:
        """Take events in. False, and nothing is taken: doubles do not hold their stamps, so decode those as text."""
        spans = [event for event in events if event.ph == "X"]
        rest = set(map(_phase_of, events)) - SPANS_AND_FLOWS
        others = [event for event in events if event.ph in rest] if rest else []
        ts_ns, dur_ns = ns_of([event.ts for event in spans]), ns_of([event.dur for event in spans])
        others_ns = ns_of([event.ts for event in others])
        if ts_ns is None or dur_ns is None or others_ns is None:
            return False
        if spans:
            self._add_usable(spans, ts_ns, dur_ns)
        if others:
            self._add_others(others, others_ns)
        return True

    def pair(self) -> None:
        """Make rows of what begins with one event and ends with another, once all of them are there."""
        opened: dict[Any, list[tuple[int, Any]]] = {}
        spans: list[tuple[int, int, Any]] = []
        for ns, event in sorted(self._halves, key=itemgetter(0)):
            own = opened.setdefault(_thread_of(event), [])
            if event.ph == "B":
                own.append((ns, event))
            elif own:
                start, first = own.pop()
                spans.append((start, ns - start, first))
            else:
                self.losses["events that end and never began"] += 1
        if never := sum(map(len, opened.values())):
            self.losses["events that begin and never end"] += never
        self._halves.clear()
        if spans:
            starts, durations, events = zip(*spans, strict=True)
            self._add_usable(list(events), np.array(starts, np.int64), np.array(durations, np.int64))

    def spans(self) -> dict[str, Any]:
        """All columns of spans, joined; they are given away."""
        columns = self._spans.take()
        columns["nbytes"] = np.full(self.rows, NONE, np.int64)
        sized = self._sized.take()
        columns["nbytes"][sized["row"]] = sized["nbytes"]
        return columns

    def give_tables(self, first: int, shift_ns: int) -> None:
        """Give the tables beside the spans, whose first is row `first`, to the builder."""
        self._details.give(first)
        if self._counters:
            time, name, device, value = zip(*self._counters, strict=True)
            times = np.array(time, np.int64) + shift_ns
            track = np.full(len(time), NONE)
            table = Counters.of(time_ns=times, name=name, track=track, device=device, value=value)
            self.builder.add_table("counters", table)

    def give_losses(self) -> None:
        """Tell the builder what had to be left out."""
        self.builder.losses += [Loss(what, count=count) for what, count in self.losses.items()]

    # -- spans --------------------------------------------------------------------------

    def _add_usable(self, events: list[Any], ts_ns: Ints, dur_ns: Ints) -> None:
        """Take in what has a time; the profiler's own span is the window, not a row."""
        kind = self._kinds.ids([event.cat for event in events]).astype(np.int8)
        work = np.isin(kind, WORK)
        keep = (ts_ns > -MOST_NS) & (ts_ns < MOST_NS) & (dur_ns >= 0) & (dur_ns < MOST_NS)
        # Some CUPTI versions give zero stamps: that is no time.
        keep &= (ts_ns != NONE) & ~((work | ((kind == Kind.CALL) & (dur_ns == 0))) & (ts_ns == 0))
        for what, rows in (("GPU records without a time", work), ("events without a time", ~work)):
            if lost := int((rows & ~keep).sum()):
                self.losses[what] += lost
        window = keep & (kind == WINDOW)
        if window.any():
            ends = ts_ns[window] + dur_ns[window]
            self.sessions += zip(ts_ns[window].tolist(), ends.tolist(), strict=True)
            self.window += [int(ts_ns[window].min()), int(ends.max())]
            keep &= ~window
        if not keep.all():
            events = [event for event, kept in zip(events, keep.tolist(), strict=True) if kept]
            kind, ts_ns, dur_ns = kind[keep], ts_ns[keep], dur_ns[keep]
        if events:
            self._add_spans(events, kind, ts_ns, dur_ns)

    def _add_spans(self, events: list[Any], kind: Any, ts_ns: Ints, dur_ns: Ints) -> None:
        size = len(events)
        place = self.places.ids(list(map(_thread_of, events)))
        corr, nesting = np.full(size, NONE, np.int64), np.zeros(size, np.int64)
        coarse = not (ts_ns % 1000).any()  # whole microseconds: spans often start and end together
        for one in np.flatnonzero(np.bincount(kind[kind >= 0], minlength=1)).tolist():
            if one not in _HAVE_DETAILS and not (coarse and one in _NESTED):
                continue
            rows = np.flatnonzero(kind == one)
            picked = [events[at] for at in rows.tolist()]
            raws = [event.args for event in picked]
            spans = (rows + self.rows).astype(np.int32)
            if one == Kind.OP:
                nesting[rows] = self._details.add_ops(spans, raws)
            elif one == Kind.CALL:
                corr[rows] = integers([a.correlation for a in decode_args(raws, _args.CallArgs)])
            elif one == Kind.WAIT:
                corr[rows] = self._details.add_waits(spans, picked, raws)
            elif one in WORK:
                args = decode_args(raws, _args.WorkArgs)
                self._details.add_work(spans, args)
                corr[rows] = integers([a.correlation for a in args])
                if one != Kind.KERNEL:
                    self._sized.append(row=spans, nbytes=integers([a.bytes for a in args]))
                place[rows] = self.places.ids(list(map(_stream_of, picked, args)))
            elif one in _NESTED:
                ids = decode_args(raws, _args.NestingArgs)
                nesting[rows] = integers([a.python or a.external for a in ids])
            else:
                places = decode_args(raws, _args.PlaceArgs)
                place[rows] = self.places.ids(list(map(_stream_of, picked, places)))
        names = self._names.ids([event.name for event in events])
        copies = np.flatnonzero(kind == Kind.COPY)
        if len(copies):
            names[copies] = self._copies.ids([events[at].name for at in copies.tolist()])
        self._spans.append(
            start_ns=ts_ns,
            dur_ns=dur_ns,
            kind=kind,
            name=names,
            place=place,
            corr=corr,
            nesting=np.clip(nesting, 0, 2**31 - 1),
        )
        self.rows += size

    # -- the rest -----------------------------------------------------------------------

    def _add_others(self, events: list[Any], ts_ns: Ints) -> None:
        usable = ((ts_ns != NONE) & (np.abs(ts_ns) < MOST_NS)).tolist()
        for event, ns, has_time in zip(events, ts_ns.tolist(), usable, strict=True):
            if event.ph == "M":
                self._add_label(event)
            elif event.ph in ("B", "E"):
                if has_time:
                    self._halves.append((ns, event))
                else:
                    self.losses["events without a time"] += 1
            elif event.ph == "C":
                if has_time:
                    self._add_counter(event, ns)
            elif event.ph in ("i", "I"):
                if event.name == "Record Window End" and has_time:
                    self.window.append(ns)
                elif event.name == "[memory]" and has_time:
                    self._add_memory(event, ns)
            else:
                what = f"events of type {event.ph!r}" if event.ph else "things in the list that are no events"
                self.losses[what] += 1

    def _add_label(self, event: Any) -> None:
        (args,) = decode_args([event.args], _args.LabelArgs)
        if event.name == "process_name" and args.name is not None:
            self.process_names[event.pid] = str(args.name)
        elif event.name == "process_labels" and args.labels is not None:
            self.process_labels[event.pid] = str(args.labels)
        elif event.name == "thread_name" and args.name is not None:
            text = str(args.name).strip()
            inner = re.fullmatch(r"thread -?\d+ \((.+)\)", text)
            self.thread_names[integer(event.pid), integer(event.tid)] = inner[1] if inner else text

    def _add_counter(self, event: Any, ns: int) -> None:
        try:
            values = msgspec.json.decode(event.args, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return
        for key, value in values.items():
            if isinstance(value, int | float):
                self._counters.append((ns, self._names.id(f"{event.name} {key}"), NONE, float(value)))

    def _add_memory(self, event: Any, ns: int) -> None:
        (args,) = decode_args([event.args], _args.MemoryArgs)
        on_gpu = integer(args.device_type) == 1
        device = min(max(integer(args.device_id), NONE), 2**31 - 1) if on_gpu else NONE
        for what, value in (("allocated", args.allocated), ("reserved", args.reserved)):
            if value is not None:
                name = self._names.id(f"memory {what} ({'GPU' if on_gpu else 'CPU'})")
                self._counters.append((ns, name, device, float(integer(value))))


_NESTED = (Kind.MARK, Kind.PYTHON)
_HAVE_DETAILS = (Kind.OP, Kind.CALL, Kind.WAIT, *ON_DEVICE)


def _kind_of(category: Any) -> int:
    """The kind of a category, as exporters of any age write it."""
    word = "" if category is None else str(category).lower().replace(" ", "_")
    return WINDOW if word == "trace" else int(KINDS.get(word, UNKNOWN))


def _copy_name(name: Any) -> str:
    """A copy's name as CUDA's are: `Memcpy HtoD (Host -> Device)` for ROCm's `CopyHostToDevice`; XPU writes M2D."""
    text = "" if name is None else str(name)
    rocm = re.match(r"(?:hip)?Copy(Host|Device)To(Host|Device)", text)
    if rocm:
        return f"Memcpy {rocm[1][0]}to{rocm[2][0]} ({rocm[1]} -> {rocm[2]})"
    xpu = re.match(r"(?:Memcpy )?([MHDS])2([MHDS])\b", text)
    if not xpu:
        return text
    memory = {"M": "Pageable", "H": "Pinned", "D": "Device", "S": "Managed"}
    side = {"M": "H", "S": "H"}
    source, target = xpu[1], xpu[2]
    return f"Memcpy {side.get(source, source)}to{side.get(target, target)} ({memory[source]} -> {memory[target]})"


def _stream_of(event: Any, args: Any) -> tuple[Any, ...]:
    """Where a row on a device lies: its own words, or else its process and thread."""
    device = event.pid if args.device is None else args.device
    return ("device", event.pid, device, event.tid if args.stream is None else args.stream)
