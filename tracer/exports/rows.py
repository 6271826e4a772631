"""Rows of a Perfetto timeline as columns, and their packets.

- A row is a sequence of packets of its own, so that what all its events share (the
  track, the names) is said once and a slice takes 45 bytes.
- A slice is a BEGIN and an END. They stand together, the outer slice first:
  Perfetto closes the innermost open slice, whatever its name.
- Ids are hashed from a key, so that traces of several ranks can be put one after
  the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracer.exports import packing
from tracer.exports.packing import Part, message, varint
from tracer.trace import Ids, Ints

CHUNK = 1 << 15  # slices packed at a time: their records stay in the cache

# Field numbers of perfetto's trace_packet.proto, track_event.proto and debug_annotation.proto.
_PACKET, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _FLAGS = 1, 8, 10, 11, 13
_CATEGORY, _ANNOTATION, _TYPE, _NAME = 3, 4, 9, 10
_EXTRA_VALUES, _COUNTER_VALUE, _DOUBLE_VALUE, _FLOW, _LAST_FLOW, _COLOUR = 12, 30, 44, 47, 48, 53
_ARG_NAME, _ARG_INT, _ARG_DOUBLE, _ARG_STRING = 1, 4, 5, 17
_BEGIN, _END, _COUNTER = 1, 2, 4
_NEEDS_STATE, _CLEARS_STATE = 2, 1


class Strings:
    """Texts and their numbers; the same in every row, so that no column is renumbered."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self.texts: list[str] = []

    def id(self, text: str) -> int:
        """The number of a text."""
        found = self._ids.get(text)
        if found is None:
            found = self._ids[text] = len(self.texts)
            self.texts.append(text)
        return found

    def ids(self, texts: Iterable[str]) -> Ids:
        """The numbers of texts."""
        return np.array([self.id(text) for text in texts], np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Arg:
    """An argument of slices: whole numbers, doubles, or numbers of Strings."""

    name: str
    values: Any
    text: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Slices of one shape: they have the same arguments, as many arrows, one colour."""

    start_ns: Ints
    dur_ns: Ints
    name: Ids  # -> Strings
    category: str
    args: tuple[Arg, ...] = ()
    leaving: tuple[Ints, ...] = ()  # ids of the arrows that leave each slice
    arriving: tuple[Ints, ...] = ()
    colour: str = ""  # see colours.py; "" takes the name's own
    worked_ns: tuple[Ints, Ints] | None = None  # what the thread has worked until its begin and end
    order: Ints | None = None  # sort key among all slices of the row; None: start, the longer first

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Any) -> Slices:
        """Some of them."""
        return Slices(
            self.start_ns[rows],
            self.dur_ns[rows],
            self.name[rows],
            self.category,
            tuple(Arg(a.name, a.values[rows], a.text) for a in self.args),
            tuple(ids[rows] for ids in self.leaving),
            tuple(ids[rows] for ids in self.arriving),
            self.colour,
            None if self.worked_ns is None else (self.worked_ns[0][rows], self.worked_ns[1][rows]),
            None if self.order is None else self.order[rows],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Counter:
    """Values over time; whole numbers or doubles."""

    time_ns: Ints
    value: Any
    unit: str = "count"  # "count", "bytes", "ns" or any word


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A line of the timeline, or a heading above others."""

    key: str  # unique in the trace
    name: str
    parent: str = ""  # key of the row above; "" at the top
    rank: int = 0  # order among its siblings, below a heading of ours
    description: str = ""
    slices: tuple[Slices, ...] = ()
    counter: Counter | None = None
    process: tuple[int, str, tuple[str, ...]] | None = None  # pid, name, labels
    thread: tuple[int, int, str] | None = None  # pid, tid, name
    merged: bool = True  # rows of one name and parent are drawn as one
    heading: bool = False  # its children keep their order

    @property
    def count(self) -> int:
        """How many slices."""
        return sum(len(part) for part in self.slices)


@dataclass(slots=True)
class Scale:
    """How numbers are written in this file."""

    base_ns: int  # this moment of the model is the file's 0
    time_width: int
    seed: str  # of all ids
    strings: Strings = field(default_factory=Strings)
    names_of_args: Strings = field(default_factory=Strings)
    sequences: int = 0
    arrow_base: int = 0  # added to the numbers of arrows

    def uuid(self, key: str) -> int:
        """A row's number, below 2^63."""
        return int.from_bytes(hashlib.blake2b(f"{self.seed}/{key}".encode(), digest_size=8).digest()) >> 1 or 1

    def next_sequence(self) -> int:
        """A number for a sequence of packets, of four bytes always."""
        self.sequences += 1
        base = int.from_bytes(hashlib.blake2b(self.seed.encode(), digest_size=2).digest()) & 0xFFF
        return 1 << 27 | base << 15 | self.sequences

    @property
    def name_width(self) -> int:
        """Bytes of an id of a string."""
        return 2 if len(self.strings.texts) < 1 << 14 else 3 if len(self.strings.texts) < 1 << 21 else 4


def pack_row(row: Row, scale: Scale) -> Iterator[bytes]:
    """All packets of a row but its descriptor: what its events share, then the events."""
    if row.count:
        sequence = scale.next_sequence()
        yield _opening(row, scale, sequence)
        yield from _pack_slices(row.slices, scale, sequence)
    if row.counter is not None and len(row.counter.time_ns):
        sequence = scale.next_sequence()
        yield _opening(row, scale, sequence, counter=True)
        yield from _pack_counter(row.counter, scale, sequence)


def work_counter_key(key: str) -> str:
    """The key of the counter of a thread's working time."""
    return f"{key}/worked"


def _opening(row: Row, scale: Scale, sequence: int, *, counter: bool = False) -> bytes:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    packet = pb.TracePacket(trusted_packet_sequence_id=sequence, sequence_flags=_CLEARS_STATE)
    defaults = packet.trace_packet_defaults.track_event_defaults
    defaults.track_uuid = scale.uuid(row.key)
    if not counter:
        if any(part.worked_ns is not None for part in row.slices):
            defaults.extra_counter_track_uuids.append(scale.uuid(work_counter_key(row.key)))
        _intern(packet.interned_data, row.slices, scale)
    body: bytes = packet.SerializeToString()
    return b"\x0a" + varint(len(body)) + body


def _intern(data: Any, parts: Sequence[Slices], scale: Scale) -> None:
    texts, args = scale.strings.texts, scale.names_of_args
    for number in _used(part.name for part in parts):
        data.event_names.add(iid=number + 1, name=texts[number])
    for index, category in enumerate(_categories(parts), 1):
        data.event_categories.add(iid=index, name=category)
    for name in dict.fromkeys(arg.name for part in parts for arg in part.args):
        data.debug_annotation_names.add(iid=args.id(name) + 1, name=name)
    for number in _used(arg.values for part in parts for arg in part.args if arg.text):
        data.debug_annotation_string_values.add(iid=number + 1, str=texts[number].encode())


def _used(columns: Iterable[Any]) -> list[int]:
    known = [np.unique(column) for column in columns]
    return [int(i) for i in np.unique(np.concatenate(known))] if known else []


def _categories(parts: Sequence[Slices]) -> list[str]:
    return sorted({part.category for part in parts})


def _pack_slices(parts: Sequence[Slices], scale: Scale, sequence: int) -> Iterator[bytes]:
    parts = [part for part in parts if len(part)]
    categories = {name: index for index, name in enumerate(_categories(parts), 1)}
    shape = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    inside = np.concatenate([np.arange(len(part)) for part in parts])
    order = _order(parts)
    for low in range(0, len(order), CHUNK):
        chosen = order[low : low + CHUNK]
        matrices, places = [], []
        for number, part in enumerate(parts):
            at = np.flatnonzero(shape[chosen] == number) if len(parts) > 1 else np.arange(len(chosen))
            if not len(at):
                continue
            rows = inside[chosen[at]]
            some = part.take(slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows)
            record = _record(some, scale, sequence, categories[part.category])
            matrices.append(packing.pack(record, len(rows)))
            places.append(at)
        yield packing.scatter(matrices, places)


def _order(parts: Sequence[Slices]) -> Any:
    """Start first, the longer first: the outer of two slices is opened before the inner."""
    if all(part.order is not None for part in parts):
        key = np.concatenate([part.order for part in parts])
        return np.argsort(key, kind="stable") if np.any(key[1:] < key[:-1]) else np.arange(len(key))
    start = np.concatenate([part.start_ns for part in parts])
    dur = np.concatenate([part.dur_ns for part in parts])
    return np.lexsort((-dur, start))


def _record(part: Slices, scale: Scale, sequence: int, category: int) -> list[Part]:
    begin: list[Part] = [packing.tag(_TYPE, 0) + varint(_BEGIN)]
    end: list[Part] = [packing.tag(_TYPE, 0) + varint(_END)]
    begin += [packing.tag(_CATEGORY, 0) + varint(category)]
    begin += packing.hole(_NAME, part.name.astype(np.int64) + 1, scale.name_width)
    for arg in part.args:
        begin += _annotation(arg, scale)
    for ids in part.leaving:
        begin += packing.fixed(_FLOW, ids + scale.arrow_base)
    for ids in part.arriving:
        begin += packing.fixed(_LAST_FLOW, ids + scale.arrow_base)
    if part.colour:
        begin += message(_COLOUR, [part.colour.encode()])
    if part.worked_ns is not None:
        width = scale.time_width
        begin += packing.hole(_EXTRA_VALUES, part.worked_ns[0], width)
        end += packing.hole(_EXTRA_VALUES, part.worked_ns[1], width)
    start = part.start_ns - scale.base_ns
    return _packet(start, begin, scale, sequence) + _packet(start + part.dur_ns, end, scale, sequence)


def _annotation(arg: Arg, scale: Scale) -> list[Part]:
    parts: list[Part] = [packing.tag(_ARG_NAME, 0) + varint(scale.names_of_args.id(arg.name) + 1)]
    if arg.text:
        parts += packing.hole(_ARG_STRING, arg.values.astype(np.int64) + 1, scale.name_width)
    elif arg.values.dtype.kind == "f":
        parts += packing.fixed(_ARG_DOUBLE, arg.values)
    else:
        parts += packing.hole(_ARG_INT, arg.values)
    return message(_ANNOTATION, parts)


def _packet(time: Ints, event: Sequence[Part], scale: Scale, sequence: int) -> list[Part]:
    body = packing.hole(_TIMESTAMP, time, scale.time_width)
    body += [packing.tag(_SEQUENCE, 0) + varint(sequence) + packing.tag(_FLAGS, 0) + varint(_NEEDS_STATE)]
    return message(_PACKET, body + message(_TRACK_EVENT, event))


def _pack_counter(counter: Counter, scale: Scale, sequence: int) -> Iterator[bytes]:
    kind = packing.tag(_TYPE, 0) + varint(_COUNTER)
    whole = np.asarray(counter.value).dtype.kind != "f"
    for low in range(0, len(counter.time_ns), CHUNK):
        times = counter.time_ns[low : low + CHUNK] - scale.base_ns
        values = counter.value[low : low + CHUNK]
        field_parts = packing.hole(_COUNTER_VALUE, values) if whole else packing.fixed(_DOUBLE_VALUE, values)
        yield packing.pack(_packet(times, [kind, *field_parts], scale, sequence), len(times)).tobytes()
