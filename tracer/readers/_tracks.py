"""Gives each row of a file its track, when all labels and calls are known.

- A row of a device belongs to the process that launched it, so that the correlation ids
  of several processes in one file are kept apart.
- A synchronisation record lies on the thread of its call, or on a thread without
  number if it has none: it is nothing that a stream did.
- A row of a category that nobody knows is on a device if its process is labelled as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tracer.readers._columns import ON_DEVICE, UNKNOWN, WORK, EventColumns
from tracer.readers._stamps import integer
from tracer.trace import NONE, Ids, Ints, Kind

_DEVICE_LABEL = re.compile(r"^(?:GPU|NPU|XPU|HPU|MTIA|TPU|Ascend)\b\D*(\d*)")
_NO_START = np.iinfo(np.int64).min
_LAST_DEVICE = 2**31 - 1  # as large a number as a table keeps; a file may name any


class TrackFinder:
    """Makes the tracks of one file."""

    def __init__(
        self,
        columns: EventColumns,
        rank: int,
        threads: Mapping[int, int],
        names: Mapping[int, str],
    ) -> None:
        self._columns = columns
        self._rank = rank
        self._threads = threads  # from torch's number of a thread to the system's
        self._names = names  # of threads, by the system's number
        self._places = list(columns.places)
        self._pids = np.array([NONE if _on_device(key) else integer(key[0]) for key in self._places], np.int64)

    def find(self, spans: dict[str, Any]) -> Ids:
        """The track of each row; also settles the kinds of rows of unknown categories."""
        self._settle_kinds(spans["kind"], spans["place"])
        owner = self._owners(spans)
        track = self._place_tracks(spans["kind"], spans["place"], owner)
        self._seat_waits(spans, track, owner)
        return track

    def profiler(self, kind: Any, place: Ids) -> int:
        """A track for what the profiler itself did, or did not."""
        return self._columns.builder.track(self._rank, self._busiest_process(kind, place), NONE, NONE, "profiler")

    def _settle_kinds(self, kind: Any, place: Ids) -> None:
        labels = self._columns.process_labels
        devices = {pid for pid, label in labels.items() if _DEVICE_LABEL.match(label)}
        labelled = np.array([key[0] in devices for key in self._places], np.bool_)
        unknown = kind == UNKNOWN
        kind[unknown] = np.where(labelled[place[unknown]], int(Kind.GPU_OTHER), int(Kind.OP))

    # -- which process a device's row belongs to ----------------------------------------

    def _owners(self, spans: dict[str, Any]) -> Ints:
        """For each row on a device, the process that launched it; NONE if that cannot be told."""
        kind, place, corr = spans["kind"], spans["place"], spans["corr"]
        calls = np.flatnonzero((kind == Kind.CALL) & (corr > 0))
        processes = np.unique(self._pids[place[calls]])
        if len(processes) <= 1:
            only = int(processes[0]) if len(processes) else self._busiest_process(kind, place)
            return np.broadcast_to(np.int64(only), len(kind))
        owner = self._owners_by_call(spans, calls, processes)
        # What no call explains belongs to whoever else uses its stream.
        for at in np.unique(place[np.isin(kind, ON_DEVICE) & (owner == NONE)]).tolist():
            here = place == at
            known, counts = np.unique(owner[here & (owner != NONE)], return_counts=True)
            if len(known):
                owner[here & (owner == NONE)] = known[counts.argmax()]
        return owner

    def _owners_by_call(self, spans: dict[str, Any], calls: Ints, processes: Ints) -> Ints:
        """The process whose call has the row's correlation id.

        Of several it is the last to call before the row began; where there is a call for each row, they take turns.
        """
        corr, start = spans["corr"], spans["start_ns"]
        rows = np.flatnonzero(np.isin(spans["kind"], (*WORK, Kind.WAIT)) & (corr > 0))
        owner = np.full(len(corr), NONE, np.int64)
        best = np.full(len(rows), _NO_START)
        for process in processes.tolist():
            own = calls[self._pids[spans["place"][calls]] == process]
            at, same = _match(corr, own, rows)
            called = np.where(start[at] <= start[rows], start[at], _NO_START + 1)
            better = same & (called > best)
            best[better] = called[better]
            owner[rows[better]] = process
        launching = np.array([_launches(name) for name in self._columns.builder.names()])
        launches = calls[launching[spans["name"][calls]]]
        work = rows[spans["kind"][rows] != Kind.WAIT]
        launches = launches[np.lexsort((start[launches], corr[launches]))]
        work = work[np.lexsort((start[work], corr[work]))]
        first, last = (np.searchsorted(corr[launches], corr[work], side) for side in ("left", "right"))
        begin, end = (np.searchsorted(corr[work], corr[work], side) for side in ("left", "right"))
        even = np.flatnonzero(last - first == end - begin)
        owner[work[even]] = self._pids[spans["place"][launches[(first + np.arange(len(work)) - begin)[even]]]]
        return owner

    def _busiest_process(self, kind: Any, place: Ids) -> int:
        """Without any call: the process with most operators, if there is one."""
        ops = place[np.isin(kind, (Kind.OP, Kind.MARK, Kind.PYTHON))]
        return int(self._pids[np.bincount(ops).argmax()]) if len(ops) else NONE

    # -- tracks -------------------------------------------------------------------------

    def _place_tracks(self, kind: Any, place: Ids, owner: Ints) -> Ids:
        owners, which = np.unique(owner, return_inverse=True) if owner.strides[0] else (owner[:1], 0)
        sides = len(owners) + 1  # 0: a thread
        key = place * sides + np.where(np.isin(kind, ON_DEVICE), which + 1, 0).astype(np.int32)
        track = np.zeros(len(self._places) * sides, np.int32)
        for used in np.flatnonzero(np.bincount(key[kind != Kind.WAIT])).tolist():
            at, side = divmod(used, sides)
            track[used] = self._stream(at, int(owners[side - 1])) if side else self._thread(at)
        return track[key]

    def _thread(self, place: int) -> int:
        pid, tid = self._places[place]
        name = self._columns.thread_names.get((integer(pid), integer(tid)), "")
        if not name and isinstance(tid, str) and not re.search(r"\d", tid):
            name = tid
        lane = self._threads.get(integer(tid), integer(tid))
        return self._columns.builder.track(self._rank, integer(pid), lane, NONE, self._names.get(lane) or name)

    def _stream(self, place: int, owner: int) -> int:
        key = self._places[place]
        if _on_device(key):
            _, pid, device, stream = key
            number = integer(device)
        else:
            pid, stream = key
            number = self._device_number(pid)
        lane = integer(stream)
        name = self._columns.thread_names.get((integer(pid), lane), "")
        if not _on_device(key):
            name = " ".join(filter(None, (self._columns.process_names.get(pid), name)))
            lane = lane if integer(pid) <= 2**16 else place  # rows of several processes share one device
        number = min(max(number, 0), _LAST_DEVICE)
        return self._columns.builder.track(self._rank, owner, lane, number, name or f"stream {lane}")

    def _device_number(self, pid: Any) -> int:
        label = _DEVICE_LABEL.match(self._columns.process_labels.get(pid, ""))
        if label and label[1]:
            return int(label[1])
        # torch_npu numbers its processes of devices so that the last five bits are the device.
        return integer(pid) % 32

    def _seat_waits(self, spans: dict[str, Any], track: Ids, owner: Ints) -> None:
        kind, corr = spans["kind"], spans["corr"]
        waits = np.flatnonzero(kind == Kind.WAIT)
        for process in np.unique(owner[waits]).tolist():
            own = waits[owner[waits] == process]
            calls = np.flatnonzero((kind == Kind.CALL) & (corr > 0))
            at, same = _match(corr, calls[self._pids[spans["place"][calls]] == process], own)
            track[own] = track[at]
            if not same.all():
                unknown = self._columns.builder.track(self._rank, process, NONE, NONE, "thread unknown")
                track[own[~same]] = unknown


def _launches(name: str) -> bool:
    """Whether a call of this name can be why a device works: it neither waits, records, asks nor allocates."""
    return re.search("Synchronize|Event|Query|Alloc|Free|Attribute", name, re.IGNORECASE) is None


def _on_device(place: Any) -> bool:
    return len(place) > 2


def _match(corr: Ints, calls: Ints, rows: Ints) -> tuple[Ints, Any]:
    """For each of `rows`, one of `calls` with its correlation id, and whether there is one."""
    if not len(calls):
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    calls = calls[np.argsort(corr[calls], kind="stable")]
    at = calls[np.minimum(np.searchsorted(corr[calls], corr[rows]), len(calls) - 1)]
    return at, corr[at] == corr[rows]
