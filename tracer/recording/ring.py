"""The ring of the last launches, in memory that outlives the program.

One file for each process, in /dev/shm. The program writes what it is about to
launch, the GPU writes which of these marks it has passed, and the parent reads
both after the program is dead, however it died: nothing of it is needed.

- `NAME.ring`: a header; one slot for each (device, stream) where the GPU leaves the
  number of the last mark that it passed; the log, two small numbers for each line;
  and the ring of operators, a record each. Both are indexed by one sequence number.
- `NAME.names`: chunks of rows that give these numbers their meaning:
  ["code", id, file, function, first line], ["place", id, code, line, kind],
  ["who", id, thread, slot], ["op", id, text], ["stack", id, [[code, line], ...]]
  innermost first; and events with their time and the last number:
  ["thread", time, number, native id, name], and those of `marks.py`.

Numbers in the log stay below 2**30: Python is twice as slow with larger ones.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tracer.chunks import append_chunk, read_chunks

MAGIC = b"TRCRING1"
SLOTS = 64
SLOT_BYTES = 64  # one cache line each: the GPU writes there
HEADER_BYTES = 4096
SHARED_BYTES = HEADER_BYTES + SLOTS * SLOT_BYTES  # what is registered with CUDA
CAPACITY = 1 << 17

LINE, OP, RETURN = 0, 1, 2  # kinds of records
NO_SLOT = 0xFFFF  # a record that no stream was marked with

_HEADER = struct.Struct("<8sIIQ")  # magic, capacity, pid, time of creation
_LAST_AT = 64  # the last sequence number that was logged
_SLOT = struct.Struct("<IIiIQ")  # landed (by the GPU), -, device, used, stream
_OP = struct.Struct("<QIiiiqHHi")
DTYPE = np.dtype(
    [
        ("seq", "<u8"),
        ("tid", "<u4"),
        ("code", "<i4"),
        ("line", "<i4"),
        ("stack", "<i4"),
        ("autograd", "<i8"),  # sequence number of the autograd node, -1 if unknown
        ("slot", "<u2"),
        ("kind", "<u2"),
        ("op", "<i4"),
    ]
)
assert _OP.size == DTYPE.itemsize


def _parts(capacity: int) -> tuple[int, int, int, int]:
    """Where the log of places, the log of who, and the operators begin, and the size of the file."""
    who = SHARED_BYTES + 4 * capacity
    ops = who + 4 * capacity
    return SHARED_BYTES, who, ops, ops + _OP.size * capacity


class Ring:
    """The writing side, in the program itself."""

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        if capacity & (capacity - 1):
            raise ValueError("the capacity must be a power of two")
        self.path = path
        self.mask = capacity - 1
        places_at, who_at, self._ops_at, size = _parts(capacity)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.ftruncate(fd, size)  # the file is sparse: pages that are never written cost nothing
        self.memory = mmap.mmap(fd, size)
        os.close(fd)
        view = memoryview(self.memory)
        self.last = view[_LAST_AT : _LAST_AT + 8].cast("Q")
        self.places = view[places_at:who_at].cast("I")
        self.who = view[who_at : self._ops_at].cast("I")
        _HEADER.pack_into(self.memory, 0, MAGIC, capacity, os.getpid(), time.monotonic_ns())
        self._names = os.open(path.with_suffix(".names"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._ids: dict[object, int] = {}
        self._slots: dict[tuple[int, int], int] = {}
        self.numbers = itertools.count(1)  # next() is atomic; 0 means: nothing landed yet

    def address(self) -> int:
        """Where the memory lies in this process."""
        return int(np.frombuffer(self.memory, np.uint8, 1).__array_interface__["data"][0])

    def slot(self, device: int, stream: int) -> int:
        """The slot of a stream, made when first asked for; NO_SLOT if all are taken."""
        found = self._slots.get((device, stream))
        if found is None:
            with self._lock:
                found = len(self._slots)
                if found >= SLOTS:
                    return NO_SLOT
                self._slots[device, stream] = found
                _SLOT.pack_into(self.memory, HEADER_BYTES + found * SLOT_BYTES, 0, 0, device, 1, stream)
        return found

    @staticmethod
    def slot_offset(slot: int) -> int:
        """Where in the memory the GPU writes for this slot."""
        return HEADER_BYTES + slot * SLOT_BYTES

    def log(self, place: int, who: int) -> int:
        """Write down a line; its sequence number, which the GPU is to write when it gets there."""
        seq = next(self.numbers)
        self.places[seq & self.mask] = place
        self.who[seq & self.mask] = who
        self.last[0] = seq
        return seq

    def put_op(self, slot: int, tid: int, code: int, line: int, stack: int, op: int, autograd: int) -> int:
        """Write down an operator; its sequence number."""
        seq = next(self.numbers)
        at = self._ops_at + (seq & self.mask) * _OP.size
        _OP.pack_into(self.memory, at, seq, tid, code, line, stack, autograd, slot, OP, op)
        self.last[0] = seq
        return seq

    def name(self, row_kind: str, key: object, *row: Any) -> int:
        """The id of a code, place, op or stack; its meaning is written when it is first seen."""
        found = self._ids.get(key)
        if found is None:
            with self._lock:
                found = self._ids.setdefault(key, len(self._ids) + 1)
                append_chunk(self._names, [[row_kind, found, *row]])
        return found

    def event(self, kind: str, *row: Any) -> None:
        """Write down something that happens rarely, with its time."""
        if os.getpid() != self._pid:
            return  # a forked child: the ring is its parent's
        with self._lock:
            append_chunk(self._names, [[kind, time.monotonic_ns(), self.last[0], *row]])

    def close(self) -> None:
        """Let go of the names; the memory goes when nothing refers to it any more."""
        os.close(self._names)


@dataclass(frozen=True, slots=True)
class Slot:
    """A stream, and the last mark that it passed."""

    slot: int
    device: int
    stream: int
    landed: int  # sequence number, 0 if none


@dataclass(frozen=True, slots=True)
class RingImage:
    """What a process left behind."""

    path: Path
    pid: int
    slots: tuple[Slot, ...]
    records: np.ndarray[Any, Any]  # DTYPE, lines and operators by sequence number
    codes: dict[int, tuple[str, str, int]]  # id -> file, function, first line
    ops: dict[int, str]
    stacks: dict[int, tuple[tuple[int, int], ...]]  # (code, line), innermost first
    threads: dict[int, str]
    events: tuple[tuple[Any, ...], ...]  # kind, monotonic ns, last sequence number, ...
    wrapped: bool  # older records were overwritten
    damaged_bytes: int

    def pending(self, slot: int) -> np.ndarray[Any, Any]:
        """Records of a stream that the GPU had not passed, oldest first."""
        seen = (self.records["slot"] != slot) | (self.records["seq"] <= self.slots[slot].landed)
        return np.delete(self.records, np.flatnonzero(seen))

    def record(self, seq: int) -> Any:
        """The record with this number, None if it was overwritten."""
        at = int(np.searchsorted(self.records["seq"], seq))
        if at < len(self.records) and int(self.records["seq"][at]) == seq:
            return self.records[at]
        return None


def read_ring(path: Path) -> RingImage:
    """Read what a process left, dead or alive. Raises ValueError for a file that is not a ring."""
    data = path.read_bytes()
    if len(data) < HEADER_BYTES or data[:8] != MAGIC:
        raise ValueError(f"{path} is not a ring of launches")
    _, capacity, pid, _ = _HEADER.unpack_from(data, 0)
    if len(data) < _parts(capacity)[-1]:
        raise ValueError(f"{path} is cut off")
    rows, damaged = read_chunks(path.with_suffix(".names"))
    named: dict[str, dict[int, Any]] = {"code": {}, "place": {}, "who": {}, "op": {}, "stack": {}, "thread": {}}
    events = []
    for kind, first, *rest in rows:
        if kind == "thread":
            named[kind][rest[1]] = str(rest[2])
        elif kind in named:
            named[kind][first] = rest
        else:
            events.append((kind, first, *rest))
    records, last = _read_records(data, capacity, named["place"], named["who"])
    slots = []
    for number in range(SLOTS):
        landed, _, device, used, stream = _SLOT.unpack_from(data, HEADER_BYTES + number * SLOT_BYTES)
        if used:
            # The GPU writes 32 bits: the newest number with these low bits is meant.
            whole = (last & ~0xFFFFFFFF) | landed
            slots.append(Slot(number, device, stream, whole if whole <= last else whole - (1 << 32)))
    return RingImage(
        path,
        pid,
        tuple(slots),
        records,
        {number: (str(file), str(function), int(line)) for number, (file, function, line) in named["code"].items()},
        {number: str(text) for number, (text,) in named["op"].items()},
        {number: tuple((code, line) for code, line in stack) for number, (stack,) in named["stack"].items()},
        named["thread"],
        tuple(events),
        last > capacity,
        damaged,
    )


def _read_records(
    data: bytes, capacity: int, places: dict[int, list[int]], whos: dict[int, list[int]]
) -> tuple[np.ndarray[Any, Any], int]:
    """All records by sequence number, and the last number."""
    places_at, who_at, ops_at, _ = _parts(capacity)
    ops = np.frombuffer(data, DTYPE, capacity, ops_at)
    ops = ops[ops["seq"] > 0]
    (last,) = struct.unpack_from("<Q", data, _LAST_AT)
    last = max(int(last), int(ops["seq"].max(initial=0)))
    seq = np.arange(max(1, last - capacity + 1), last + 1, dtype=np.uint64)
    at = (seq & np.uint64(capacity - 1)).astype(np.int64)
    place = np.frombuffer(data, np.uint32, capacity, places_at)[at]
    who = np.frombuffer(data, np.uint32, capacity, who_at)[at]
    logged = (place > 0) & ~np.isin(seq, ops["seq"])
    lines = np.zeros(int(logged.sum()), DTYPE)
    lines["seq"] = seq[logged]
    for name, column, table, field in (
        ("code", place, places, 0),
        ("line", place, places, 1),
        ("kind", place, places, 2),
        ("tid", who, whos, 0),
        ("slot", who, whos, 1),
    ):
        lines[name] = _look_up(column[logged], table, field)
    lines["stack"] = lines["op"] = lines["autograd"] = -1
    return np.sort(np.concatenate([lines, ops[ops["seq"] >= max(1, last - capacity + 1)]]), order="seq"), last


def _look_up(keys: np.ndarray[Any, Any], table: dict[int, list[int]], field: int) -> np.ndarray[Any, Any]:
    known = np.full(max([0, *table]) + 1, -1, np.int64)
    for key, row in table.items():
        known[key] = row[field]
    found: np.ndarray[Any, Any] = known[np.minimum(keys, len(known) - 1)]
    return found
