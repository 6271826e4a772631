"""Events become columns, chunk by chunk; rows get their tracks at the end, when all labels and calls are known.

- What a row is, its category says, never its process or its arguments: a synchronisation
  record or a Triton call with a `stream` is not GPU work, and a Python thread can be process 0.
- A device's row belongs to the process that launched it, so that correlation ids of several
  processes in one file are kept apart.
- A synchronisation record lies on the thread of its call, or on a thread without number if there is none.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracer.building import TraceBuilder
from tracer.readers import _events
from tracer.readers._events import NO_ARGS, Event, integer, integers
from tracer.trace import (
    NONE,
    Collectives,
    Counters,
    Ids,
    Ints,
    Kind,
    Loss,
    OpDetails,
    WaitDetails,
    WorkDetails,
)

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
_UNKNOWN = -1  # kind of a row that its process's label decides at the end
_ON_DEVICE = (Kind.KERNEL, Kind.COPY, Kind.FILL, Kind.GPU_MARK, Kind.GPU_OTHER)
_LAUNCHED = (Kind.KERNEL, Kind.COPY, Kind.FILL)
_DTYPE_BYTES = {"double": 8, "float": 4, "int": 4, "long": 8, "half": 2, "bfloat16": 2, "bool": 1, "byte": 1, "char": 1}
_DEVICE_LABEL = re.compile(r"^(?:GPU|NPU|XPU|HPU|MTIA|TPU|Ascend)\b\D*(\d*)")


class EventColumns:
    """Collects the events of one file."""

    def __init__(self, builder: TraceBuilder, threads: Mapping[int, int], names: Mapping[int, str]) -> None:
        self.builder = builder
        self._threads = threads
        self._known_names = names
        self.losses: Counter[str] = Counter()
        self.window: list[int] = []  # stamps of the profiler's own span and end mark
        self.rows = 0
        self._names = _NameIds(builder)
        self._places: dict[Any, int] = {}  # (process, thread) as they stand in the file, or (device, stream)
        self._parts: defaultdict[str, list[Any]] = defaultdict(list)
        self._ops: list[dict[str, Any]] = []
        self._work: list[dict[str, Any]] = []
        self._waits: list[dict[str, Any]] = []
        self._collectives: list[dict[str, Any]] = []
        self._counters: list[dict[str, Any]] = []
        self.thread_names: dict[tuple[int, int], str] = {}
        self.process_names: dict[Any, str] = {}
        self.process_labels: dict[Any, str] = {}

    # -- taking events in ---------------------------------------------------------------

    def add(self, events: list[Event], ts_ns: Ints | None = None, dur_ns: Ints | None = None) -> None:
        """A chunk of events; with their stamps if those are no exact doubles."""
        groups: defaultdict[tuple[str | None, str | None], list[int]] = defaultdict(list)
        for at, event in enumerate(events):
            groups[event.ph, event.cat].append(at)
        for (phase, category), rows in groups.items():
            if phase == "X":
                picked = [events[at] for at in rows]
                times = _times(picked, rows, ts_ns, dur_ns)
                self._add_spans(category, picked, *times)
            elif phase == "M":
                for at in rows:
                    self._add_label(events[at])
            elif phase in ("C", "i", "I"):
                picked = [events[at] for at in rows]
                self._add_instants(picked, _times(picked, rows, ts_ns, dur_ns)[0])
            elif phase is None:
                self.losses["events without a phase"] += len(rows)

    def _add_spans(self, category: str | None, events: list[Event], ts_ns: Ints, dur_ns: Ints) -> None:
        category = (category or "").lower().replace(" ", "_")
        if category == WINDOW:
            self.window += [int(ts_ns.min()), int((ts_ns + np.maximum(dur_ns, 0)).max())]
            return
        kind = KINDS.get(category, _UNKNOWN)
        keep = _usable(kind, ts_ns, dur_ns)
        if not keep.all():
            what = "GPU records without a time" if kind in _LAUNCHED else "events without a time"
            self.losses[what] += int((~keep).sum())
            events = [event for event, kept in zip(events, keep) if kept]
            ts_ns, dur_ns = ts_ns[keep], dur_ns[keep]
        if not events:
            return
        first = self.rows
        self.rows += len(events)
        spans = np.arange(first, self.rows, dtype=np.int32)
        args = [event.args or NO_ARGS for event in events]
        columns: dict[str, Any] = {
            "start_ns": ts_ns,
            "dur_ns": dur_ns,
            "kind": np.full(len(events), kind, np.int8),
            "name": np.array([self._names[event.name] for event in events], np.int32),
            "place": self._place_ids(kind, events, args),
            "corr": np.full(len(events), NONE, np.int64),
            "nbytes": np.full(len(events), NONE, np.int64),
        }
        if kind in (Kind.CALL, Kind.WAIT, *_LAUNCHED):
            columns["corr"] = integers([a.correlation for a in args])
        if kind in (Kind.COPY, Kind.FILL):
            columns["nbytes"] = integers([a.bytes for a in args])
        for key, column in columns.items():
            self._parts[key].append(column)
        if kind == Kind.OP:
            self._add_op_details(spans, args)
        elif kind in _LAUNCHED:
            self._add_work_details(spans, args)
        elif kind == Kind.WAIT:
            self._add_wait_details(spans, events, args)

    def _place_ids(self, kind: int, events: list[Event], args: list[Any]) -> Ids:
        """Ids of rows of the file's timeline: a stream of a device, or a thread of a process."""
        places = self._places
        keys: Any
        if kind in _ON_DEVICE:
            keys = [
                ("gpu", e.pid, e.pid if a.device is None else a.device, e.tid if a.stream is None else a.stream)
                for e, a in zip(events, args)
            ]
        else:
            keys = [(e.pid, e.tid) for e in events]
        return np.array([places.setdefault(key, len(places)) for key in keys], np.int32)

    def _add_op_details(self, spans: Ids, args: list[Any]) -> None:
        name = self.builder.name
        self._ops.append(
            {
                "span": spans,
                "sequence": integers([a.sequence for a in args]),
                "forward_lane": integers([a.forward for a in args]),
                "shapes": np.array([_text_id(name, a.dims) for a in args], np.int32),
            }
        )

    def _add_work_details(self, spans: Ids, args: list[Any]) -> None:
        name = self.builder.name
        self._work.append(
            {
                "span": spans,
                "grid": np.array([_dims_id(name, a.grid) for a in args], np.int32),
                "block": np.array([_dims_id(name, a.block) for a in args], np.int32),
                "graph_node": _no_zero(integers([a.graph_node for a in args])),
                "peer": integers([a.to_device for a in args]),
            }
        )
        rows = [at for at, a in enumerate(args) if a.collective is not None]
        if rows:
            picked = [args[at] for at in rows]
            self._collectives.append(
                {
                    "span": spans[rows],
                    "name": np.array([name(a.collective) for a in picked], np.int32),
                    "group": np.array([name(str(a.group or "")) for a in picked], np.int32),
                    "sequence": integers([a.seq for a in picked]),
                    "nbytes": np.array([_message_bytes(a) for a in picked], np.int64),
                }
            )

    def _add_wait_details(self, spans: Ids, events: list[Event], args: list[Any]) -> None:
        def stream(a: Any) -> int:
            # "Stream Wait Event" names the stream that waits, the other kinds the stream waited for.
            return integer(a.stream)

        self._waits.append(
            {
                "span": spans,
                "stream": np.array([stream(a) for a in args], np.int64),
                "source_stream": integers([a.wait_stream for a in args]),
                "source_corr": integers([a.wait_corr for a in args]),
                "device": integers([e.pid if a.device is None else a.device for e, a in zip(events, args)]),
            }
        )

    def _add_label(self, event: Event) -> None:
        args = event.args or NO_ARGS
        if event.name == "process_name" and args.name is not None:
            self.process_names[event.pid] = str(args.name)
        elif event.name == "process_labels" and args.labels is not None:
            self.process_labels[event.pid] = str(args.labels)
        elif event.name == "thread_name" and args.name is not None:
            text = str(args.name).strip()
            inner = re.fullmatch(r"thread -?\d+ \((.+)\)", text)
            self.thread_names[integer(event.pid), integer(event.tid)] = inner[1] if inner else text

    def _add_instants(self, events: list[Event], ts_ns: Ints) -> None:
        for event, ns in zip(events, ts_ns.tolist()):
            if event.name == "Record Window End":
                self.window.append(ns)
        rows = [at for at, e in enumerate(events) if e.name == "[memory]" and e.args and e.args.allocated is not None]
        if not rows:
            return
        for what in ("allocated", "reserved"):
            self._counters.append(
                {
                    "time_ns": ts_ns[rows],
                    "name": np.array([self.builder.name(_memory_name(what, events[at].args)) for at in rows], np.int32),
                    "device": integers([_device_of(events[at].args) for at in rows]),
                    "value": np.array([getattr(events[at].args, what) or 0 for at in rows], np.float64),
                }
            )

    # -- giving tables out --------------------------------------------------------------

    def finish(self, rank: int, shift_ns: int) -> None:
        """Give everything to the builder, with absolute times."""
        if not self.rows:
            return
        parts = {key: np.concatenate(columns) for key, columns in self._parts.items()}
        self._parts.clear()
        kind = parts["kind"]
        places = list(self._places)
        self._name_unknown_kinds(kind, parts["place"], places)
        owner = self._owners(parts, places)
        track = self._track_ids(rank, kind, parts["place"], places, owner)
        self._seat_waits(rank, parts, track, places, owner)
        rows = self.builder.add_spans(
            parts["start_ns"] + shift_ns, parts["dur_ns"], kind, parts["name"], track, parts["corr"], parts["nbytes"]
        )
        self._finish_tables(rows.start, shift_ns)
        ends = parts["start_ns"] + parts["dur_ns"]
        if self.window:
            self.builder.meta["profiler_span"] = "true"
            low, high = min(*self.window, int(parts["start_ns"].min())), max(*self.window, int(ends.max()))
            window = (low + shift_ns, high + shift_ns)
            known = self.builder.window_ns or window
            self.builder.window_ns = (min(known[0], window[0]), max(known[1], window[1]))

    def _name_unknown_kinds(self, kind: Any, place: Ids, places: list[Any]) -> None:
        """Rows of a category that we do not know: of a device if their process is labelled as one."""
        devices = {pid for pid, label in self.process_labels.items() if _DEVICE_LABEL.match(label)}
        is_device = np.array([key[0] in devices for key in places] or [False], np.bool_)
        unknown = kind == _UNKNOWN
        kind[unknown] = np.where(is_device[place[unknown]], int(Kind.GPU_OTHER), int(Kind.OP))

    def _owners(self, parts: dict[str, Any], places: list[Any]) -> Ints:
        """For each row on a device, the process that launched it; NONE if no process can be told."""
        kind, corr, start = parts["kind"], parts["corr"], parts["start_ns"]
        pids = np.array([NONE if len(key) > 2 else integer(key[0]) for key in places] or [NONE], np.int64)
        calls = np.flatnonzero((kind == Kind.CALL) & (corr > 0))
        call_pids = pids[parts["place"][calls]]
        processes = np.unique(call_pids)
        owner = np.full(len(kind), NONE, np.int64)
        if len(processes) <= 1:
            owner[:] = processes[0] if len(processes) else self._only_process(places, kind, parts["place"])
            return owner
        # Several processes: the one whose call has this correlation id; if several have, the last that started before.
        rows = np.flatnonzero(np.isin(kind, (*_LAUNCHED, Kind.WAIT)))
        best = np.full(len(rows), np.iinfo(np.int64).min)
        for process in processes.tolist():
            own = calls[call_pids == process]
            own = own[np.argsort(corr[own], kind="stable")]
            at = own[np.minimum(np.searchsorted(corr[own], corr[rows]), len(own) - 1)]
            fits = corr[at] == corr[rows]
            lateness = np.where(start[at] <= start[rows], start[at], np.iinfo(np.int64).min + 1)
            better = fits & (lateness > best)
            best[better] = lateness[better]
            owner[rows[better]] = process
        # What no call explains belongs to whoever else uses its stream.
        for at in np.unique(parts["place"][np.isin(kind, _ON_DEVICE) & (owner == NONE)]).tolist():
            here = parts["place"] == at
            known = owner[here & (owner != NONE)]
            if len(known):
                values, counts = np.unique(known, return_counts=True)
                owner[here & (owner == NONE)] = values[counts.argmax()]
        return owner

    def _only_process(self, places: list[Any], kind: Any, place: Ids) -> int:
        """Without any call: the process with most operators, if there is one."""
        ops = place[np.isin(kind, (Kind.OP, Kind.MARK, Kind.PYTHON))]
        if not len(ops):
            return NONE
        return integer(places[int(np.bincount(ops).argmax())][0])

    def _track_ids(self, rank: int, kind: Any, place: Ids, places: list[Any], owner: Ints) -> Ids:
        """The builder's id of each row's track; synchronisation records get theirs from their calls."""
        owners, which = np.unique(owner, return_inverse=True)
        on_device = np.isin(kind, _ON_DEVICE)
        key = place.astype(np.int64) * (len(owners) + 1) + np.where(on_device, which + 1, 0)
        seated = kind != Kind.WAIT
        track = np.zeros(len(places) * (len(owners) + 1), np.int32)
        for used in np.flatnonzero(np.bincount(key[seated])).tolist():
            at, side = divmod(used, len(owners) + 1)
            track[used] = self._track(rank, places[at], int(owners[side - 1]) if side else None)
        return track[key]

    def _track(self, rank: int, key: Any, owner: int | None) -> int:
        """The id of one track; `owner` is the process that a device's track belongs to, None for a thread."""
        if len(key) > 2:
            _, pid, device, stream = key
            name = self.thread_names.get((integer(pid), integer(stream)), "") or f"stream {integer(stream)}"
            return self.builder.track(
                rank, NONE if owner is None else owner, integer(stream), max(integer(device), 0), name
            )
        pid, tid = key
        name = self.thread_names.get((integer(pid), integer(tid)), "")
        if owner is not None:
            return self.builder.track(rank, owner, integer(tid), self._device_number(pid), name or str(tid))
        if isinstance(tid, str) and not re.search(r"\d", tid):
            name = name or tid
        lane = self._threads.get(integer(tid), integer(tid))
        return self.builder.track(rank, integer(pid), lane, NONE, self._known_names.get(lane) or name)

    def _device_number(self, pid: Any) -> int:
        label = _DEVICE_LABEL.match(self.process_labels.get(pid, ""))
        if label and label[1]:
            return int(label[1])
        # torch_npu numbers its device processes so that the last five bits are the device.
        return integer(pid) % 32 if integer(pid) > 2**16 else max(integer(pid), 0)

    def _seat_waits(self, rank: int, parts: dict[str, Any], track: Ids, places: list[Any], owner: Ints) -> None:
        """Put each synchronisation record on the thread of its call."""
        kind, corr = parts["kind"], parts["corr"]
        waits = np.flatnonzero(kind == Kind.WAIT)
        pids = np.array([NONE if len(key) > 2 else integer(key[0]) for key in places] or [NONE], np.int64)
        for process in np.unique(owner[waits]).tolist():
            own = waits[owner[waits] == process]
            track[own] = self.builder.track(rank, process, NONE, NONE, "thread unknown")
            calls = np.flatnonzero((kind == Kind.CALL) & (corr > 0) & (pids[parts["place"]] == process))
            if not len(calls):
                continue
            calls = calls[np.argsort(corr[calls], kind="stable")]
            at = calls[np.minimum(np.searchsorted(corr[calls], corr[own]), len(calls) - 1)]
            same = corr[at] == corr[own]
            track[own[same]] = track[at[same]]

    def _finish_tables(self, first: int, shift_ns: int) -> None:
        tables = (
            ("ops", OpDetails, self._ops),
            ("work", WorkDetails, self._work),
            ("waits", WaitDetails, self._waits),
            ("collectives", Collectives, self._collectives),
        )
        for attribute, table, parts in tables:
            if parts:
                columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
                columns["span"] = columns["span"] + first
                self.builder.add_table(attribute, table.of(**columns))
        for part in self._counters:
            part["time_ns"] = part["time_ns"] + shift_ns
            self.builder.add_table("counters", Counters.of(track=np.full(len(part["name"]), NONE), **part))
        for what, count in self.losses.items():
            self.builder.losses.append(Loss(what, count=count))


class _NameIds(dict[Any, int]):
    """From a name to its id, asking the builder the first time."""

    def __init__(self, builder: TraceBuilder) -> None:
        self.builder = builder

    def __missing__(self, name: Any) -> int:
        found = self[name] = self.builder.name("" if name is None else str(name))
        return found


def _times(events: list[Event], rows: list[int], ts_ns: Ints | None, dur_ns: Ints | None) -> tuple[Ints, Ints]:
    if ts_ns is not None and dur_ns is not None:
        return ts_ns[rows], dur_ns[rows]
    return _events.ns_of_numbers([e.ts for e in events]), _events.ns_of_numbers([e.dur for e in events])


def _usable(kind: int, ts_ns: Ints, dur_ns: Ints) -> Any:
    if kind in _LAUNCHED:
        # Some CUPTI versions give zero stamps: that is no time.
        return (ts_ns > 0) & (dur_ns >= 0)
    return (ts_ns != NONE) & (dur_ns >= 0)


def _text_id(name: Any, raw: Any) -> int:
    """The id of a JSON value's text; NONE without one."""
    text = bytes(raw)
    return NONE if text in (b"", b"null") else int(name(text.decode("utf-8", "replace")))


def _dims_id(name: Any, raw: Any) -> int:
    """The id of "132x1x1" for [132, 1, 1]; NONE without one."""
    sizes = re.findall(rb"\d+", bytes(raw))
    return int(name(b"x".join(sizes).decode())) if sizes else NONE


def _no_zero(column: Ints) -> Ints:
    column[column == 0] = NONE
    return column


def _message_bytes(args: Any) -> int:
    size = _DTYPE_BYTES.get(str(args.dtype).lower(), 0)
    count = integer(args.elements)
    return count * size if size and count >= 0 else NONE


def _memory_name(what: str, args: Any) -> str:
    return f"memory {what} ({'GPU' if integer(args.device_type) == 1 else 'CPU'})"


def _device_of(args: Any) -> int:
    return integer(args.device_id) if integer(args.device_type) == 1 else NONE
