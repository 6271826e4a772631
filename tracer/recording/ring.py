"""The ring of the last launches, in memory that outlives the program.

One file for each process, in /dev/shm. The program writes what it is about to
launch, the GPU writes which of these marks it has passed, and the parent reads
both after the program is dead, however it died: nothing of it is needed.

- `NAME.ring`: a header, one slot for each (device, stream) where the GPU leaves
  the number of the last mark that it passed, and the ring of records.
- `NAME.names`: chunks of rows that give the numbers in the ring their meaning:
  ["code", id, file, function, first line], ["op", id, text],
  ["stack", id, [[code, line], ...]] innermost first; and events with their time
  and the last number: ["thread", time, number, native id, name], and those of `marks.py`.
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
_SLOT = struct.Struct("<IIiIQ")  # landed (by the GPU), -, device, used, stream
RECORD = struct.Struct("<QQIiiiiqHH")
DTYPE = np.dtype(
    [
        ("seq", "<u8"),
        ("mono_ns", "<u8"),
        ("tid", "<u4"),
        ("code", "<i4"),
        ("line", "<i4"),
        ("stack", "<i4"),
        ("op", "<i4"),
        ("autograd", "<i8"),  # sequence number of the autograd node, -1 if unknown
        ("slot", "<u2"),
        ("kind", "<u2"),
    ]
)
assert RECORD.size == DTYPE.itemsize


class Ring:
    """The writing side, in the program itself."""

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        if capacity & (capacity - 1):
            raise ValueError("the capacity must be a power of two")
        self.path = path
        self.capacity = capacity
        size = SHARED_BYTES + capacity * RECORD.size
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.ftruncate(fd, size)  # the file is sparse: pages that are never written cost nothing
        self.memory = mmap.mmap(fd, size)
        os.close(fd)
        _HEADER.pack_into(self.memory, 0, MAGIC, capacity, os.getpid(), time.monotonic_ns())
        self._names = os.open(path.with_suffix(".names"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._ids: dict[object, int] = {}
        self._texts: dict[int, str] = {}
        self._slots: dict[tuple[int, int], int] = {}
        self.numbers = itertools.count(1)  # next() is atomic; 0 means: nothing landed yet
        self.last = 0

    def address(self) -> int:
        """Where the memory lies in this process."""
        return int(np.frombuffer(self.memory, np.uint8, 1).__array_interface__["data"][0])

    def slot(self, device: int, stream: int) -> int:
        """The slot of a stream, made when first asked for; -1 if all are taken."""
        found = self._slots.get((device, stream))
        if found is None:
            with self._lock:
                found = len(self._slots)
                if found >= SLOTS:
                    return -1
                self._slots[device, stream] = found
                _SLOT.pack_into(self.memory, HEADER_BYTES + found * SLOT_BYTES, 0, 0, device, 1, stream)
        return found

    @staticmethod
    def slot_offset(slot: int) -> int:
        """Where in the memory the GPU writes for this slot."""
        return HEADER_BYTES + slot * SLOT_BYTES

    def put(
        self, kind: int, slot: int, tid: int, code: int, line: int, stack: int = -1, op: int = -1, autograd: int = -1
    ) -> int:
        """Write one record; its sequence number, which the GPU is to write when it gets there."""
        seq = self.last = next(self.numbers)
        at = SHARED_BYTES + (seq & (self.capacity - 1)) * RECORD.size
        RECORD.pack_into(
            self.memory, at, seq, time.monotonic_ns(), tid, code, line, stack, op, autograd, slot & 0xFFFF, kind
        )
        return seq

    def name(self, row_kind: str, key: object, *row: Any) -> int:
        """The id of a code, op or stack; its meaning is written when it is first seen."""
        found = self._ids.get(key)
        if found is None:
            with self._lock:
                found = self._ids.setdefault(key, len(self._ids))
                append_chunk(self._names, [[row_kind, found, *row]])
                if row_kind == "op":
                    self._texts[found] = row[0]
        return found

    def text(self, op: int) -> str:
        """What an op's id stands for."""
        return self._texts[op]

    def event(self, kind: str, *row: Any) -> None:
        """Write down something that happens rarely, with its time."""
        if os.getpid() != self._pid:
            return  # a forked child: the ring is its parent's
        with self._lock:
            append_chunk(self._names, [[kind, time.monotonic_ns(), self.last, *row]])

    def close(self) -> None:
        """Forget the names file; the memory stays mapped, since the GPU may still write to it."""
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
    records: np.ndarray[Any, Any]  # DTYPE, by sequence number
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
    if len(data) < SHARED_BYTES or data[:8] != MAGIC:
        raise ValueError(f"{path} is not a ring of launches")
    _, capacity, pid, _ = _HEADER.unpack_from(data, 0)
    records = np.frombuffer(data, DTYPE, capacity, SHARED_BYTES)
    records = np.sort(records[records["seq"] > 0], order="seq")
    newest = int(records["seq"][-1]) if len(records) else 0
    slots = []
    for number in range(SLOTS):
        landed, _, device, used, stream = _SLOT.unpack_from(data, HEADER_BYTES + number * SLOT_BYTES)
        if used:
            # The GPU writes 32 bits: the newest number with these low bits is meant.
            whole = (newest & ~0xFFFFFFFF) | landed
            slots.append(Slot(number, device, stream, whole if whole <= newest else whole - (1 << 32)))
    rows, damaged = read_chunks(path.with_suffix(".names"))
    named: dict[str, dict[int, Any]] = {"code": {}, "op": {}, "stack": {}, "thread": {}}
    events = []
    for kind, first, *rest in rows:
        if kind == "thread":
            named[kind][rest[1]] = str(rest[2])
        elif kind == "code":
            named[kind][first] = (str(rest[0]), str(rest[1]), int(rest[2]))
        elif kind == "stack":
            named[kind][first] = tuple((int(code), int(line)) for code, line in rest[0])
        elif kind in named:
            named[kind][first] = str(rest[0])
        else:
            events.append((kind, first, *rest))
    return RingImage(
        path,
        pid,
        tuple(slots),
        records,
        named["code"],
        named["op"],
        named["stack"],
        named["thread"],
        tuple(events),
        bool(len(records)) and int(records["seq"][0]) > 1,
        damaged,
    )
