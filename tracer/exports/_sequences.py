"""The packets of a row.

- A row is a sequence of packets of its own, so that what all its events share (the
  track, the names, the clock) is said once and a slice takes 40 bytes.
- A slice is a BEGIN and an END; Perfetto closes the innermost open slice, whatever its
  name. Slices are taken outer first, each BEGIN with its END, and all events are then
  sorted by time alone: that keeps nesting right where slices share a border.
- Times are written as the time since the event before. That costs a sort and makes
  the compressed file a third smaller.
- Ids are hashed from a key, so that traces of several ranks can be put one after
  the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tracer.exports import _packing as packing
from tracer.exports._packing import Matrix, Part, message, varint
from tracer.exports._rows import Arg, Counter, Row, Slices, Strings
from tracer.trace import Ints

CHUNK = 1 << 16  # events packed at a time: their records stay in the cache
_AT_ONCE = 1 << 13  # events of a row that is not worth a thread
BOOTTIME = 6  # perfetto's default clock
CLOCK = 64  # of a sequence, counting from event to event

# Field numbers of perfetto's trace_packet.proto, track_event.proto and debug_annotation.proto.
_PACKET, _TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _FLAGS = 1, 8, 10, 11, 13
_CATEGORY, _ANNOTATION, _TYPE, _NAME = 3, 4, 9, 10
_EXTRA_VALUES, _COUNTER_VALUE, _DOUBLE_VALUE, _FLOW, _LAST_FLOW, _COLOUR = 12, 30, 44, 47, 48, 53
_ARG_NAME, _ARG_INT, _ARG_DOUBLE, _ARG_STRING = 1, 4, 5, 17
_BEGIN, _END, _COUNTER = 1, 2, 4
_NEEDS_STATE, _CLEARS_STATE = 2, 1

_EVENT = 30  # bytes of an event, about


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A part of a row that is packed when it is asked for."""

    pack: Callable[[], bytes]
    size: int  # bytes that it will make, about


@dataclass(slots=True)
class Scale:
    """How numbers are written in this file."""

    base_ns: int  # this moment of the model is the file's 0
    seed: str  # of all ids
    strings: Strings = field(default_factory=Strings)
    names_of_args: Strings = field(default_factory=Strings)
    sequences: int = 0
    arrow_base: int = 0  # added to the numbers of arrows
    wide: int = 0  # bytes of an id of a string in a row, once it is decided

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


def pack_row(row: Row, scale: Scale) -> Iterator[bytes | Task]:
    """All packets of a row but its descriptor: what its events share, then the events, for any thread to pack."""
    parts = [part for part in row.slices if len(part)]
    if parts:
        sequence = scale.next_sequence()
        events = _in_time(parts)
        yield _opening(row, scale, sequence, events.first_ns, parts)
        # How wide an id is must not depend on what another thread has found meanwhile.
        yield from _pack_slices(parts, replace(scale, wide=scale.name_width), sequence, events)
    if row.counter is not None and len(row.counter.time_ns):
        sequence = scale.next_sequence()
        yield _opening(row, scale, sequence, int(row.counter.time_ns[0]), ())
        yield from _pack_counter(row.counter, sequence)


def work_counter_key(key: str) -> str:
    """The key of the counter of a thread's working time."""
    return f"{key}/worked"


def _opening(row: Row, scale: Scale, sequence: int, first_ns: int, parts: Sequence[Slices]) -> bytes:
    """The track, names and clock of a sequence."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    packet = pb.TracePacket(trusted_packet_sequence_id=sequence, sequence_flags=_CLEARS_STATE)
    packet.clock_snapshot.clocks.add(clock_id=CLOCK, timestamp=first_ns - scale.base_ns, is_incremental=True)
    packet.clock_snapshot.clocks.add(clock_id=BOOTTIME, timestamp=first_ns - scale.base_ns)
    packet.trace_packet_defaults.timestamp_clock_id = CLOCK
    defaults = packet.trace_packet_defaults.track_event_defaults
    defaults.track_uuid = scale.uuid(row.key)
    if any(part.worked_ns is not None for part in parts):
        defaults.extra_counter_track_uuids.append(scale.uuid(work_counter_key(row.key)))
    if parts:
        _intern(packet.interned_data, parts, scale)
    body: bytes = packet.SerializeToString()
    return b"\x0a" + varint(len(body)) + body


def _intern(data: Any, parts: Sequence[Slices], scale: Scale) -> None:
    texts, args = scale.strings.texts, scale.names_of_args
    for number in _used((part.name for part in parts), len(texts)):
        data.event_names.add(iid=number + 1, name=texts[number])
    for index, category in enumerate(_categories(parts), 1):
        data.event_categories.add(iid=index, name=category)
    for name in dict.fromkeys(arg.name for part in parts for arg in part.args):
        data.debug_annotation_names.add(iid=args.id(name) + 1, name=name)
    for number in _used((arg.values for part in parts for arg in part.args if arg.text), len(texts)):
        data.debug_annotation_string_values.add(iid=number + 1, str=texts[number].encode())


def _used(columns: Iterable[Any], count: int) -> list[int]:
    used = np.zeros(count, np.bool_)
    for column in columns:
        used[column] = True
    found: list[int] = np.flatnonzero(used).tolist()
    return found


def _categories(parts: Sequence[Slices]) -> list[str]:
    return sorted({part.category for part in parts})


def _pack_slices(parts: Sequence[Slices], scale: Scale, sequence: int, events: _Events) -> Iterator[bytes | Task]:
    if len(events.order) <= _AT_ONCE:
        yield _pack_events(parts, scale, sequence, events, 0)
        return
    for low in range(0, len(events.order), CHUNK):
        size = min(CHUNK, len(events.order) - low) * _EVENT
        yield Task(partial(_pack_events, parts, scale, sequence, events, low), size)


def _pack_events(parts: Sequence[Slices], scale: Scale, sequence: int, events: _Events, low: int) -> bytes:
    categories = {name: index for index, name in enumerate(_categories(parts), 1)}
    chosen = events.order[low : low + CHUNK]
    since = events.since_ns[low : low + CHUNK]
    width = packing.width_of(since)
    slices = chosen >> 1
    shape = 2 * events.part[slices] + (chosen & 1).astype(np.int16)
    inside = events.inside[slices]
    matrices: list[Matrix] = []
    places: list[Ints] = []
    for kind, at in _by_value(shape):
        part = parts[kind >> 1]
        if kind & 1:
            worked = part.worked_ns
            event = _end(None if worked is None else worked[1][inside[at]])
        else:
            event = _begin(part.take(inside[at]), scale, categories[part.category])
        matrices.append(packing.pack(_packet(since[at], event, sequence, width), len(at)))
        places.append(at)
    return packing.scatter(matrices, places)


def _by_value(column: Any) -> Iterator[tuple[int, Ints]]:
    """Each value of a column of small numbers, and where it stands."""
    counts = np.bincount(column)
    if np.count_nonzero(counts) == 1:
        yield int(column[0]), np.arange(len(column))
        return
    order = np.argsort(column, kind="stable")
    ends = np.cumsum(counts)
    for value in np.flatnonzero(counts).tolist():
        yield value, order[ends[value] - counts[value] : ends[value]]


@dataclass(frozen=True, slots=True, eq=False)
class _Events:
    """The begins and ends of all slices of a row, in the order of time."""

    part: Any  # for each slice in nesting order, which Slices it is in
    inside: Any  # and where in there
    order: Any  # events: twice the slice, plus 1 for its end
    since_ns: Ints  # from the event before
    first_ns: int


def _in_time(parts: Sequence[Slices]) -> _Events:
    order = _nesting(parts)
    part = np.repeat(np.arange(len(parts), dtype=np.int16), [len(p) for p in parts])[order]
    inside = np.concatenate([np.arange(len(p), dtype=np.int32) for p in parts])[order]
    times = np.empty(2 * len(order), np.int64)
    times[0::2] = np.concatenate([p.start_ns for p in parts])[order]
    times[1::2] = np.concatenate([p.start_ns + p.dur_ns for p in parts])[order]
    if np.any(times[1:] < times[:-1]):
        events = np.argsort(times, kind="stable")
        times = times[events]
    else:
        events = np.arange(len(times))
    return _Events(part, inside, events, _since(times), int(times[0]))


def _since(times: Ints) -> Ints:
    """The time since the one before; 0 for the first."""
    since = np.zeros(len(times), np.int64)
    np.subtract(times[1:], times[:-1], out=since[1:])
    return since


def _nesting(parts: Sequence[Slices]) -> Any:
    """Start first, the longer first: the outer of two slices is opened before the inner."""
    if all(part.order is not None for part in parts):
        key = np.concatenate([part.order for part in parts])
        return np.argsort(key, kind="stable") if np.any(key[1:] < key[:-1]) else np.arange(len(key))
    start = np.concatenate([part.start_ns for part in parts])
    dur = np.concatenate([part.dur_ns for part in parts])
    return np.lexsort((-dur, start))


def _begin(part: Slices, scale: Scale, category: int) -> list[Part]:
    event: list[Part] = [packing.tag(_TYPE, 0) + varint(_BEGIN) + packing.tag(_CATEGORY, 0) + varint(category)]
    if part.colour:
        event += message(_COLOUR, [part.colour.encode()])
    for ids in part.leaving:
        event += packing.fixed(_FLOW, ids + scale.arrow_base)
    for ids in part.arriving:
        event += packing.fixed(_LAST_FLOW, ids + scale.arrow_base)
    if part.worked_ns is not None:
        event += packing.hole(_EXTRA_VALUES, part.worked_ns[0])
    for arg in part.args:  # the texts among them last, beside the name: they repeat together
        event += _annotation(arg, scale)
    return event + packing.hole(_NAME, part.name.astype(np.int64) + 1, scale.wide)


def _end(worked_ns: Ints | None) -> list[Part]:
    event: list[Part] = [packing.tag(_TYPE, 0) + varint(_END)]
    return event if worked_ns is None else event + packing.hole(_EXTRA_VALUES, worked_ns)


def _annotation(arg: Arg, scale: Scale) -> list[Part]:
    parts: list[Part] = [packing.tag(_ARG_NAME, 0) + varint(scale.names_of_args.id(arg.name) + 1)]
    if arg.text:
        parts += packing.hole(_ARG_STRING, arg.values.astype(np.int64) + 1, scale.wide)
    elif arg.values.dtype.kind == "f":
        parts += packing.fixed(_ARG_DOUBLE, arg.values)
    else:
        parts += packing.hole(_ARG_INT, arg.values)
    return message(_ANNOTATION, parts)


def _packet(since: Ints, event: Sequence[Part], sequence: int, width: int) -> list[Part]:
    """A packet of one event. What changes stands side by side, and what does not, so that gzip finds long matches."""
    same: Part = packing.tag(_SEQUENCE, 0) + varint(sequence) + packing.tag(_FLAGS, 0) + varint(_NEEDS_STATE)
    return message(_PACKET, [same, *message(_TRACK_EVENT, event), *packing.hole(_TIMESTAMP, since, width)])


def _pack_counter(counter: Counter, sequence: int) -> Iterator[bytes | Task]:
    since = _since(counter.time_ns)
    for low in range(0, len(since), CHUNK):
        some = partial(_pack_values, since[low : low + CHUNK], counter.value[low : low + CHUNK], sequence)
        yield Task(some, min(CHUNK, len(since) - low) * _EVENT) if len(since) > _AT_ONCE else some()


def _pack_values(times: Ints, values: Any, sequence: int) -> bytes:
    whole = np.asarray(values).dtype.kind != "f"
    value = packing.hole(_COUNTER_VALUE, values) if whole else packing.fixed(_DOUBLE_VALUE, values)
    event: list[Part] = [packing.tag(_TYPE, 0) + varint(_COUNTER), *value]
    return packing.pack(_packet(times, event, sequence, packing.width_of(times)), len(times)).tobytes()
