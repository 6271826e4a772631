"""Events become columns, batch by batch: what a row is, its category says, never its process or arguments.

A synchronisation record or a Triton call with a `stream` is not GPU work, and a Python
thread can be process 0. Which track a row belongs to is settled at the end (`_tracks.py`).
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from tracer.building import TraceBuilder
from tracer.readers import _events
from tracer.readers._events import Batch, Event, Raw, TextEvent, decode_args, integer, integers
from tracer.trace import NONE, Collectives, Counters, Ids, Ints, Kind, Loss, OpDetails, Table, WaitDetails, WorkDetails

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
WINDOW = "trace"  # category of the profiler's own span over the whole window
UNKNOWN = -1  # kind of a row that its process's label decides at the end
WORK = (Kind.KERNEL, Kind.COPY, Kind.FILL)
ON_DEVICE = (*WORK, Kind.GPU_MARK, Kind.GPU_OTHER)
FLOWS = ("s", "t", "f")
MOST_NS = 2**61  # of a stamp or duration, so that their sums fit
_DTYPE_BYTES = {"double": 8, "float": 4, "int": 4, "long": 8, "half": 2, "bfloat16": 2, "bool": 1, "byte": 1, "char": 1}
_TABLES: dict[str, type[Table]] = {
    "ops": OpDetails,
    "work": WorkDetails,
    "waits": WaitDetails,
    "collectives": Collectives,
    "counters": Counters,
}
_kind_of = attrgetter("ph", "cat")
_thread_of = attrgetter("pid", "tid")
AnyEvent = Event | TextEvent


class EventColumns:
    """The events of one file."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.builder = builder
        self.rows = 0
        self.losses: Counter[str] = Counter()
        self.window: list[int] = []  # stamps of the profiler's own span and end mark
        self.places = _Numbers()  # (process, thread) as they stand in the file, or (_, process, device, stream)
        self.thread_names: dict[tuple[int, int], str] = {}
        self.process_names: dict[Any, str] = {}
        self.process_labels: dict[Any, str] = {}
        self._names = _NameIds(builder)
        self._texts = _TextIds(builder)
        self._parts: defaultdict[str, list[Any]] = defaultdict(list)
        self._details: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    def add(self, batch: Batch) -> None:
        """Take events in."""
        groups: defaultdict[Any, list[int]] = defaultdict(list)
        for at, key in enumerate(map(_kind_of, batch.events)):
            groups[key].append(at)
        for (phase, category), rows in groups.items():
            if phase in FLOWS:
                continue  # correlation ids say the same
            events = [batch.events[at] for at in rows]
            if phase == "X":
                self._add_spans(category, events, *_times(batch, events, rows))
            elif phase == "M":
                self._add_labels(events)
            elif phase == "C":
                self._add_counters(events, _times(batch, events, rows)[0])
            elif phase in ("i", "I"):
                self._add_instants(events, _times(batch, events, rows)[0])
            else:
                self.losses[f"events of type {phase!r}" if phase else "things in the list that are no events"] += len(
                    rows
                )

    def spans(self) -> dict[str, Any]:
        """All columns of spans, joined; they are given away."""
        return {key: np.concatenate(self._parts.pop(key)) for key in list(self._parts)}

    def give_details(self, first: int, shift_ns: int) -> None:
        """Give the tables beside the spans, whose first is row `first`, to the builder."""
        for attribute, parts in self._details.items():
            columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
            if "span" in columns:
                columns["span"] = columns["span"] + np.int32(first)
            else:
                columns["time_ns"] = columns["time_ns"] + shift_ns
            self.builder.add_table(attribute, _TABLES[attribute].of(**columns))
        self._details.clear()

    # -- spans --------------------------------------------------------------------------

    def _add_spans(self, category: str | None, events: list[AnyEvent], ts_ns: Ints, dur_ns: Ints) -> None:
        category = (category or "").lower().replace(" ", "_")
        kind = KINDS.get(category, UNKNOWN)
        keep = _usable(kind, ts_ns, dur_ns)
        if not keep.all():
            self.losses["GPU records without a time" if kind in WORK else "events without a time"] += int((~keep).sum())
            events = [event for event, kept in zip(events, keep.tolist(), strict=True) if kept]
            ts_ns, dur_ns = ts_ns[keep], dur_ns[keep]
        if not events:
            return
        if category == WINDOW:
            self.window += [int(ts_ns.min()), int((ts_ns + dur_ns).max())]
            return
        spans = np.arange(self.rows, self.rows + len(events), dtype=np.int32)
        self.rows += len(events)
        nothing = np.full(len(events), NONE, np.int64)
        columns: dict[str, Any] = {"start_ns": ts_ns, "dur_ns": dur_ns, "kind": np.full(len(events), kind, np.int8)}
        columns["name"] = _ids(map(self._names.__getitem__, [e.name for e in events]), len(events))
        raws = [e.args for e in events]
        place: Any = map(_thread_of, events)
        corr = nbytes = nothing
        if kind == Kind.OP:
            self._add_op_details(spans, raws)
        elif kind == Kind.CALL:
            corr = integers([a.correlation for a in decode_args(raws, _events.CallArgs)])
        elif kind == Kind.WAIT:
            corr = self._add_wait_details(spans, events, raws)
        elif kind in WORK:
            args = decode_args(raws, _events.WorkArgs)
            corr = integers([a.correlation for a in args])
            if kind != Kind.KERNEL:
                nbytes = integers([a.bytes for a in args])
            self._add_work_details(spans, args)
            place = map(_stream_of, events, args)
        elif kind in ON_DEVICE:
            place = map(_stream_of, events, decode_args(raws, _events.PlaceArgs))
        columns |= {"place": _ids(map(self.places.__getitem__, place), len(events)), "corr": corr, "nbytes": nbytes}
        for key, column in columns.items():
            self._parts[key].append(column)

    def _add_op_details(self, spans: Ids, raws: list[Raw]) -> None:
        args = decode_args(raws, _events.OpArgs)
        sequence = integers([a.sequence for a in args])
        forward = integers([a.forward for a in args])
        shapes = _ids((self._texts[bytes(a.dims)] for a in args), len(args))
        said = np.flatnonzero((sequence != NONE) | (forward != NONE) | (shapes != NONE))
        columns = {"span": spans, "sequence": sequence, "forward_lane": forward, "shapes": shapes}
        self._details["ops"].append({key: column[said] for key, column in columns.items()})

    def _add_wait_details(self, spans: Ids, events: list[AnyEvent], raws: list[Raw]) -> Ints:
        args = decode_args(raws, _events.WaitArgs)
        self._details["waits"].append(
            {
                "span": spans,
                "stream": integers([a.stream for a in args]),
                "source_stream": integers([a.wait_stream for a in args]),
                "source_corr": integers([a.wait_corr for a in args]),
                "device": integers(
                    [e.pid if a.device is None else a.device for e, a in zip(events, args, strict=True)]
                ),
            }
        )
        return integers([a.correlation for a in args])

    def _add_work_details(self, spans: Ids, args: list[_events.WorkArgs]) -> None:
        node = integers([a.graph_node for a in args])
        node[node == 0] = NONE
        self._details["work"].append(
            {
                "span": spans,
                "grid": _ids((self._texts[bytes(a.grid)] for a in args), len(args)),
                "block": _ids((self._texts[bytes(a.block)] for a in args), len(args)),
                "graph_node": node,
                "peer": integers([a.to_device for a in args]),
            }
        )
        rows = [at for at, a in enumerate(args) if a.collective is not None]
        if not rows:
            return
        picked = [args[at] for at in rows]
        self._details["collectives"].append(
            {
                "span": spans[rows],
                "name": _ids((self._names[a.collective] for a in picked), len(rows)),
                "group": _ids((self._names[str(a.group or "")] for a in picked), len(rows)),
                "sequence": integers([a.seq for a in picked]),
                "nbytes": np.array([_message_bytes(a) for a in picked], np.int64),
            }
        )

    # -- the rest -----------------------------------------------------------------------

    def _add_labels(self, events: list[AnyEvent]) -> None:
        for event, args in zip(events, decode_args([e.args for e in events], _events.LabelArgs), strict=True):
            if event.name == "process_name" and args.name is not None:
                self.process_names[event.pid] = str(args.name)
            elif event.name == "process_labels" and args.labels is not None:
                self.process_labels[event.pid] = str(args.labels)
            elif event.name == "thread_name" and args.name is not None:
                text = str(args.name).strip()
                inner = re.fullmatch(r"thread -?\d+ \((.+)\)", text)
                self.thread_names[integer(event.pid), integer(event.tid)] = inner[1] if inner else text

    def _add_counters(self, events: list[AnyEvent], ts_ns: Ints) -> None:
        rows = []
        for event, ns in zip(events, ts_ns.tolist(), strict=True):
            try:
                values = msgspec.json.decode(event.args, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError):
                continue
            for key, value in values.items():
                if isinstance(value, int | float) and ns != NONE and abs(ns) < MOST_NS:
                    rows.append((ns, self._names[f"{event.name} {key}"], NONE, float(value)))
        self._add_counter_rows(rows)

    def _add_instants(self, events: list[AnyEvent], ts_ns: Ints) -> None:
        self.window += [
            ns
            for event, ns in zip(events, ts_ns.tolist(), strict=True)
            if event.name == "Record Window End" and 0 < ns < MOST_NS
        ]
        args = decode_args([e.args for e in events], _events.MemoryArgs)
        rows = []
        for event, memory, ns in zip(events, args, ts_ns.tolist(), strict=True):
            if event.name == "[memory]" and memory.allocated is not None and 0 < ns < MOST_NS:
                on_gpu = integer(memory.device_type) == 1
                device = integer(memory.device_id) if on_gpu else NONE
                for what, value in (("allocated", memory.allocated), ("reserved", memory.reserved)):
                    name = self._names[f"memory {what} ({'GPU' if on_gpu else 'CPU'})"]
                    rows.append((ns, name, device, float(integer(value))))
        self._add_counter_rows(rows)

    def _add_counter_rows(self, rows: list[tuple[int, int, int, float]]) -> None:
        if rows:
            time, name, device, value = zip(*rows, strict=True)
            self._details["counters"].append(
                {
                    "time_ns": np.array(time, np.int64),
                    "name": np.array(name, np.int32),
                    "track": np.full(len(rows), NONE, np.int32),
                    "device": integers(list(device)).clip(NONE, 2**31 - 1),
                    "value": np.array(value, np.float64),
                }
            )

    def give_losses(self) -> None:
        """Tell the builder what had to be left out."""
        self.builder.losses += [Loss(what, count=count) for what, count in self.losses.items()]


class _Numbers(dict[Any, int]):
    """Numbers things in the order they come."""

    def __missing__(self, key: Any) -> int:
        found = self[key] = len(self)
        return found


class _NameIds(dict[Any, int]):
    """From a name to its id; asks the builder the first time."""

    def __init__(self, builder: TraceBuilder) -> None:
        super().__init__()
        self._builder = builder

    def __missing__(self, name: Any) -> int:
        found = self[name] = self._builder.name("" if name is None else str(name))
        return found


class _TextIds(dict[bytes, int]):
    """From a JSON value's text to the id of a short form: `132x1x1` for three sizes, `[[32, 128], []]` for the rest."""

    def __init__(self, builder: TraceBuilder) -> None:
        super().__init__({b"": NONE, b"null": NONE})
        self._builder = builder

    def __missing__(self, text: bytes) -> int:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text.decode("utf-8", "replace")
        flat = isinstance(value, list) and len(value) == 3 and all(isinstance(size, int) for size in value)
        short = "x".join(map(str, value)) if flat else value if isinstance(value, str) else json.dumps(value)
        found = self[text] = self._builder.name(short)
        return found


def _ids(values: Any, size: int) -> Ids:
    return np.fromiter(values, np.int32, size)


def _stream_of(event: AnyEvent, args: Any) -> tuple[Any, ...]:
    """Where a row on a device lies: its own words, or else its process and thread."""
    device = event.pid if args.device is None else args.device
    return ("device", event.pid, device, event.tid if args.stream is None else args.stream)


def _times(batch: Batch, events: Sequence[Any], rows: list[int]) -> tuple[Ints, Ints]:
    if batch.ts_ns is not None and batch.dur_ns is not None:
        return batch.ts_ns[rows], batch.dur_ns[rows]
    return _events.ns_of_numbers([e.ts for e in events]), _events.ns_of_numbers([e.dur for e in events])


def _usable(kind: int, ts_ns: Ints, dur_ns: Ints) -> Any:
    usable = (ts_ns > -MOST_NS) & (ts_ns < MOST_NS) & (dur_ns >= 0) & (dur_ns < MOST_NS)
    # Some CUPTI versions give zero stamps: that is no time.
    return usable & (ts_ns > 0) if kind in WORK else usable & (ts_ns != NONE)


def _message_bytes(args: _events.WorkArgs) -> int:
    size = _DTYPE_BYTES.get(str(args.dtype).lower(), 0)
    count = integer(args.elements)
    return count * size if size and 0 <= count < 2**50 else NONE
